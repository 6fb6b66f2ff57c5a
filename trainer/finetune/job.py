"""A fine-tuning as it is asked for, and the features and resources that all its seeds share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from trainer.distributed.stop import StopAgreement
from trainer.distributed.watchdog import Watchdog
from trainer.finetune.examples import Example, SpanExample, TaskData
from trainer.finetune.kinds.kind import OF_A_ROW, TARGETS, Feature, Kind, length_of
from trainer.finetune.metrics.answers import best_threshold
from trainer.finetune.task import DEV, Task

OF_THE_MODEL = (*OF_A_ROW, *TARGETS)
"""The keys of a feature that the model gets."""


class FeatureSet(Dataset):
    """Examples, and the features that the task's kind made from them. Its items are what Trainer's collator takes."""

    def __init__(self, examples: Sequence[Example], features: list[Feature], for_training: bool = False):
        """for_training: whether to drop what only `Kind.predictions` needs, which may take more memory than the row.

        Labels that only some of the features have, as in a test set with data.skip_labels, are left out.
        """
        if for_training:
            features = [{name: feature[name] for name in OF_THE_MODEL if name in feature} for feature in features]
        partial = [name for name in TARGETS if len({name in feature for feature in features}) > 1]
        if partial:
            features = [{name: feature[name] for name in feature if name not in partial} for feature in features]
        self.examples = examples
        self.features = features
        self.lengths = [length_of(feature) for feature in features]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, number: int) -> dict[str, Any]:
        feature = self.features[number]
        return {name: as_lists(feature[name]) for name in OF_THE_MODEL if name in feature}


def as_lists(value: Any) -> Any:
    """Return arrays as lists, which tokenizers pad faster, and numbers as they are."""
    if isinstance(value, list):
        return [array.tolist() for array in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True)
class Order:
    """A fine-tuning as the command line asks for it.

    folder: the encoder's folder. data: the folder of the task's files. output: the output folder. random_weights:
    whether the encoder starts untrained. new_head: whether a head that fits is replaced.
    """

    folder: str
    task: Task
    data: str
    examples: TaskData
    output: Path
    seeds: Sequence[int]
    random_weights: bool = False
    new_head: bool = False


@dataclass(frozen=True, kw_only=True)
class Job(Order):
    """A fine-tuning that may begin.

    inputs: what the results depend on, for inputs.json. train: the training set. others: the sets that get predictions
    after training, by name, "dev" first. stop: the ranks' agreement to stop after a signal.
    """

    inputs: dict[str, Any]
    kind: Kind
    train: FeatureSet
    others: dict[str, FeatureSet]
    stop: StopAgreement
    watchdog: Watchdog

    def threshold(self, predictions: Sequence[Any]) -> float:
        """Return the null score above which a question gets no answer, given the predictions for the dev set.

        It is infinite if the training set has no question without an answer, as SQuAD 1.1 and other kinds than span.
        Otherwise it is the task's training.null_threshold, or, if that is "best", the one with the best F1 on the dev
        set.
        """
        if not any(isinstance(example, SpanExample) and example.is_impossible for example in self.train.examples):
            return inf
        if self.task.training.null_threshold != "best":
            return self.task.training.null_threshold

        texts = [prediction.text for prediction in predictions]
        null_scores = [prediction.null_score for prediction in predictions]
        return best_threshold(texts, self.kind.references(self.others[DEV].examples), null_scores)

    def folder_of_seed(self, seed: int) -> Path:
        return self.output / f"seed-{seed}"
