"""When a run is examined for a loss that stays where word frequencies alone lead, and what is measured for it.

A run is examined past its warm-up and its first 500 steps, or a fifth of a short run, and then each time that it has
become twice as long. Held-out data decide if the run has any, otherwise the mean training loss of the last interval.

All ranks decide alike, from sums over all of them, and compute the effective rank together: nothing of this is done by
rank 0 alone, and a run whose loss is below the line pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from trainer.config.schema import Recipe
from trainer.loss_doctor.causes import Measurements, likely_cause, worded
from trainer.loss_doctor.effective_rank import effective_rank, second_moments
from trainer.metrics.interval import Interval
from trainer.models.batch import PackedBatch

MARGIN = 0.05
"""Nats. A loss that is less than this below the line is at the line."""

FIRST_STEP = 500
FEWEST_STEPS = 50
"""A run is never examined before: shorter ones are trials."""

RATES_SAMPLED = 1_000
"""Steps whose learning rates are added up, at most."""

RELATIVE_UPDATES = ("lamb",)
"""Optimizers whose learning rate is a share of the weights' size. That of the others is a distance."""

Figures = Mapping[str, float | None]


def first_examination(recipe: Recipe) -> int:
    """Return the step after which a run is examined first."""
    early = min(FIRST_STEP, -(-recipe.run.max_steps // 5))
    return max(recipe.schedule.warmup_steps, early, FEWEST_STEPS)


def is_due(recipe: Recipe, step: int, examined: int) -> bool:
    """Return whether a run should be examined after `step`. examined: the step of the last time, 0 if none."""
    return step >= max(first_examination(recipe), 2 * examined)


@dataclass(frozen=True)
class Level:
    """A loss, and the line that it should get below."""

    loss: float
    line: float
    kept_loss: float | None

    @property
    def is_at_line(self) -> bool:
        return self.loss > self.line - MARGIN


def level_of(figures: Figures, prefix: str = "") -> Level | None:
    """Return the loss at masked places, or at all predicted ones without these, and its line; None if one is missing.

    figures: by the names of metrics.jsonl. prefix: "eval_" for those of held-out data.
    """
    loss = figures.get(f"{prefix}mlm_loss_masked", figures.get(f"{prefix}mlm_loss"))
    line = figures.get(f"{prefix}unigram_loss")
    if loss is None or line is None:
        return None
    return Level(loss, line, figures.get(f"{prefix}mlm_loss_kept"))


@dataclass(frozen=True)
class Patient:
    """What an examination looks at after `step`.

    recipe: the phase's. first_step: of the phase. learning_rate_at: of a step. corpus_tokens: of all rows of the phase.
    tokens: that the run was trained on. skipped_steps: those that made no update.
    """

    recipe: Recipe
    step: int
    first_step: int
    learning_rate_at: Callable[[int], float]
    corpus_tokens: int
    tokens: int
    skipped_steps: int
    interval: Interval


def diagnosis(
    patient: Patient, level: Level, engine: DeepSpeedEngine, micro_batches: list[PackedBatch]
) -> tuple[str, str]:
    """Return the likely cause of a loss at the line, by name and as a sentence. A collective call.

    micro_batches: all ranks have equally many.
    """
    interval = patient.interval
    measurements = Measurements(
        step=patient.step,
        line=level.line,
        loss=level.loss,
        kept_loss=level.kept_loss,
        masked_share=interval.masked / max(interval.tokens, 1),
        recipe_share=patient.recipe.predicted_share,
        movement=movement(patient),
        skipped_steps=patient.skipped_steps,
        epochs=patient.tokens / max(patient.corpus_tokens, 1),
        batch_tokens=patient.tokens / patient.step,
        effective_rank=rank_at_masked_places(engine, micro_batches),
    )
    name = likely_cause(measurements)
    return name, worded(name, measurements)


def movement(patient: Patient) -> float:
    """Return the most that the phase's updates can have moved a weight, in standard deviations of the initial ones.

    An update of Adam moves a weight by about its learning rate, so all of them by the sum of these at most. LAMB's
    rates are shares of the weights themselves.
    """
    steps = range(patient.first_step, patient.step + 1)
    stride = -(-len(steps) // RATES_SAMPLED)
    sampled = [patient.learning_rate_at(step) for step in steps[::stride]]
    total = sum(sampled) / max(len(sampled), 1) * len(steps)

    unit = 1.0 if patient.recipe.optimizer.kind in RELATIVE_UPDATES else patient.recipe.model.initializer_range
    return total / unit


@torch.no_grad()
def rank_at_masked_places(engine: DeepSpeedEngine, micro_batches: list[PackedBatch]) -> float:
    """Return the effective rank of the last layer's vectors at the masked places of all ranks. A collective call."""
    model: Any = engine.module
    device = torch.device(engine.device or "cpu")
    vectors: list[Tensor] = []
    moments: list[Tensor] = []

    def keep(_: Any, inputs: tuple[Tensor, ...]) -> None:
        vectors.append(inputs[0])

    # The head gets these vectors in any family. The passes are the engine's, so that ZeRO 3 gathers the weights, and
    # not compiled, because a compiled head has no hooks.
    hook = model.mlm_head.register_forward_pre_hook(keep)
    engine.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            for batch in micro_batches:
                engine(batch.to(device))

                # Padded batches have further places, whose vectors mean nothing.
                moments.append(second_moments(vectors.pop()[: batch.predicted]))
    finally:
        engine.train()
        hook.remove()

    moments_DD = torch.stack(moments).sum(0)
    dist.all_reduce(moments_DD)
    return effective_rank(moments_DD)
