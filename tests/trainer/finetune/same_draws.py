"""transformers' Trainer with the random choices of `clozeline finetune`, to compare the final weights of both.

Initial weights, batches, dropout masks and learning rates are those of `clozeline finetune`. Everything else is
Trainer's own: padding, loss, gradients and their clipping, AdamW, and the choice of parameters with weight decay. So
the final weights of both programs must agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from trainer.finetune.batches import Batch, training_batches
from trainer.finetune.kinds.kind import Feature
from trainer.finetune.model import build_model
from trainer.finetune.optimizer import rate_share
from trainer.finetune.run import Order, read_inputs
from trainer.finetune.task import Task, TaskTrainingSection
from trainer.finetune.training import dropout_seed


@dataclass
class Batches:
    """Yields the batches of one epoch each time it is iterated over, as the batch sampler of a DataLoader."""

    features: Sequence[Feature]
    size: int
    seed: int
    epoch: int = 0

    def __len__(self) -> int:
        return -(-len(self.features) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        batches = training_batches(self.features, self.size, self.seed, self.epoch)
        self.epoch += 1
        return iter(batches)


@dataclass
class SeededDropout(TrainerCallback):
    """Seeds torch before each step as `clozeline finetune` does on a single rank."""

    seed: int

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        torch.manual_seed(dropout_seed(self.seed, step=state.global_step + 1, rank=0))


class SameDrawsTrainer(Trainer):
    """Trains on the batches of `clozeline finetune`, at its learning rates, with its dropout masks."""

    def __init__(self, features: Sequence[Feature], training: TaskTrainingSection, seed: int, **rest: Any):
        """features: of the training set, in the order of train_dataset. rest: the arguments of Trainer."""
        super().__init__(callbacks=[SeededDropout(seed)], **rest)
        self.batches = Batches(features, training.batch, seed)
        self.warmup_ratio = training.warmup_ratio

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert self.train_dataset is not None
        return DataLoader(self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        """Return the schedule of `clozeline finetune`.

        In Trainer's own schedule every rate comes one step later. The first one is 0, so that step changes nothing.
        """

        def share(finished_steps: int) -> float:
            # LambdaLR also asks for the rate after the last step.
            step = min(finished_steps + 1, num_training_steps)
            return rate_share(step, num_training_steps, self.warmup_ratio)

        self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, share)
        return self.lr_scheduler


def trainer_with_same_draws(encoder: str, task: Task, data: str, seed: int, **rest: Any) -> SameDrawsTrainer:
    """Return a Trainer for a task that starts from the initial weights of `clozeline finetune`, head included.

    encoder: the encoder's folder. data: the folder of the task's files. rest: the arguments of Trainer except `model`.
    train_dataset must have the examples of the training set in the order of the file, one for each of our features.
    """
    inputs = read_inputs(Order(encoder, task, data, output="unused", seeds=[seed]))
    features = inputs.kind.training_features(inputs.data.train)
    if len(features) != len(rest["train_dataset"]):
        raise ValueError(f"{len(rest['train_dataset'])} training examples, expected {len(features)}.")

    model = build_model(encoder, task, inputs.kind, seed, random_weights=False)
    return SameDrawsTrainer(features, task.training, seed, model=model, **rest)


def arguments_of(training: TaskTrainingSection, folder: str, **rest: Any) -> TrainingArguments:
    """Return Trainer's arguments for the values of a task. folder: for files that Trainer may write."""
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=training.epochs,
        per_device_train_batch_size=training.batch,
        learning_rate=training.lr,
        weight_decay=training.weight_decay,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        **rest,
    )
