"""Probes all layers of an encoder: `python -m trainer.suite.child probe FOLDER --task TASK.toml --output DIR`.

    OUTPUT/results.json   for each layer, the task's first metric on the dev set; for comparison, the score of always
                          predicting the most frequent label of the training set; and the numbers of examples

For each layer, a logistic regression is fitted to the vectors of the training set (Alain and Bengio, Understanding
intermediate layers using linear classifier probes, arXiv:1610.01644). The only random choice is the sample of a large
training set, whose seed is fixed, so each layer has one score and there are no seeds to choose.

The vector of a text is the mean over its tokens, and that of a word is the vector of its first token. Layer 0 is the
output of the embeddings; the last layer is the input of the head in a fine-tuned model.

Shape suffixes: B rows of a batch, T tokens of a row, H width, N vectors, L layers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel

from schemas import storage
from schemas.errors import DataError
from schemas.randomness import key
from trainer.command_line import exit_code_of
from trainer.finetune.examples import TagExample
from trainer.finetune.files.read import read_task_data
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.kinds.table import kind_of
from trainer.finetune.opening import longest_row, open_tokenizer, read_config
from trainer.finetune.results import RESULTS_FILE
from trainer.finetune.scores import most_frequent_label, name_of_label, score, scores_of_label
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
Word = tuple[int, int]
"""The index of an example, and of a word in it; 0 for a text."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = job_parser(prog, required=("--task", "--data", "--output"))
    return exit_code_of(lambda: probe(flags.parse_args(arguments)))


def probe(options: argparse.Namespace) -> None:
    """Score all layers and write results.json. Raises DataError and UsageError."""
    started = perf_counter()
    task = read_task(options.task, [])
    metric = task.metrics[0]
    tokenizer = open_tokenizer(options.folder, task.kind)
    data = read_task_data(task, options.data)
    kind = kind_of(task, data.labels, tokenizer, longest_row(read_config(options.folder)))
    model = open_encoder(options.folder, options.random_weights)

    sample = sampled(data.train)
    classifiers = fitted(model, tokenizer, rows_of(sample, tokenizer, kind.max_length))
    scores = []
    for predictions in predicted(model, tokenizer, classifiers, rows_of(data.dev, tokenizer, kind.max_length)):
        # A word for which the tokenizer returns no token is not predicted, and stays outside of all entities.
        outside = data.labels.index("O") if "O" in data.labels else 0
        found = []
        for number, example in enumerate(data.dev):
            found.append([predictions.get((number, word), outside) for word in range(len(classes_of(example)))])
        scores.append(score(kind, data.dev, found if task.kind == "tags" else [label for (label,) in found])[metric])
        logger.info("layer %d: %s %.4f", len(scores) - 1, metric, scores[-1])

    label = most_frequent_label(kind, data.train)
    assert label is not None, "only tasks with classes are probed"
    content = {
        "task": task.name,
        "metric": metric,
        "encoder": fingerprint_of(options.folder),
        "random_weights": options.random_weights,
        "layers": scores,
        "baseline": {"label": name_of_label(kind, label), "score": scores_of_label(kind, data.dev, label)[metric]},
        "examples": {"fitted": len(sample), "train": len(data.train), "dev": len(data.dev)},
        "seconds": perf_counter() - started,
    }
    storage.publish(str(Path(options.output) / RESULTS_FILE), (json.dumps(content, indent=1) + "\n").encode())


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


def classes_of(example: Any) -> list[int]:
    """Return the class of each vector of an example: one for a text, or one for each word."""
    return list(example.tags or ()) if isinstance(example, TagExample) else [example.label]


def sampled(examples: Sequence[Any]) -> list[Any]:
    """Return a random sample of examples, from a fixed seed, with at most MAX_TRAINING_VECTORS vectors in total."""
    random = np.random.Generator(np.random.PCG64(key("probe", "examples")))
    order = random.permutation(len(examples))
    vectors = np.cumsum([len(classes_of(examples[number])) for number in order])
    count = max(1, int(np.searchsorted(vectors, MAX_TRAINING_VECTORS, side="right")))
    return [examples[number] for number in sorted(order[:count])]


@dataclass(frozen=True)
class Row:
    """The tokens of a text, or of a part of a sentence that is divided into words.

    vectors: for each vector, the index of its example and of its word, 0 for a text. classes: of the vectors. places:
    the positions of the words' first tokens; None for a text.
    """

    inputs: dict[str, list[int]]
    vectors: list[Word]
    classes: list[int]
    places: list[int] | None = None


