"""Finds a loss that is stuck at that of word frequencies alone, and names the likely cause.

A masked LM first learns how often each token occurs, which needs no context, and may stay there. So the run's loss is
compared with that of a model that knows nothing else (data/counts.py). docs/troubleshooting.md says when, and lists the
causes with their limits. Four of them follow from numbers that are logged anyway. If none of these holds, the effective
rank of the model's output tells whether it is nearly the same everywhere.

Shape suffixes: N vectors, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from trainer.anomaly import AnomalyGuard
from trainer.config.phases import Phase, evaluation_is_due, line_is_due, phases_of
from trainer.evaluate import Evaluation
from trainer.logs import logger
from trainer.metrics.log import ADVICE, CAUSE, Figures
from trainer.models.batch import PackedBatch
from trainer.optim.lr_schedule import learning_rate_of
from trainer.run_context import RunContext

# When a phase is compared for the first time. Shorter ones than FEWEST_STEPS are trials.
FIRST_STEP = 500
FEWEST_STEPS = 50

# Limits, chosen by hand except for the last one. A loss is in nats, and the movement of a weight in standard deviations
# of the initial weights.
MARGIN = 0.05  # a loss must be this far below that of word frequencies
LEAST_MOVEMENT = 0.5  # that all updates together must allow
SPIKE = 0.5  # above the loss of word frequencies: the model has lost even these
MANY_SKIPS = 0.01  # of the steps made no update
COPIED = 0.5  # of the loss at [MASK]: the loss at tokens that were left as they are
LEAST_STEPS = 500  # `tiny` is at the baseline after 60 steps and 0.2 nats below it after 70
FEW_STEPS = 5_000  # with batches of LARGE_BATCH_TOKENS or more
LARGE_BATCH_TOKENS = 4_096
LOW_RANK = 5.0  # a small model had 1.4 to 1.8 at the baseline, and 6 to 7 once its loss was 1.0 to 1.3 nats below it


class Measured(NamedTuple):
    """What is known about a run after `step`.

    loss: at places that show [MASK] if there are any. kept_loss: at tokens that were left as they are, None if training
    leaves none. movement: the most that all updates can have moved a weight. skipped: steps without an update.
    """

    step: int
    baseline: float
    loss: float
    kept_loss: float | None
    movement: float
    skipped: int
    tokens_per_step: float


def logged_cause(measured: Measured) -> tuple[str, str] | None:
    """Return the name of the first cause that the numbers show, and a sentence about it; None if they show none."""
    step, baseline, loss, kept_loss, movement, skipped, tokens_per_step = measured
    if movement < LEAST_MOVEMENT:
        unit = "standard deviations of the initial ones"
        return "learning_rate_low", f"All updates together can have moved a weight by {movement:.2g} {unit}."
    if loss > baseline + SPIKE or skipped > MANY_SKIPS * step:
        return "learning_rate_high", f"The loss is at {loss:.2f}, and {skipped} steps made no update."
    if kept_loss is not None and kept_loss < COPIED * loss:
        return "copying", f"The loss is {kept_loss:.2f} at tokens that were left as they are, so the model copies."
    if step < LEAST_STEPS or (step < FEW_STEPS and tokens_per_step >= LARGE_BATCH_TOKENS):
        return "few_steps", f"{step} steps of {tokens_per_step:.0f} tokens are few."
    return None


def cause_in_output(rank: float) -> tuple[str, str]:
    """Return the cause that the effective rank of the output shows, and a sentence about it."""
    if rank < LOW_RANK:
        return "collapsed_output", f"The model gives nearly the same vector everywhere (effective rank {rank:.1f})."
    return "unknown", f"Nothing that was measured explains it (effective rank {rank:.1f})."


@dataclass(frozen=True)
class Plateau:
    """Compares the loss of one phase with that of word frequencies alone, and logs why it is no better.

    evaluation: None if the run has no held-out data. baseline: the loss of word frequencies on the training text;
    without it, nothing is compared.
    """

    context: RunContext
    phase: Phase
    engine: DeepSpeedEngine
    guard: AnomalyGuard
    evaluation: Evaluation | None
    baseline: float | None

    @property
    def is_of_held_out(self) -> bool:
        """Whether the held-out loss decides. Evaluations mask tokens, which a causal LM does not learn."""
        return self.evaluation is not None and self.phase.recipe.objective.kind != "clm"

    def is_due(self, step: int) -> bool:
        """Return whether the loss after `step` is compared with that of word frequencies."""
        recipe = self.context.run_recipe
        is_held_out = self.is_of_held_out
        has_loss = evaluation_is_due(recipe, self.phase, step) if is_held_out else line_is_due(recipe, step)
        first = first_comparison(self.phase)
        if self.baseline is None or step < first or not has_loss:
            return False

        every = recipe.evaluation.every if is_held_out else recipe.run.log_every
        last_doubling = first * 2 ** floor(log2(step / first))
        is_first_since = step % every == 0 and step - last_doubling < every
        return is_first_since or step == recipe.run.max_steps

    def examine(self, step: int, tokens: int, figures: Figures, micro_batches: list[PackedBatch]) -> Figures:
        """Return {"loss_doctor": cause} if the loss after `step` is no better than that of word frequencies, else {}.

        tokens: trained on so far. figures: of that step's line. micro_batches: this rank's of a step, for a run without
        held-out data. Logs the cause. A collective call.
        """
        measured = self._measured(step, tokens, figures)
        if measured is None or measured.loss <= measured.baseline - MARGIN:
            return {}

        self.context.watchdog.at(f"step {step}, looking for why the loss does not fall")
        cause = logged_cause(measured)
        if cause is None:
            if self.evaluation is not None and self.is_of_held_out:
                micro_batches = self.evaluation.first_batch()
            cause = cause_in_output(rank_at_masked_places(self.engine, micro_batches))

        name, finding = cause
        logger.info(
            "%s: step %d: the loss of predicted tokens (%.2f) is no better than that of word frequencies alone (%.2f). "
            "Likely cause: %s. %s %s",
            self.context.run_recipe.run.folder,
            step,
            measured.loss,
            measured.baseline,
            name.replace("_", " "),
            finding,
            ADVICE[name],
        )
        return {CAUSE: name}

    def _measured(self, step: int, tokens: int, figures: Figures) -> Measured | None:
        """Return what is known about the run, None if the figures have no loss or no baseline."""
        recipe = self.phase.recipe
        prefix = "eval_" if self.is_of_held_out else ""
        loss = figures.get(f"{prefix}mlm_loss_masked")
        if loss is None:
            loss = figures.get(f"{prefix}mlm_loss")
        baseline = figures.get(f"{prefix}unigram_loss")
        if loss is None or baseline is None:
            return None

        # Evaluations always leave some tokens as they are, and what a model makes of them then says nothing.
        leaves_tokens = recipe.masking.replacement.split("/")[1] != "0"
        kept_loss = figures.get(f"{prefix}mlm_loss_kept") if leaves_tokens else None

        # An update of Adam moves a weight by about the learning rate. LAMB's rates are relative to the weights.
        phases = phases_of(self.context.run_recipe)
        rates = [learning_rate_of(phases, number) for number in range(1, step + 1, -(-step // 1000))]
        unit = 1.0 if recipe.optimizer.kind == "lamb" else recipe.model.initializer_range
        movement = sum(rates) / len(rates) * step / unit
        return Measured(step, baseline, loss, kept_loss, movement, self.guard.history.skipped, tokens / step)


def first_comparison(phase: Phase) -> int:
    """Return the step of the run after which the loss of a phase is compared for the first time."""
    early = min(FIRST_STEP, -(-(phase.last_step - phase.steps_before) // 5))
    after_warmup = phase.schedule_before + phase.recipe.schedule.warmup_of(phase.schedule_steps)
    return max(after_warmup, phase.steps_before + max(early, FEWEST_STEPS))


def rank_at_masked_places(engine: DeepSpeedEngine, micro_batches: list[PackedBatch]) -> float:
    """Return the effective rank of the last layer's vectors at the masked places of all ranks. A collective call.

    micro_batches: this rank's, the same number on all ranks, and at least one.
    """
    model: Any = engine.module
    device = torch.device(engine.device or "cpu")
    vectors: list[Tensor] = []
    moments_DD = torch.zeros((), dtype=torch.float64, device=device)

    # In every model family, these vectors are the input of the masked-LM head. The engine makes the passes, so that
    # ZeRO 3 gathers the weights, and they are not compiled, because a compiled head has no hooks.
    hook = model.mlm_head.register_forward_pre_hook(lambda _, inputs: vectors.append(inputs[0]))
    engine.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            for batch in micro_batches:
                engine(batch.to(device))
                # In padded batches, the places after the predicted ones are padding, whose vectors are meaningless.
                x_ND = vectors.pop()[: batch.predicted].double()
                moments_DD = moments_DD + x_ND.T @ x_ND
    finally:
        engine.train()
        hook.remove()

    dist.all_reduce(moments_DD)
    return effective_rank(moments_DD)


def effective_rank(moments_DD: Tensor) -> float:
    """Return in how many directions vectors point, from 1 to their width; 0 if all are 0 or any is not finite.

    This is the participation ratio of the eigenvalues of moments_DD, the sum of the vectors' outer products:
    (sum of eigenvalues)^2 / sum of squared eigenvalues. The mean is not subtracted, because vectors that are all equal
    are what has to be found.
    """
    rank = moments_DD.diagonal().sum().square() / moments_DD.square().sum()
    return float(rank) if bool(rank.isfinite()) else 0.0
