"""One training step: forward and backward passes over a rank's micro-batches, then the update unless it is bad.

The loss of a step is

    sum(masked-token losses) / (masked tokens of the global batch) + sum(pair losses) / (labeled pairs of the same)

so it depends neither on the number of ranks nor on how the global batch is cut into micro-batches. Therefore the counts
are summed over all ranks (`count_batch`) before the first backward pass (`take_step`).

Dropout is seeded by (seed, step, rank), so no random state has to be saved.

A step can end between two micro-batches: after a stop signal there may be no time to finish a long one
(trainer/distributed/stop_agreement.py).

Shape suffix: 4, the four sums of trainer.models.pretraining.Losses in its order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from schemas.errors import DataError
from trainer.anomaly import AnomalyGuard
from trainer.distributed.loss_scale import loss_scale
from trainer.models.batch import PackedBatch

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class BatchCounts:
    """Sums over a global batch.

    masked: tokens to predict. pairs: rows whose pair label is predicted. tokens: real tokens.
    computed: tokens with padding. stop: whether any rank was asked to stop.
    """

    masked: float
    pairs: float
    tokens: float
    computed: float
    stop: bool


@dataclass(frozen=True)
class StepResult:
    """What one step computed, over all ranks.

    The four sums are those of trainer.models.pretraining.Losses. loss: the loss of the global batch.
    grad_norm: before clipping. fault: why the step made no update, None if it made one.
    """

    counts: BatchCounts
    mlm_sum: float
    mlm_correct: float
    pair_sum: float
    pair_correct: float
    loss: float
    grad_norm: float
    fault: str | None


def count_batch(engine: DeepSpeedEngine, micro_batches: list[PackedBatch], stop: bool) -> BatchCounts:
    """Sum the counts of this rank's micro-batches over all ranks. A collective call.

    `stop` is whether this rank was asked to stop. It travels with the counts, so that all ranks learn of a signal in
    the same step without another exchange.
    """
    model: Any = engine.module
    counts = [
        sum(micro_batch.predicted for micro_batch in micro_batches),
        sum(model.labeled_pairs(micro_batch) for micro_batch in micro_batches),
        sum(micro_batch.tokens for micro_batch in micro_batches),
        sum(len(micro_batch.ids_T) for micro_batch in micro_batches),
        stop,
    ]

    # float64 holds counts exactly up to 2 ** 53, float32 only up to 2 ** 24.
    sums = torch.tensor(counts, dtype=torch.float64, device=engine.device)
    dist.all_reduce(sums)

    masked, pairs, tokens, computed, ranks_to_stop = sums.tolist()
    return BatchCounts(masked, pairs, tokens, computed, stop=ranks_to_stop > 0)


def check_masked(counts: BatchCounts, step: int) -> None:
    """Raise DataError on all ranks if a global batch has nothing to predict, and so no loss."""
    if counts.masked:
        return

    error = DataError(
        f"The batch of step {step} has no masked token: its rows hold only unknown words, or their stored masks "
        "are empty. Use a vocabulary that covers the text, or rebuild the pairs."
    )
    # The counts are sums over all ranks, so every rank raises this.
    error.everywhere = True
    raise error


def take_step(
    engine: DeepSpeedEngine,
    micro_batches: list[PackedBatch],
    counts: BatchCounts,
    guard: AnomalyGuard,
    leaves_step: Callable[[int, int], bool],
) -> StepResult | None:
    """Make one update from this rank's micro-batches. A collective call.

    `leaves_step(i, n)` is called before micro-batch i of n and returns whether the step ends there. If it does, no
    update is made and None is returned. Gradients of part of the batch remain, so the engine may be saved afterwards
    but must not take another step.
    """
    # DeepSpeed averages gradients over ranks and micro-batches, but `normalized_loss` of one micro-batch is a share of
    # a sum that is already divided by the global counts. So each share is multiplied by ranks * micro-batches first.
    micro_batch_count = len(micro_batches)
    gradient_scale = dist.get_world_size() * micro_batch_count * loss_scale(engine)
    sums_4 = torch.zeros(4, dtype=torch.float64, device=engine.device)

    for index, micro_batch in enumerate(micro_batches):
        if leaves_step(index, micro_batch_count):
            return None

        losses = engine(micro_batch)
        engine.backward(normalized_loss(losses.mlm_sum, losses.pair_sum, counts) * gradient_scale)
        sums_4 += torch.stack(list(losses)).detach().double()

        # Only the last engine.step() makes the update. The guard judges it by the loss of the whole global batch.
        if index == micro_batch_count - 1:
            dist.all_reduce(sums_4)
            guard.expect(_loss_of(sums_4, counts))

        engine.step()

    fault = guard.verdict()
    mlm_sum, mlm_correct, pair_sum, pair_correct = sums_4.tolist()
    return StepResult(
        counts=counts,
        mlm_sum=mlm_sum,
        mlm_correct=mlm_correct,
        pair_sum=pair_sum,
        pair_correct=pair_correct,
        loss=normalized_loss(mlm_sum, pair_sum, counts),
        grad_norm=guard.norm,
        fault=fault,
    )


def normalized_loss(mlm_sum: Number, pair_sum: Number, counts: BatchCounts) -> Number:
    """Divide two sums of losses by the counts of the global batch and add them up. A batch may have no pair label."""
    return mlm_sum / counts.masked + pair_sum / max(counts.pairs, 1)


def _loss_of(sums_4: Tensor, counts: BatchCounts) -> float:
    mlm_sum, _, pair_sum, _ = sums_4.tolist()
    return normalized_loss(mlm_sum, pair_sum, counts)


def seed_dropout(seed: int) -> None:
    """Seed torch on the CPU and on this rank's device.

    torch.manual_seed does the same but looks for devices of every kind, which takes half a millisecond a step.
    """
    torch.default_generator.manual_seed(seed)

    accelerator: Any = get_accelerator()
    if accelerator.device_name() != "cpu":
        accelerator.manual_seed(seed)