def rows_of(examples: Sequence[Any], tokenizer: Any, max_length: int) -> list[Row]:
    """Return the rows of examples. A sentence of words that is too long has several; a text is truncated."""
    limits = {"truncation": True, "max_length": max_length}
    if not isinstance(examples[0], TagExample):
        pairs = [example.text_pair for example in examples if example.text_pair is not None] or None
        encoding = tokenizer([example.text for example in examples], pairs, **limits)
        rows = [
            Row(inputs_of(encoding, number), [(number, 0)], classes_of(example))
            for number, example in enumerate(examples)
        ]
    else:
        sentences = [list(example.words) for example in examples]
        encoding = tokenizer(sentences, is_split_into_words=True, return_overflowing_tokens=True, **limits)
        rows = []
        seen: set[Word] = set()
        for row, number in enumerate(encoding["overflow_to_sample_mapping"]):
            places: dict[Word, int] = {}
            for place, word in enumerate(encoding.word_ids(row)):
                # The first token of a word has its vector. It may be in an earlier row.
                if word is not None and (number, word) not in seen:
                    seen.add((number, word))
                    places[number, word] = place
            tags = classes_of(examples[number])
            rows.append(
                Row(inputs_of(encoding, row), list(places), [tags[word] for _, word in places], list(places.values()))
            )
    return sorted(rows, key=lambda row: -len(row.inputs["input_ids"]))


def inputs_of(encoding: Any, row: int) -> dict[str, list[int]]:
    """Return the model's inputs of one row."""
    return {name: encoding[name][row] for name in ("input_ids", "token_type_ids", "attention_mask") if name in encoding}


@torch.inference_mode()
def layer_vectors(model: Any, tokenizer: Any, rows: Sequence[Row]) -> Iterator[tuple[list[Row], Vectors]]:
    """Yield batches of rows, and their vectors from all layers, float32 (L, N, H)."""
    device = next(model.parameters()).device
    for start in range(0, len(rows), ROWS_AT_ONCE):
        batch = list(rows[start : start + ROWS_AT_ONCE])
        columns = tokenizer.pad([row.inputs for row in batch], return_tensors="pt").to(device)
        layers = model(**columns, output_hidden_states=True).hidden_states

        # Copy all layers of a batch to the CPU as one array: 330 MB for a base model and rows of 128 tokens.
        hidden_LBTH = torch.stack([layer.float() for layer in layers]).cpu().numpy()
        attention_BT = columns["attention_mask"].cpu().numpy().astype(bool)
        found = []
        for position, row in enumerate(batch):
            # Padding may be on either side, so remove it first: positions of words are counted without padding.
            hidden_LTH = hidden_LBTH[:, position, attention_BT[position]]
            found.append(hidden_LTH.mean(axis=1, keepdims=True) if row.places is None else hidden_LTH[:, row.places])
        yield batch, np.concatenate(found, axis=1)


def fitted(model: Any, tokenizer: Any, rows: Sequence[Row]) -> list[Any]:
    """Return a classifier for each layer, fitted to the vectors of some rows."""
    vectors_LNH = np.concatenate([vectors for _, vectors in layer_vectors(model, tokenizer, rows)], axis=1)
    classes = [label for row in rows for label in row.classes]
    if len(set(classes)) == 1:
        return [DummyClassifier().fit(vectors_NH, classes) for vectors_NH in vectors_LNH]

    classifiers = []
    for vectors_NH in vectors_LNH:
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS))
        classifiers.append(classifier.fit(vectors_NH.astype(np.float64), classes))
    return classifiers


def predicted(model: Any, tokenizer: Any, classifiers: Sequence[Any], rows: Sequence[Row]) -> list[dict[Word, int]]:
    """Return each layer's predictions, by example and word. Holds the vectors of only one batch in memory."""
    predictions: list[dict[Word, int]] = [{} for _ in classifiers]
    for batch, vectors_LNH in layer_vectors(model, tokenizer, rows):
        places = [place for row in batch for place in row.vectors]
        for of_layer, classifier, vectors_NH in zip(predictions, classifiers, vectors_LNH, strict=True):
            of_layer.update(zip(places, classifier.predict(vectors_NH).tolist(), strict=True))
    return predictions
