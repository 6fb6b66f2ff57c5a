"""Says after which steps a run evaluates, writes a line of metrics, or has other work before the next step."""

from __future__ import annotations

from trainer.config.phases import Phase
from trainer.config.schema import Recipe


def evaluation_is_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether held-out pairs are evaluated after `step`: every evaluation.every steps, and between phases."""
    section = run_recipe.evaluation
    if section.pairs is None or step == 0:
        return False
    return step % section.every == 0 or step in (phase.steps_before, phase.last_step)


def line_is_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether metrics.jsonl has a line for a step."""
    run = run_recipe.run
    ends_interval = step == 1 or step % run.log_every == 0 or step == run.max_steps
    return ends_interval or evaluation_is_due(run_recipe, phase, step)


def something_may_be_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether something may have to be done after a step before the next one begins.

    Whether a checkpoint is due also depends on whether the step made its update, which is not known yet.
    """
    return (
        evaluation_is_due(run_recipe, phase, step)
        or step % run_recipe.checkpoint.every == 0
        or step % run_recipe.anomaly.replica_check_every == 0
    )
