"""The interface that all kinds of tasks share.

A kind turns examples into features, features into batches, and the model's outputs into predictions. A feature is one
input of the model: the rows of an example, or of a part of an example that is too long for one row.

    sentence, pair   one row per example                        text.py
    choice           one row per choice                         choice.py
    tags             one row per part of a sentence             tags.py
    span             one row per window over the context        span.py, windows.py

Shape suffixes: B features of a batch, T tokens of a row, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from schemas.errors import UsageError
from trainer.distributed.watchdog import progress
from trainer.finetune.task import Task

Floats = NDArray[np.float32]

EXAMPLES_AT_ONCE = 1000
"""Texts per call of a tokenizer. It returns lists of Python objects, over 100 bytes per token with offsets, so they are
packed into arrays before the next call."""


@dataclass(frozen=True, eq=False, slots=True)
class Row:
    """The tokens of one row, special tokens included, without padding.

    ids: int32 (T,). type_ids: int8 (T,), None if the model has no segments.
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int8] | None


@dataclass(frozen=True, slots=True)
class Feature:
    """One input of the model.

    example: the index of its example. rows: one row, or one per choice.
    target: the label in the form that `loss_sum` takes, None if unlabeled. part: what the kind needs to interpret the
    output, such as the window over a context.
    """

    example: int
    rows: tuple[Row, ...]
    target: Any = None
    part: Any = None

    @property
    def length(self) -> int:
        """The number of tokens in its longest row."""
        return max(len(row.ids) for row in self.rows)


Example = TypeVar("Example")
Prediction = TypeVar("Prediction")


class PredictedLabel(int):
    """A predicted label or position, which metrics take as a number.

    probability: what the model gives it; NaN if it is not the prediction of a model.
    """

    probability: float = float("nan")

    @staticmethod
    def of(logits_C: Floats) -> PredictedLabel:
        """Return the most likely label by the logits of all labels."""
        label = PredictedLabel(logits_C.argmax())
        below_best_C = logits_C.astype(np.float64) - logits_C[label]
        label.probability = float(1 / np.exp(below_best_C).sum())
        return label


class Kind(ABC, Generic[Example, Prediction]):
    """One kind of task, for one task and one tokenizer."""

    model_class: ClassVar[str]
    """The Auto class of transformers that opens an encoder with this kind's head."""

    truncates: ClassVar[bool] = True
    """Whether texts that are too long for a row are truncated. Other kinds divide them into several rows."""

    def __init__(
        self, task: Task, labels: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int | None = None
    ):
        """labels: the names of the classes, in the order of their ids; empty if the kind or the task has none.

        longest: the maximum number of tokens in a row of the encoder, None without a limit.
        """
        self.task = task
        self.labels = labels
        self.tokenizer = tokenizer
        self.max_length = min(task.training.max_length, tokenizer.model_max_length)
        if longest is not None:
            self.max_length = min(self.max_length, longest)

    def check_room(self) -> None:
        """Raise UsageError if a row has no room for at least one token of each of its texts."""
        special = self.tokenizer.num_special_tokens_to_add(pair=self.texts_per_row == 2)
        needed = special + self.texts_per_row
        if self.max_length < needed:
            raise UsageError(
                f"training.max_length is {self.task.training.max_length}, so a row has {self.max_length} tokens, of "
                f"which {special} are special. Set it to at least {needed} for a task of kind {self.task.kind}; most "
                "texts need 128 or more."
            )

    # ---- What a kind defines ----

    @property
    @abstractmethod
    def texts_per_row(self) -> int:
        """The number of texts that share a row: 1 or 2."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs of the head (`num_labels` of transformers' configurations)."""

    @abstractmethod
    def features(self, examples: Sequence[Example]) -> list[Feature]:
        """Return the features of all examples, in their order."""

    def training_features(self, examples: Sequence[Example]) -> list[Feature]:
        """Return the features of examples to train on, without what only `predictions` needs."""
        return self.features(examples)

    @abstractmethod
    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        """Return the sum of the losses of a batch, a float32 scalar. output: what the model returned for the batch."""

    @abstractmethod
    def weight(self, feature: Feature) -> int:
        """Return the number of losses that a feature adds to `loss_sum`."""

    @abstractmethod
    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        """Return for each feature the part of the model's output that `predictions` needs, without padding."""

    @abstractmethod
    def predictions(
        self, examples: Sequence[Example], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[Prediction]:
        """Return the prediction of each example, in the form that metrics take."""

    @abstractmethod
    def references(self, examples: Sequence[Example]) -> list[Any]:
        """Return the references that metrics compare predictions with. All examples must have labels."""

    def label_ids(self, examples: Sequence[Example]) -> list[int]:
        """Return every label id in labeled examples, one per word for tags. Empty if the kind has no classes."""
        return []

    def constant_prediction(self, example: Example, label: int) -> Prediction:
        """Return the prediction that gives an example, or each of its words, the same label."""
        raise NotImplementedError(f"{type(self).__name__} has no classes.")

    def written(self, prediction: Any) -> Any:
        """Return a prediction, given in the form that metrics take, in the form that predictions_*.jsonl holds."""
        return prediction

    def probability(self, prediction: Any) -> float | None:
        """Return the probability that the model gives a prediction, None if the kind has no such number."""
        return prediction.probability if isinstance(prediction, PredictedLabel) else None

    # ---- The same for all kinds ----

    def batch(self, features: Sequence[Feature]) -> dict[str, Tensor]:
        """Return the model's arguments by name: int64 (B, T), or (B, choices, T) for the kind choice."""
        return self.padded([row for feature in features for row in feature.rows])

    def padded(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Return the model's arguments for rows, padded to the longest row, on the side where the tokenizer pads."""
        columns: dict[str, list[Any]] = {"input_ids": [row.ids.tolist() for row in rows]}
        if rows[0].type_ids is not None:
            columns["token_type_ids"] = [row.type_ids.tolist() for row in rows if row.type_ids is not None]
        return dict(self.tokenizer.pad(columns, return_tensors="pt"))

    def encoded(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Row]:
        """Return the rows of texts or of pairs of texts. If a pair is too long, its longer text is truncated first."""
        rows: list[Row] = []
        for block in blocks(len(texts)):
            encoding = self.tokenizer(
                list(texts[block]),
                list(pairs[block]) if pairs is not None else None,
                truncation="longest_first",
                max_length=self.max_length,
            )
            rows += rows_of(encoding)
        return rows


def blocks(count: int) -> Iterator[slice]:
    """Yield slices that cut `count` items into blocks, and report progress to the watchdog after each block."""
    for start in range(0, count, EXAMPLES_AT_ONCE):
        yield slice(start, start + EXAMPLES_AT_ONCE)
        progress()


def rows_of(encoding: Any) -> list[Row]:
    """Return the rows of a tokenizer's output, as arrays."""
    ids = [np.array(ids_of_row, dtype=np.int32) for ids_of_row in encoding["input_ids"]]
    type_ids = encoding.get("token_type_ids")
    if type_ids is None:
        return [Row(ids_T, None) for ids_T in ids]
    return [Row(ids_T, np.array(types, dtype=np.int8)) for ids_T, types in zip(ids, type_ids, strict=True)]


def host(tensor: Tensor) -> Floats:
    """Return a tensor as a float32 array on the CPU."""
    return tensor.detach().to("cpu", torch.float32).numpy()
