"""One step: forward and backward over a rank's micro-batches, and the update, if nothing speaks against it.

The loss of a step is summed over the whole global batch and divided by its number of masked tokens (and of rows, for
the pair loss), so the gradient depends neither on the ranks nor on how a batch was cut into micro-batches. Dropout is
seeded by (seed, step, rank), so nothing random has to be saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator

from schemas.errors import DataError
from trainer.guard import Guard
from trainer.loss_scale import loss_scale
from trainer.models.packing import PackedBatch


@dataclass
class Step:
    """What one step summed over all ranks: losses, counts and tokens; the gradient's norm before clipping."""

    loss: float
    mlm_loss: float
    mlm_accuracy: float
    pair_loss: float | None
    pair_accuracy: float | None
    grad_norm: float
    tokens: int
    padding_fraction: float


@dataclass
class Counts:
    """Of a global batch: masked tokens, labelled pairs, tokens, tokens with padding. stop: a rank was asked to stop."""

    masked: float
    pairs: float
    tokens: float
    computed: float
    stop: bool


def count(engine: DeepSpeedEngine, batches: list[PackedBatch], stop: bool) -> Counts:
    """Summed over all ranks. `stop` travels with it: every rank learns of a signal in the same step, for nothing."""
    counts = torch.tensor(
        [
            sum(batch.predicted for batch in batches),
            sum(engine.module.labelled_pairs(batch) for batch in batches),  # type: ignore[operator]
            sum(batch.tokens for batch in batches),
            sum(len(batch.ids_T) for batch in batches),
            stop,
        ],
        dtype=torch.float64,
        device=engine.device,
    )
    dist.all_reduce(counts)
    *numbers, stopping = counts.tolist()
    return Counts(*numbers, stop=stopping > 0)


def check_masked(counts: Counts, step: int) -> None:
    """Raise DataError, on all ranks together, when nothing of a global batch is to be predicted: it has no loss."""
    if not counts.masked:
        raise DataError(
            f"The batch of step {step} has no masked token: its rows hold unknown words alone, or their stored masks "
            "are empty. Use a vocabulary that covers the text, or rebuild the pairs."
        )


def take_step(
    engine: DeepSpeedEngine, batches: list[PackedBatch], counts: Counts, guard: Guard, dropout_key: int
) -> tuple[Step, str | None]:
    """One update from this rank's micro-batches, and why it was not made, or None when it was."""
    seed_dropout(dropout_key >> 1)  # torch takes 63 bits
    # DeepSpeed averages over ranks and micro-batches; the loss is a sum over both
    scale = dist.get_world_size() * len(batches) * loss_scale(engine)
    sums = torch.zeros(4, dtype=torch.float64, device=engine.device)
    for i, batch in enumerate(batches):
        losses = engine(batch)
        engine.backward((losses.mlm_sum / counts.masked + losses.pair_sum / max(counts.pairs, 1)) * scale)
        sums += torch.stack(list(losses)).detach().double()
        if i == len(batches) - 1:  # the guard must know the loss of all before the update
            dist.all_reduce(sums)
            guard.expect(_loss(sums.tolist(), counts))
        engine.step()
    fault = guard.verdict()
    mlm_sum, mlm_correct, pair_sum, pair_correct = sums.tolist()
    step = Step(
        loss=_loss(sums.tolist(), counts),
        mlm_loss=mlm_sum / counts.masked,
        mlm_accuracy=mlm_correct / counts.masked,
        pair_loss=pair_sum / counts.pairs if counts.pairs else None,
        pair_accuracy=pair_correct / counts.pairs if counts.pairs else None,
        grad_norm=guard.norm,
        tokens=int(counts.tokens),
        padding_fraction=1 - counts.tokens / counts.computed,
    )
    return step, fault


def seed_dropout(seed: int) -> None:
    """As torch.manual_seed, which looks for devices of every kind each time: half a millisecond."""
    accelerator: Any = get_accelerator()
    torch.default_generator.manual_seed(seed)
    if accelerator.device_name() != "cpu":
        accelerator.manual_seed(seed)


def _loss(sums: list[float], counts: Counts) -> float:
    mlm_sum, _, pair_sum, _ = sums
    return mlm_sum / counts.masked + pair_sum / max(counts.pairs, 1)
