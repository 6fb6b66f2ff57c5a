"""Decides when to examine a run for a loss stuck at the baseline of word frequencies, and measures what that needs.

A run is examined after its warm-up and its first 500 steps, or a fifth of a short run, and then each time that it has
become twice as long. A later phase is examined only when as much of it has passed. The held-out loss decides if the run
has one, otherwise the mean training loss of the last interval.

All ranks reach the same decision from sums over all of them, and compute the effective rank together. A run whose loss
is below the baseline pays nothing for this.

Shape suffix: D width of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.data.stream import shown_shares
from trainer.loss_doctor.causes import Measurements, likely_cause, worded
from trainer.loss_doctor.effective_rank import effective_rank, second_moments
from trainer.metrics.interval import Interval
from trainer.models.batch import PackedBatch

MARGIN = 0.05
"""In nats. A loss that is not at least this far below the baseline counts as at the baseline."""

FIRST_STEP = 500
FEWEST_STEPS = 50
"""No phase is examined before this step of it, because shorter runs are trials."""

RATES_SAMPLED = 1_000
"""The most steps whose learning rates are added up."""

RELATIVE_UPDATES = ("lamb",)
"""Optimizers whose learning rate is relative to the size of the weights. For the others it is an absolute distance."""

Figures = Mapping[str, float | None]


def first_examination(phase: Phase) -> int:
    """Return the step of the run after which a phase is examined for the first time."""
    early = min(FIRST_STEP, -(-(phase.last_step - phase.steps_before) // 5))
    after_warmup = phase.schedule_before + phase.recipe.schedule.warmup_of(phase.schedule_steps)
    return max(after_warmup, phase.steps_before + max(early, FEWEST_STEPS))


def is_due(phase: Phase, step: int, examined: int) -> bool:
    """Return whether a run should be examined after `step`. examined: the step of the last examination, 0 if none."""
    return step >= max(first_examination(phase), 2 * examined)


@dataclass(frozen=True)
class ExaminedLoss:
    """A loss, and the baseline that it should get below: the loss of word frequencies alone. In nats.

    kept_loss: at tokens that were left unchanged, None if there are none.
    """

    loss: float
    baseline: float
    kept_loss: float | None

    @property
    def is_at_baseline(self) -> bool:
        """Whether the loss is less than MARGIN below the baseline, or above it."""
        return self.loss > self.baseline - MARGIN


def examined_loss(figures: Figures, prefix: str = "") -> ExaminedLoss | None:
    """Return the loss at [MASK] places, or if there are none at all predicted places, and its baseline.

    figures: by the names of metrics.jsonl. prefix: "eval_" for those of held-out data. Returns None if the loss or the
    baseline is missing.
    """
    loss = figures.get(f"{prefix}mlm_loss_masked")
    if loss is None:
        loss = figures.get(f"{prefix}mlm_loss")
    baseline = figures.get(f"{prefix}unigram_loss")
    if loss is None or baseline is None:
        return None
    return ExaminedLoss(loss, baseline, figures.get(f"{prefix}mlm_loss_kept"))


@dataclass(frozen=True)
class ExaminedRun:
    """The state of a run that an examination after `step` looks at.

    recipe: the phase's. first_step: of the phase. learning_rate_at: returns the learning rate of a step of the run.
    corpus_tokens: of all rows of the phase. tokens: how many the run was trained on, in all phases.
    skipped_steps: those that made no update. interval: the sums since the last line of metrics.
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
    run: ExaminedRun, examined: ExaminedLoss, engine: DeepSpeedEngine, micro_batches: list[PackedBatch]
) -> tuple[str, str]:
    """Return the name of the likely cause of a loss at the baseline, and a sentence about it. A collective call.

    micro_batches: this rank's, the same number on all ranks, and at least one.
    """
    interval = run.interval
    tokens_per_step = run.tokens / run.step
    phase_steps = run.step - run.first_step + 1
    moved = movement(run)
    measurements = Measurements(
        step=run.step,
        baseline=examined.baseline,
        loss=examined.loss,
        kept_loss=examined.kept_loss if leaves_tokens(run.recipe) else None,
        masked_share=interval.masked / max(interval.tokens_of_losses, 1),
        recipe_share=run.recipe.least_predicted_share,
        movement=moved,
        update=moved / run.step,
        skipped_steps=run.skipped_steps,
        epochs=tokens_per_step * phase_steps / max(run.corpus_tokens, 1),
        batch_tokens=tokens_per_step,
        effective_rank=rank_at_masked_places(engine, micro_batches),
    )
    name = likely_cause(measurements)
    return name, worded(name, measurements)


def leaves_tokens(recipe: Recipe) -> bool:
    """Return whether some of the tokens to predict are left as they are in training, so that a model learns to copy.

    Evaluations always leave some. What a model makes of them says nothing about a training that has none.
    """
    _, kept_share = shown_shares(recipe.masking.replacement)
    return kept_share > 0


def movement(run: ExaminedRun) -> float:
    """Return the most that the run's updates can have moved a weight, in standard deviations of the initial weights.

    An update of Adam moves a weight by about the learning rate, so all updates together move it by at most the sum of
    the rates. LAMB's rates are relative to the weights themselves.
    """
    steps = range(1, run.step + 1)
    stride = -(-len(steps) // RATES_SAMPLED)
    sampled = [run.learning_rate_at(step) for step in steps[::stride]]
    total = sum(sampled) / max(len(sampled), 1) * len(steps)

    unit = 1.0 if run.recipe.optimizer.kind in RELATIVE_UPDATES else run.recipe.model.initializer_range
    return total / unit


@torch.no_grad()
def rank_at_masked_places(engine: DeepSpeedEngine, micro_batches: list[PackedBatch]) -> float:
    """Return the effective rank of the last layer's vectors at the masked places of all ranks. A collective call.

    micro_batches: as in `diagnosis`.
    """
    model: Any = engine.module
    device = torch.device(engine.device or "cpu")
    vectors: list[Tensor] = []

    # Added up in the order of the micro-batches, so that the sum is the same to the last bit each time. It becomes a
    # matrix with the first of them: every rank has at least one (data/share.py).
    moments_DD = torch.zeros((), dtype=torch.float64, device=device)

    def keep(_: Any, inputs: tuple[Tensor, ...]) -> None:
        vectors.append(inputs[0])

    # In every model family, these vectors are the input of the masked-LM head. The engine makes the passes, so that
    # ZeRO 3 gathers the weights, and they are not compiled, because a compiled head has no hooks.
    hook = model.mlm_head.register_forward_pre_hook(keep)
    engine.eval()
    try:
        with torch.compiler.set_stance("force_eager"):
            for batch in micro_batches:
                engine(batch.to(device))

                # In padded batches, the places after the predicted ones are padding, whose vectors are meaningless.
                moments_DD = moments_DD + second_moments(vectors.pop()[: batch.predicted])
    finally:
        engine.train()
        hook.remove()

    dist.all_reduce(moments_DD)
    return effective_rank(moments_DD)
