"""Probes all layers of an encoder, as a job of a suite: FOLDER --task TASK.toml --data DIR --output DIR.

    OUTPUT/results.json   for each layer, the task's first metric on the dev set; for comparison, the score of always
                          predicting the most frequent label of the training set; and the numbers of examples

For each layer, a logistic regression is fitted to the vectors of the training set (Alain and Bengio, Understanding
intermediate layers using linear classifier probes, arXiv:1610.01644). The only random choice is the sample of a large
training set, whose seed is fixed, so each layer has one score and there are no seeds to choose.

The rows are those of fine-tuning: long texts are truncated, and long sentences of words are cut between words. The
vector of a text is the mean over its tokens, and that of a word is the vector of its first token. Layer 0 is the
output of the embeddings; the last layer is the input of the head in a fine-tuned model.

Shape suffixes: B rows of a batch, T tokens of a row, H width, N vectors, L layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel

from schemas.errors import UsageError
from schemas.randomness import key
from trainer.command_line import exit_code_of
from trainer.finetune.examples import classes_of
from trainer.finetune.files.read import read_task_data
from trainer.finetune.inputs import fingerprint_of, write_json
from trainer.finetune.job import FeatureSet
from trainer.finetune.kinds import kind_of
from trainer.finetune.kinds.kind import TARGETS, Feature, Kind
from trainer.finetune.model import check_weights
from trainer.finetune.opening import longest_row, open_tokenizer, read_config
from trainer.finetune.results import RESULTS_FILE
from trainer.finetune.scores import check_metrics_of_labels, most_frequent_label, score, scores_of_label
from trainer.finetune.task_file import read_task
from trainer.logs import logger
from trainer.suite.frozen_encoder import job_parser, open_model

MAX_TRAINING_VECTORS = 20_000
"""Maximum training vectors per layer. They take 800 MB for the 13 layers of a base model. More vectors hardly change
the score of a linear classifier."""

MAX_ITERATIONS = 1000
"""Maximum iterations of L-BFGS. On standardized features it converges in far fewer."""

ROWS_AT_ONCE = 64
"""Rows per batch."""

Vectors = NDArray[np.float32]


def main(arguments: list[str], prog: str) -> int:
    flags = job_parser(prog, required=("--task", "--data", "--output"))
    return exit_code_of(lambda: probe(flags.parse_args(arguments)))


def probe(options: argparse.Namespace) -> None:
    """Score all layers and write results.json. Raises DataError and UsageError."""
    task = read_task(options.task, [])
    metric = task.metrics[0]
    tokenizer = open_tokenizer(options.folder, task.kind)
    data = read_task_data(task, options.data)
    check_metrics_of_labels(task, data.labels)
    kind = kind_of(task, data.labels, tokenizer, longest_row(read_config(options.folder)))
    model = open_encoder(options.folder, options.random_weights)

    sample = sampled(data.train)
    classifiers = fitted(model, kind, FeatureSet(sample, kind.features(sample)))
    scores = []
    for predictions in predicted(model, kind, classifiers, FeatureSet(data.dev, kind.features(data.dev))):
        scores.append(score(kind, data.dev, predictions)[metric])
        logger.info("layer %d: %s %.4f", len(scores) - 1, metric, scores[-1])

    label = most_frequent_label(kind, data.train)
    assert label is not None, "only tasks with classes are probed"
    content = {
        "task": task.name,
        "metric": metric,
        "encoder": fingerprint_of(options.folder),
        "layers": scores,
        "baseline": {"label": str(kind.written(label)), "score": scores_of_label(kind, data.dev, label)[metric]},
        "examples": {"fitted": len(sample), "train": len(data.train), "dev": len(data.dev)},
    }
    write_json(Path(options.output) / RESULTS_FILE, content)


def open_encoder(folder: str, random_weights: bool) -> Any:
    """Return the encoder without a head, in evaluation mode. Raises DataError for damaged or missing weights."""
    model, missing = open_model(AutoModel, folder, random_weights)
    check_weights(folder, missing)
    return model


def sampled(examples: Sequence[Any]) -> list[Any]:
    """Return a random sample of examples, from a fixed seed, with at most MAX_TRAINING_VECTORS vectors in total."""
    random = np.random.Generator(np.random.PCG64(key("probe", "examples")))
    order = random.permutation(len(examples))
    vectors = np.cumsum([len(classes_of(examples[number])) for number in order])
    count = max(1, int(np.searchsorted(vectors, MAX_TRAINING_VECTORS, side="right")))
    return [examples[number] for number in sorted(order[:count])]


@torch.inference_mode()
def layer_vectors(model: Any, kind: Kind, examples: FeatureSet) -> Iterator[dict[int, Vectors]]:
    """Yield batches: the number of each feature, and its vectors from all layers, float32 (L, N, H)."""
    order = sorted(range(len(examples)), key=lambda number: -examples.lengths[number])
    for start in range(0, len(order), ROWS_AT_ONCE):
        numbers = order[start : start + ROWS_AT_ONCE]
        batch = kind.collate([examples[number] for number in numbers])
        inputs = {name: values.to(model.device) for name, values in batch.items() if name not in TARGETS}
        layers = model(**inputs, output_hidden_states=True).hidden_states
        if len({layer.shape[1] for layer in layers}) > 1:
            raise UsageError("the layers of this encoder have different numbers of tokens, so they cannot be probed.")

        # Copy all layers of a batch to the CPU as one array: 330 MB for a base model and rows of 128 tokens.
        hidden_LBTH = torch.stack([kind.padded_right(layer.float(), inputs) for layer in layers]).cpu().numpy()
        found = {}
        for position, number in enumerate(numbers):
            places = examples.features[number].get("places")
            hidden_LTH = hidden_LBTH[:, position, : examples.lengths[number]]
            found[number] = hidden_LTH.mean(axis=1, keepdims=True) if places is None else hidden_LTH[:, places]
        yield found


def fitted(model: Any, kind: Kind, examples: FeatureSet) -> list[Any]:
    """Return a classifier for each layer, fitted to the vectors of a training set."""
    found = {number: vectors for batch in layer_vectors(model, kind, examples) for number, vectors in batch.items()}
    vectors_LNH = np.concatenate(list(found.values()), axis=1)
    classes: list[int] = []
    for number in found:
        feature = examples.features[number]
        of_example = np.array(classes_of(examples.examples[feature["example"]]))
        classes += of_example[feature.get("words", [0])].tolist()

    classifiers = []
    for vectors_NH in vectors_LNH:
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS))
        classifiers.append(classifier.fit(vectors_NH.astype(np.float64), classes))
    return classifiers


def predicted(model: Any, kind: Kind, classifiers: Sequence[Any], examples: FeatureSet) -> Iterator[list[Any]]:
    """Yield each layer's predictions for a set. Holds the vectors of only one batch in memory."""
    classes = [[np.empty(0, dtype=np.int64)] * len(examples) for _ in classifiers]
    for batch in layer_vectors(model, kind, examples):
        ends = np.cumsum([vectors_LNH.shape[1] for vectors_LNH in batch.values()])[:-1]
        together_LNH = np.concatenate(list(batch.values()), axis=1)
        for of_layer, classifier, vectors_NH in zip(classes, classifiers, together_LNH, strict=True):
            of_features = np.split(classifier.predict(vectors_NH), ends)
            for number, of_feature in zip(batch, of_features, strict=True):
                of_layer[number] = of_feature

    for of_layer in classes:
        logits = [logits_of(*found, len(kind.labels)) for found in zip(examples.features, of_layer, strict=True)]
        yield kind.predictions(examples.examples, examples.features, logits)


def logits_of(feature: Feature, classes: NDArray[np.int64], count: int) -> Vectors:
    """Return predicted classes as the logits of a head: 1 at each class, of a text or of the words' first tokens."""
    logits = np.eye(count, dtype=np.float32)[classes]
    if "places" not in feature:
        return logits[0]

    of_tokens_TC = np.zeros((len(feature["input_ids"]), count), dtype=np.float32)
    of_tokens_TC[feature["places"]] = logits
    return of_tokens_TC
