"""Says after which steps a run evaluates, writes a line of metrics, or has other work before the next step."""

from __future__ import annotations

from trainer.checkpoint.format import location, read_evaluation
from trainer.config.phases import Phase
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.metrics.log import is_evaluation, read_metrics


def evaluation_is_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether held-out pairs are evaluated after `step`: every evaluation.every steps, and between phases."""
    section = run_recipe.evaluation
    if section.pairs is None or step == 0:
        return False
    return step % section.every == 0 or step in (phase.steps_before, phase.last_step)


def is_evaluated(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether the evaluation that is due after `step`, if one is, is in its checkpoint and in the metrics.

    A collective call.
    """
    if not evaluation_is_due(run_recipe, phase, step):
        return True
    run = run_recipe.run.folder

    def is_recorded() -> bool:
        has_line = any(line["step"] == step and is_evaluation(line) for line in read_metrics(run))
        return has_line and bool(read_evaluation(location(run, step)))

    return run_on_rank_0(is_recorded)


def line_is_due(run_recipe: Recipe, step: int) -> bool:
    """Return whether metrics.jsonl has a line with the training losses up to a step."""
    run = run_recipe.run
    return step == 1 or step % run.log_every == 0 or step == run.max_steps


def something_may_be_due(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether something may have to be done after a step before the next one begins.

    Whether a checkpoint is due also depends on whether the step made its update, which is not known yet.
    """
    return (
        evaluation_is_due(run_recipe, phase, step)
        or step % run_recipe.checkpoint.every == 0
        or step % run_recipe.anomaly.replica_check_every == 0
    )
