"""The data and resources that all seeds of a fine-tuning share: the task, its features, the folders, the watchdog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.distributed.stop import StopAgreement
from trainer.distributed.watchdog import Watchdog
from trainer.finetune.evaluation import ExampleSet
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.scores import threshold_for
from trainer.finetune.task import Task

TRAIN = "train"
DEV = "dev"
TEST = "test"


@dataclass(frozen=True)
class Job:
    """One task and one encoder.

    files: the paths of each set's files, by the name of the set. folder: the encoder's folder. output: the output
    folder. random_weights: whether the encoder starts untrained. new_head: whether a head that the folder has is
    replaced. train: the training set. others: the sets that get
    predictions after training, by name, "dev" first. stop: the ranks' agreement to stop after a signal.
    """

    task: Task
    files: dict[str, list[str]]
    folder: str
    output: Path
    random_weights: bool
    new_head: bool
    kind: Kind[Any, Any]
    train: ExampleSet
    others: dict[str, ExampleSet]
    device: torch.device
    stop: StopAgreement
    watchdog: Watchdog

    def threshold(self, predictions: Sequence[Any]) -> float | None:
        """Return the null score above which a question gets no answer, given the predictions for the dev set.

        Returns None if the task's kind is not span.
        """
        return threshold_for(self.task, self.train.examples, self.kind, self.others[DEV].examples, predictions)

    def folder_of_seed(self, seed: int) -> Path:
        """Return the folder that holds a seed's files."""
        return self.output / f"seed-{seed}"
