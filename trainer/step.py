"""One step: forward and backward over a rank's micro-batches, and the update, if nothing speaks against it.

The loss of a step is summed over the whole global batch and divided by its number of masked tokens (and of rows, for
the pair loss), so the gradient depends neither on the ranks nor on how a batch was cut into micro-batches. Dropout is
seeded by (seed, step, rank), so nothing random has to be saved.

A step can be left between two micro-batches, for a stop must not wait until a long one ends (stop_agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator

from schemas.errors import DataError
from trainer.anomaly_guard import AnomalyGuard
from trainer.distributed.loss_scale import loss_scale
from trainer.models.batch import PackedBatch


@dataclass(frozen=True)
class BatchCounts:
    """Of a global batch: masked tokens, labeled pairs, tokens, tokens with padding. stop: a rank was asked to stop."""

    masked: float
    pairs: float
    tokens: float
    computed: float
    stop: bool


@dataclass(frozen=True)
class StepResult:
    """What one step summed over all ranks; the gradient's norm before clipping; why it made no update, if it did not.

    loss: the two sums divided by their counts, added up.
    """

    counts: BatchCounts
    mlm_sum: float
    mlm_correct: float
    pair_sum: float
    pair_correct: float
    loss: float
    grad_norm: float
    fault: str | None


def count_batch(engine: DeepSpeedEngine, batches: list[PackedBatch], stop: bool) -> BatchCounts:
    """Summed over all ranks. `stop` travels with it: every rank learns of a signal in the same step, for nothing."""
    counts = torch.tensor(
        [
            sum(batch.predicted for batch in batches),
            sum(engine.module.labeled_pairs(batch) for batch in batches),  # type: ignore[operator]
            sum(batch.tokens for batch in batches),
            sum(len(batch.ids_T) for batch in batches),
            stop,
        ],
        dtype=torch.float64,
        device=engine.device,
    )
    dist.all_reduce(counts)
    *numbers, stopping = counts.tolist()
    return BatchCounts(*numbers, stop=stopping > 0)


def check_masked(counts: BatchCounts, step: int) -> None:
    """Raise DataError, on all ranks together, when nothing of a global batch is to be predicted: it has no loss."""
    if not counts.masked:
        error = DataError(
            f"The batch of step {step} has no masked token: its rows hold unknown words alone, or their stored masks "
            "are empty. Use a vocabulary that covers the text, or rebuild the pairs."
        )
        error.everywhere = True  # the counts are sums over all ranks
        raise error


def take_step(
    engine: DeepSpeedEngine,
    batches: list[PackedBatch],
    counts: BatchCounts,
    guard: AnomalyGuard,
    leaves_step: Callable[[int, int], bool],
) -> StepResult | None:
    """Make one update from this rank's micro-batches.

    `leaves_step(i, n)` is asked before micro-batch i of n. Returns None when it said yes: then no update was made, and
    gradients of part of the batch are left behind, so the engine can be saved but must not take another step.
    """
    # DeepSpeed averages over ranks and micro-batches; the loss is a sum over both
    scale = dist.get_world_size() * len(batches) * loss_scale(engine)
    sums = torch.zeros(4, dtype=torch.float64, device=engine.device)

    for i, batch in enumerate(batches):
        if leaves_step(i, len(batches)):
            return None
        losses = engine(batch)
        engine.backward((losses.mlm_sum / counts.masked + losses.pair_sum / max(counts.pairs, 1)) * scale)
        sums += torch.stack(list(losses)).detach().double()
        if i == len(batches) - 1:  # the guard must know the loss of all before the update
            dist.all_reduce(sums)
            guard.expect(_loss(sums.tolist(), counts))
        engine.step()

    fault = guard.verdict()
    mlm_sum, mlm_correct, pair_sum, pair_correct = sums.tolist()
    return StepResult(
        counts=counts,
        mlm_sum=mlm_sum,
        mlm_correct=mlm_correct,
        pair_sum=pair_sum,
        pair_correct=pair_correct,
        loss=_loss(sums.tolist(), counts),
        grad_norm=guard.norm,
        fault=fault,
    )


def seed_dropout(seed: int) -> None:
    """As torch.manual_seed, which looks for devices of every kind each time: half a millisecond."""
    accelerator: Any = get_accelerator()
    torch.default_generator.manual_seed(seed)
    if accelerator.device_name() != "cpu":
        accelerator.manual_seed(seed)


def _loss(sums: list[float], counts: BatchCounts) -> float:
    mlm_sum, _, pair_sum, _ = sums
    return mlm_sum / counts.masked + pair_sum / max(counts.pairs, 1)
