"""The interface that all kinds of tasks share.

A kind turns examples into features, and the model's logits into predictions. A feature is a dict: what the model gets
for one row, as arrays without padding, and what the kind needs to read the row's logits.

    kind             a row holds                     with the model's inputs                  file
    sentence, pair   an example                                                               text.py
    choice           an example, a list of rows                                               text.py
    tags             a part of a sentence            `words`, and their `places` in the row   tags.py
    span             a window over a context         `offsets`, `classification`              span.py

Shape suffixes: B features of a batch, T tokens of a row, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trainer.distributed.watchdog import progress
from trainer.finetune.task import Task

Floats = NDArray[np.float32]

Feature = dict[str, Any]
"""`example` is the index of its example; the other keys are the model's inputs, and those that a kind adds."""

OF_A_ROW = ("input_ids", "token_type_ids")
"""The inputs that a tokenizer gives for a row. The mask is left out, because padding adds it."""

TARGETS = ("labels", "start_positions", "end_positions")
"""The inputs from which the model computes its loss. Features of examples without a label lack them."""

EXAMPLES_AT_ONCE = 1000
"""Texts per call of a tokenizer. It returns lists of Python objects, over 100 bytes per token with offsets, so they are
packed into arrays before the next call."""


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


class Kind(ABC):
    """One kind of task, for one task and one tokenizer."""

    model_class: ClassVar[str]
    """The Auto class of transformers that opens an encoder with this kind's head."""

    pipeline: ClassVar[str]
    """What the Hugging Face Hub calls this kind of task."""

    truncates: ClassVar[bool] = True
    """Whether texts that are too long for a row are truncated. Other kinds divide them into several rows."""

    has_classes: ClassVar[bool] = True
    """Whether examples, or their words, have classes. Others have numbers or answers."""

    outputs_without_labels: ClassVar[int] = 1
    """The number of outputs of the head if the kind or the task has no labels."""

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

    @property
    def outputs(self) -> int:
        """The number of outputs of the head (`num_labels` of transformers' configurations)."""
        return len(self.labels) or self.outputs_without_labels

    # ---- What a kind defines ----

    @abstractmethod
    def features(self, examples: Sequence[Any]) -> list[Feature]:
        """Return the features of all examples, in their order."""

    @abstractmethod
    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return the model's inputs for a batch of features, each a dict of its inputs as lists and numbers."""

    def logits(self, output: Any, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits of a batch, float32. If there is one for each token, padding is on the right.

        output: what the model returned for `inputs`.
        """
        return output.logits.float()

    def logits_of(self, feature: Feature, logits: Floats) -> Floats:
        """Return a feature's logits without those of padding: one for each token or choice, unless a kind says else."""
        return logits[: len(feature["input_ids"])]

    @abstractmethod
    def predictions(self, examples: Sequence[Any], features: Sequence[Feature], logits: Sequence[Floats]) -> list[Any]:
        """Return the prediction of each example. logits: of each feature."""

    def final(self, predictions: Sequence[Any], threshold: float) -> list[Any]:
        """Return predictions in the form that metrics take. threshold: as `Job.threshold` returns it."""
        return list(predictions)

    @abstractmethod
    def references(self, examples: Sequence[Any]) -> list[Any]:
        """Return the references that metrics compare predictions with. All examples must have labels."""

    # ---- The same for all kinds ----

    def written(self, prediction: Any) -> Any:
        """Return a prediction, given in the form that metrics take, with the names of labels, as files hold it."""
        if not self.labels:
            return prediction
        return [self.labels[tag] for tag in prediction] if isinstance(prediction, list) else self.labels[prediction]

    def probability(self, prediction: Any) -> float | None:
        """Return the probability that the model gives a prediction, None if the kind has no such number."""
        return prediction.probability if isinstance(prediction, PredictedLabel) else None

    def encoded(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Feature]:
        """Return the rows of texts or of pairs of texts. If a pair is too long, its longer text is truncated first."""
        rows: list[Feature] = []
        for block in blocks(len(texts)):
            encoding = self.tokenizer(
                list(texts[block]),
                list(pairs[block]) if pairs is not None else None,
                truncation="longest_first",
                max_length=self.max_length,
            )
            rows += rows_of(encoding)
        return rows

    def left_padding(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return how many tokens of padding stand before each row of a batch, int64 (B,). Zeros for most tokenizers."""
        is_token_BT = inputs["attention_mask"]
        if self.tokenizer.padding_side != "left":
            return torch.zeros(len(is_token_BT), dtype=torch.int64, device=is_token_BT.device)
        return is_token_BT.shape[1] - is_token_BT.sum(dim=1)

    def padded_right(self, logits_BTX: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Return logits of tokens with the padding on the right, wherever the tokenizer has put it."""
        if self.tokenizer.padding_side != "left":
            return logits_BTX
        shifts_B = self.left_padding(inputs)
        places_T = torch.arange(logits_BTX.shape[1], device=logits_BTX.device)
        from_BT = (places_T + shifts_B[:, None]) % logits_BTX.shape[1]
        return logits_BTX.gather(1, from_BT[:, :, None].expand_as(logits_BTX))


def blocks(count: int) -> Iterator[slice]:
    """Yield slices that cut `count` items into blocks, and report progress to the watchdog after each block."""
    for start in range(0, count, EXAMPLES_AT_ONCE):
        yield slice(start, start + EXAMPLES_AT_ONCE)
        progress()


def rows_of(encoding: Any) -> list[Feature]:
    """Return the model's inputs for each row of a tokenizer's output, int32 (T,)."""
    names = [name for name in OF_A_ROW if name in encoding]
    rows = zip(*[encoding[name] for name in names], strict=True)
    return [{name: np.array(ids, dtype=np.int32) for name, ids in zip(names, row, strict=True)} for row in rows]


def length_of(feature: Feature) -> int:
    """Return the number of tokens of a feature; of a choice's rows, that of the longest."""
    ids = feature["input_ids"]
    return max(map(len, ids)) if isinstance(ids, list) else len(ids)
