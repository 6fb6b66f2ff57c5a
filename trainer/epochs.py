"""Fixes the number of steps of a run whose length is given in passes over its data (run.max_epochs).

A pass over data.pairs is as many rows as its folders hold together, or as many tokens if batches are counted in tokens.
data.weights decide how many of them come from which folder, so one with a large share is read more than once in a pass.

A run has the whole steps that lie within run.max_epochs passes, and at most run.max_steps. Their number follows from
the recipe and the manifests of the pairs alone. It becomes run.max_steps before the first step, also in RUN/recipe.toml
and in checkpoints. So a run that resumes has the same schedule, and a run with that run.max_steps and without
run.max_epochs trains the same weights to the last bit.
"""

from __future__ import annotations

from fractions import Fraction

from schemas.errors import UsageError
from schemas.manifest import read_manifest
from schemas.terminal import counted
from trainer.config.schema import Recipe
from trainer.config.validate import check_schedule, faults_of_ramp, refuse
from trainer.data.share import batches_within
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger


def with_fixed_length(recipe: Recipe) -> Recipe:
    """Return the recipe with run.max_steps lowered to the steps that run.max_epochs allows. A collective call.

    Raises UsageError on every rank if no step fits or the schedule does not, and DataError if pairs are unfinished.
    """
    run = recipe.run
    if run.max_epochs is None:
        return recipe

    steps = run_on_rank_0(lambda: steps_of_epochs(recipe))
    if steps <= run.max_steps:
        logger.info("%s: run.max_epochs %g makes %s steps.", run.output, run.max_epochs, f"{steps:,}")
    else:
        steps = run.max_steps
        logger.info(
            "%s: run.max_steps %s ends before run.max_epochs %g. Raise run.max_steps to train longer.",
            run.output,
            f"{steps:,}",
            run.max_epochs,
        )
    return recipe.model_copy(update={"run": run.model_copy(update={"max_steps": steps})})


def steps_of_epochs(recipe: Recipe) -> int:
    """Return how many whole steps lie within run.max_epochs passes over the recipe's pairs.

    Raises UsageError if none does or the schedule needs more, and DataError if pairs are unfinished.
    """
    batch = recipe.batch
    unit, key = ("rows", "global_batch") if batch.global_tokens is None else ("tokens", "global_tokens")
    in_a_pass = sum(read_manifest(folder, "pairs").totals[unit] for folder in recipe.data.folders)

    # Through the decimal form: 0.3 means three tenths, not the binary fraction closest to it.
    passes = Fraction(str(recipe.run.max_epochs))
    steps = batches_within(batch, int(passes * in_a_pass))
    where = f"run.max_epochs {recipe.run.max_epochs:g} of {in_a_pass:,} {unit}"
    if steps == 0:
        raise UsageError(
            f"{where} is less than a batch: batch.{key} is {batch.size:,}. Lower that, raise run.max_epochs, or use "
            "more text."
        )

    where = f"{where} makes {counted(steps, 'step')}"
    check_schedule(recipe.optimizer, recipe.schedule, min(steps, recipe.run.max_steps), where)
    refuse(faults_of_ramp(batch, min(steps, recipe.run.max_steps)), where)
    return steps
