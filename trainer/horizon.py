"""Fixes the number of steps of a run whose length is given in hours (run.max_hours).

A run is a function of its data, its recipe, its seed and its number of steps, and only the last of these depends on how
fast the machine is. So the number is fixed once, before the first step, and becomes run.max_steps:

    1. A rehearsal (trainer/rehearsal.py) trains on the run's own data and machine, and throws the result away.
    2. `steps_that_fit` finds how many steps fit into the remaining time, given the measured speed.
    3. The number is stored in RUN/recipe.toml and in every checkpoint. A run that resumes takes it from its checkpoint,
       on any number of ranks. Until a checkpoint exists, every start measures.
    4. Every process measures its first real steps, too. If they take much more or less time than the number rests on,
       it is fixed again (trainer/pace.py), which the run's history records with its step.

So a run with run.max_steps set to that number, and without run.max_hours, trains the same weights to the last bit,
unless the history says that the number changed.

The hours begin when `pretrain` is called, and include the rehearsal. They are not a hard limit: if the machine becomes
slower after that, the run takes longer. A scheduler that ends a job sends a signal, and the run then saves
(distributed/stop.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import UsageError
from trainer.checkpoint.state import FoundCheckpoint
from trainer.config.schema import Recipe
from trainer.config.validate import check_schedule
from trainer.logs import logger

WARM_STEPS = 5
"""The first steps of an engine, which are slow and are not measured."""

SECONDS = 30.0
SHARE = 0.01
"""How long steps are measured: SECONDS or this share of the hours, the shorter of the two."""

RESERVE = 0.02
"""The share of the hours that is held back, in case steps are slower than those that were measured."""


@dataclass(frozen=True)
class Speed:
    """What a rehearsal measured, in seconds except for `tokens`.

    start: opening the data and building the engine. step, evaluation, save: one of each; evaluation is 0 in a run that
    has none. tokens: the mean number of tokens in a step, without padding.
    """

    start: float
    step: float
    evaluation: float
    save: float
    tokens: float


def fixed_steps(recipe: Recipe, speed: Speed, elapsed: float) -> int:
    """Return the number of steps of a run that is about to begin, and log it.

    elapsed: seconds since `pretrain` was called, including the rehearsal. Raises UsageError if no step fits.
    """
    hours = recipe.run.max_hours or 0.0
    seconds_left = hours * 3600 * (1 - RESERVE) - elapsed - speed.start
    steps = steps_that_fit(seconds_left, speed, recipe)
    if steps == 0:
        raise UsageError(
            f"run.max_hours {hours:g} is too short: starting and measuring take {elapsed + speed.start:,.0f} s, and "
            f"then a step takes {speed.step:,.1f} s, its evaluation {speed.evaluation:,.1f} s and its checkpoint "
            f"{speed.save:,.1f} s. Raise it, or give a number of steps in its place: run.max_hours=none with "
            "run.max_steps=N."
        )

    tokens_per_second = speed.tokens / speed.step
    bound = ", the most that run.max_steps allows" if steps == recipe.run.max_steps else ""
    logger.info(
        "%s: fits %s steps into %g hours%s (measured %s tokens/s).",
        recipe.run.output,
        f"{steps:,}",
        hours,
        bound,
        f"{tokens_per_second:,.0f}",
    )
    return steps


def steps_that_fit(seconds: float, speed: Speed, recipe: Recipe) -> int:
    """Return the largest number of steps that fit into `seconds` with their evaluations and checkpoints.

    The result is at least 0 and at most run.max_steps.
    """
    low = 0
    high = recipe.run.max_steps

    # A binary search, because the time rises with the number of steps.
    while low < high:
        middle = (low + high + 1) // 2
        if seconds_of(middle, speed, recipe) <= seconds:
            low = middle
        else:
            high = middle - 1
    return low


def seconds_of(steps: int, speed: Speed, recipe: Recipe) -> float:
    """Return how many seconds a run of `steps` takes from its first step on.

    The last step is always evaluated and saved. With checkpoint.background, a checkpoint other than the last only costs
    the time by which saving it exceeds the steps until the next one.
    """
    evaluations = -(-steps // recipe.evaluation.every)
    saves_between = (steps - 1) // recipe.checkpoint.every if steps else 0
    seconds_between = speed.save
    if recipe.checkpoint.background:
        seconds_between = max(0.0, speed.save - recipe.checkpoint.every * speed.step)

    seconds = steps * speed.step + evaluations * speed.evaluation + saves_between * seconds_between
    return seconds + speed.save if steps else seconds


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with run.max_steps set to `steps`. Raises UsageError if its schedule does not fit into them."""
    fitting = recipe.model_copy(update={"run": recipe.run.model_copy(update={"max_steps": steps})})
    where = f"{steps:,} steps fit into run.max_hours {recipe.run.max_hours:g}"
    check_schedule(fitting.optimizer, fitting.schedule, steps, where)
    return fitting


def steps_of_checkpoint(recipe: Recipe, checkpoint: FoundCheckpoint) -> int:
    """Return the number of steps that was fixed when the run began, and log it.

    Raises UsageError if the checkpoint was saved without run.max_hours or with another value, or if run.max_steps is
    now lower than the number.
    """
    recorded = checkpoint.state.recipe
    steps = recorded.get("run.max_steps")
    hours = recorded.get("run.max_hours")
    run = recipe.run
    if steps is None or hours is None:
        raise UsageError(
            f"{run.output}: the newest checkpoint was saved without run.max_hours, which fixes the length of a run at "
            "its start only. Set run.max_hours=none, and run.max_steps for another length, or choose another "
            "run.output."
        )
    if hours != run.max_hours:
        raise UsageError(
            f"{run.output} began with run.max_hours {hours:g}, which fixed {steps:,} steps, and now it is "
            f"{run.max_hours:g}. Set it as it was. To change the length, set run.max_hours=none and run.max_steps."
        )
    if run.max_steps < steps:
        raise UsageError(
            f"run.max_steps {run.max_steps:,} is lower than the {steps:,} steps that run.max_hours {hours:g} fixed "
            f"when {run.output} began. Raise run.max_steps. To shorten the run, keep it and set run.max_hours=none."
        )

    # With run.max_hours, run.max_steps is only an upper bound, so a higher one may or may not be meant as a new length.
    logger.info(
        "%s: keeps the %s steps that run.max_hours %g fixed, unless steps now take much more or less time; "
        "run.max_steps does not change them. "
        "To change the length, set run.max_hours=none and run.max_steps.",
        run.output,
        f"{steps:,}",
        hours,
    )
    return steps
