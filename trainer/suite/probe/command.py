"""Probes all layers of an encoder: `python -m trainer.suite.child probe FOLDER --task TASK.toml --output DIR`.

    OUTPUT/results.json   for each layer, the task's first metric on the dev set; for comparison, the score of always
                          predicting the most frequent label of the training set; and the numbers of examples

For each layer, a logistic regression is fitted to the vectors of the training set (Alain and Bengio, Understanding
intermediate layers using linear classifier probes, arXiv:1610.01644). The only random choice is the sample of a large
training set, whose seed is fixed, so each layer has one score and there are no seeds to choose.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoModel

from schemas.errors import DataError
from schemas.randomness import key
from trainer.command_line import add_set_flag, exit_code_of
from trainer.finetune.baseline import most_frequent_label, name_of_label, scores_of_label
from trainer.finetune.files.read import read_task_data
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.kinds.kind import Feature, Kind
from trainer.finetune.kinds.table import kind_of
from trainer.finetune.opening import longest_row, open_tokenizer, read_config
from trainer.finetune.scores import score
from trainer.finetune.task_file import read_task
from trainer.logs import logger
from trainer.suite.job_command import job_parser, open_model, publish_results
from trainer.suite.probe.logistic import Classifier, fit
from trainer.suite.probe.tasks import check_probed
from trainer.suite.probe.vectors import layer_vectors

MAX_TRAINING_VECTORS = 20_000
"""Maximum training vectors per layer. They take 800 MB for the 13 layers of a base model. More vectors hardly change
the score of a linear classifier."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = job_parser(prog, required=("--task", "--data", "--output"))
    add_set_flag(flags)
    return exit_code_of(lambda: probe(flags.parse_args(arguments)))


def probe(options: argparse.Namespace) -> None:
    """Score all layers and write results.json. Raises DataError and UsageError."""
    started = perf_counter()
    task = read_task(options.task, options.set)
    check_probed(task)

    tokenizer = open_tokenizer(options.folder, task.kind)
    data = read_task_data(task, options.data)
    kind = kind_of(task, data.labels, tokenizer, longest_row(read_config(options.folder)))
    model = open_encoder(options.folder, options.random_weights)

    features = kind.features(data.train)
    sample = chosen(features)
    scores = scored(model, kind, fitted(model, kind, sample), data.dev)
    baseline = baseline_of(kind, data.train, data.dev)
    logger.info("always %s: %s %.4f", baseline["label"], task.metrics[0], baseline["score"])
    for layer, layer_score in enumerate(scores):
        logger.info("layer %d: %s %.4f", layer, task.metrics[0], layer_score)

    content = {
        "task": task.name,
        "metric": task.metrics[0],
        "encoder": fingerprint_of(options.folder),
        "random_weights": options.random_weights,
        "layers": scores,
        "baseline": baseline,
        "examples": {
            "fitted": len({feature["example"] for feature in sample}),
            "train": len(data.train),
            "dev": len(data.dev),
        },
        "seconds": perf_counter() - started,
    }
    publish_results(Path(options.output), content)


def open_encoder(folder: str, random_weights: bool) -> Any:
    """Return the encoder without a head, in evaluation mode. Raises DataError for damaged or missing weights."""
    model, missing = open_model(AutoModel, folder, random_weights)

    # The pooler comes after the last layer, so the vectors do not depend on it.
    needed = [name for name in missing if "pooler" not in name]
    if needed:
        raise DataError(
            f"{folder} lacks {len(needed)} weights of its encoder, such as {needed[0]}. Export or download it again."
        )
    return model


@dataclass(frozen=True)
class Sample:
    """Vectors, float32 (L, N, H), for L layers, N vectors and width H, and their classes, int64 (N,)."""

    vectors_LNH: NDArray[np.float32]
    classes_N: NDArray[np.int64]


def fitted(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> list[Classifier]:
    """Return a classifier for each layer, fitted to some training features."""
    sample = sample_of(model, kind, features)
    return [fit(vectors_NH, sample.classes_N, kind.outputs) for vectors_NH in sample.vectors_LNH]


def chosen(features: Sequence[Feature]) -> list[Feature]:
    """Return a random sample of features, from a fixed seed, with at most MAX_TRAINING_VECTORS vectors in total."""
    random = np.random.Generator(np.random.PCG64(key("probe", "examples")))
    kept: list[int] = []
    vectors = 0
    for number in random.permutation(len(features)).tolist():
        vectors += len(classes_of(features[number]))
        if vectors > MAX_TRAINING_VECTORS and kept:
            break
        kept.append(number)

    return [features[number] for number in sorted(kept)]


def classes_of(feature: Feature) -> list[int]:
    """Return the class of each vector of a feature."""
    if "places" in feature:
        return feature["labels"][feature["places"]].tolist()
    return [feature["labels"]]


def sample_of(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> Sample:
    """Return the vectors of some features with their classes."""
    vectors: list[NDArray[np.float32]] = []
    classes: list[int] = []
    for numbers, vectors_LNH in layer_vectors(model, kind, features):
        vectors.append(vectors_LNH)
        for number in numbers:
            classes += classes_of(features[number])
    return Sample(np.concatenate(vectors, axis=1), np.array(classes, dtype=np.int64))


def scored(model: Any, kind: Kind[Any, Any], classifiers: Sequence[Classifier], dev: Sequence[Any]) -> list[float]:
    """Return the task's first metric on the dev set for each layer. Holds the vectors of only one batch in memory."""
    features = kind.features(dev)
    # By layer and index of the feature, scores in the form that the head of a fine-tuned model gives: logits (C,), or
    # (W, C) for W words. The predicted class has 1 and the others have 0.
    outputs: list[dict[int, NDArray[np.float32]]] = [{} for _ in classifiers]
    one_hot_CC = np.eye(kind.outputs, dtype=np.float32)

    for numbers, vectors_LNH in layer_vectors(model, kind, features):
        # The vectors of a batch are concatenated. Split them by the number of vectors of each feature.
        counts = [vector_count(features[number]) for number in numbers]
        ends = np.cumsum(counts)[:-1]

        for layer, classifier in enumerate(classifiers):
            logits_NC = one_hot_CC[classifier.predict(vectors_LNH[layer])]
            for number, logits in zip(numbers, np.split(logits_NC, ends), strict=True):
                outputs[layer][number] = (
                    of_tokens(features[number], logits) if "places" in features[number] else logits[0]
                )

    scores = []
    for layer_outputs in outputs:
        in_order = [layer_outputs[number] for number in range(len(features))]
        predictions = kind.predictions(dev, features, in_order)
        scores.append(score(kind, dev, predictions)[kind.task.metrics[0]])
    return scores


def baseline_of(kind: Kind[Any, Any], train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
    """Return the most frequent label of the training set, and the dev score of always predicting it."""
    label = most_frequent_label(kind, train)
    assert label is not None, "check_probed refuses tasks without classes"

    scores = scores_of_label(kind, dev, label)
    return {"label": name_of_label(kind, label), "score": scores[kind.task.metrics[0]]}


def vector_count(feature: Feature) -> int:
    """Return the number of vectors of a feature: one per word, or one for a text."""
    return len(feature["words"]) if "words" in feature else 1


def of_tokens(feature: Feature, logits_WC: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return logits of words as a model gives them, at the words' first tokens."""
    logits_TC = np.zeros((len(feature["input_ids"]), logits_WC.shape[1]), dtype=np.float32)
    logits_TC[feature["places"]] = logits_WC
    return logits_TC
