"""Fixes the number of steps of a run whose length is given in hours (run.max_hours).

A run is a function of its data, its recipe, its seed and its number of steps, and only the last of these depends on how
fast the machine is. The first steps do not depend on the number either, because the learning rate still warms up. So it
is measured there, and becomes run.max_steps:

    1. Each step's seconds are noted. After 4, 8, 16, ... steps, rank 0 looks whether that is enough, which it is at the
       latest when the warm-up ends.
    2. The held-out data are evaluated once and the figures thrown away, to know how long that takes.
    3. `steps_that_fit` finds how many steps fit into the time that is left.
    4. The number is stored in RUN/recipe.toml and in every checkpoint from then on. A run that resumes takes it from
       its checkpoint, on any number of ranks. Until a checkpoint has it, every start measures.

So a run with run.max_steps set to that number, and without run.max_hours, trains the same weights to the last bit.

Measuring continues until the warm-up is over, and each later start measures once, because the machine may have become
faster or busier. If a step takes much more or less time than before, the number is fixed again for the time that is
left, which the run's history records with its step.

The hours begin when `pretrain` is called. They are not a hard limit: if the machine becomes slower after the last look,
the run takes longer. A scheduler that ends a job sends a signal, and the run then saves (distributed/stop.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from schemas.errors import UsageError
from trainer.checkpoint.format import FoundCheckpoint
from trainer.config.schema import Recipe
from trainer.config.validate import check_schedule
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger

WARM_STEPS = 5
"""The first steps of an engine, which are slow and do not count; at most half of those that were taken."""

FIRST_LOOK = 4
ENOUGH_STEPS = 16
SECONDS = 30.0
SHARE = 0.01
"""Enough is measured after ENOUGH_STEPS that took SHARE of the hours, and after SECONDS whatever the steps."""

RESERVE = 0.02
"""The share of the hours that is held back, for checkpoints and in case steps become slower."""

MUCH = 1.25
"""The ratio of two speeds from which they differ much."""


class Speed(NamedTuple):
    """The seconds of a step and of an evaluation, 0 in a run that has none."""

    step: float
    evaluation: float


@dataclass
class Hours:
    """Measures the steps of this process, and says how many a run takes.

    recipe: as it was loaded, whose run.max_steps is the upper bound. started: when this process began, by
    `perf_counter`. seconds_before: of training in earlier processes, without their starts. speed: the newest that was
    measured; None as long as the number of steps is not fixed.
    """

    recipe: Recipe
    started: float
    seconds_before: float = 0.0
    speed: Speed | None = None
    _seconds: list[float] = field(default_factory=list)
    _has_looked: bool = False

    def resume(self, checkpoint: FoundCheckpoint) -> int:
        """Return the number of steps that a checkpoint's run has, the upper bound if it is not fixed yet.

        A collective call. Raises UsageError on every rank if the checkpoint was saved without run.max_hours or with
        another value, or if run.max_steps is now lower than the number.
        """
        state = checkpoint.state
        self.seconds_before = state.seconds
        steps = run_on_rank_0(lambda: recorded_steps(self.recipe, state.recipe, is_fixed=bool(state.speed)))
        if state.speed:
            self.speed = Speed(**state.speed)
            return steps
        if state.step < self.recipe.schedule.warmup_steps:
            return steps

        # The run was stopped at the end of its warm-up. What it took so far has to do; the next look corrects it.
        speed = Speed(state.seconds / state.step, 0.0)
        self.speed = speed
        return run_on_rank_0(lambda: self._first_number(state.step, speed))

    def add(self, seconds: float, step: int, planned: Recipe) -> bool:
        """Note how many seconds a step took, and return whether to `look` after it. Equal on all ranks.

        planned: the recipe with the number of steps so far.
        """
        is_warming_up = step < planned.schedule.warmup_steps
        if self._has_looked and not is_warming_up:
            return False

        self._seconds.append(seconds)
        count = len(self._seconds)
        is_power_of_two = count & (count - 1) == 0
        must_fix = self.speed is None and not is_warming_up
        return must_fix or (is_power_of_two and count >= FIRST_LOOK)

    def look(self, step: int, planned: Recipe, time_evaluation: Callable[[], float]) -> int | None:
        """Return the new number of steps, None to keep the present one. A collective call.

        time_evaluation: evaluates once and returns the seconds, a collective call.

        Raises UsageError on every rank if the number is not fixed yet and no further step fits, or if the schedule does
        not fit into the number.
        """
        must_fix = self.speed is None and step >= planned.schedule.warmup_steps
        is_enough = run_on_rank_0(self._is_enough)
        if not must_fix and not is_enough:
            return None

        # A number that had to be fixed on too few steps is looked at again.
        self._has_looked = is_enough
        first_evaluation = time_evaluation() if self.speed is None else None
        self.speed, steps = run_on_rank_0(lambda: self._decide(step, planned, first_evaluation))
        return steps

    def _is_enough(self) -> bool:
        wanted = min(SECONDS, SHARE * self._limit)
        measured = sum(self._counted())
        return measured >= SECONDS or (len(self._seconds) >= ENOUGH_STEPS and measured >= wanted)

    def _counted(self) -> list[float]:
        return self._seconds[min(WARM_STEPS, len(self._seconds) // 2) :]

    @property
    def _limit(self) -> float:
        """The hours, in seconds."""
        return (self.recipe.run.max_hours or 0.0) * 3600

    def _decide(self, step: int, planned: Recipe, first_evaluation: float | None) -> tuple[Speed, int | None]:
        """Return the speed to record and the new number of steps. Only rank 0 calls this."""
        counted = self._counted()
        seconds = sum(counted) / len(counted)
        if self.speed is None:
            speed = Speed(seconds, first_evaluation or 0.0)
            return speed, self._first_number(step, speed)

        ratio = seconds / self.speed.step
        if 1 / MUCH <= ratio <= MUCH:
            return self.speed, None
        speed = Speed(seconds, self.speed.evaluation * ratio)
        return speed, self._other_number(step, planned, speed)

    def _elapsed(self) -> float:
        return self.seconds_before + perf_counter() - self.started

    def _first_number(self, step: int, speed: Speed) -> int:
        """Return the number of steps of a run that has just begun, and log it."""
        run = self.recipe.run
        left = self._limit * (1 - RESERVE) - self._elapsed()
        steps = min(step + steps_that_fit(left, speed, self.recipe), run.max_steps)
        if steps <= step:
            raise UsageError(
                f"run.max_hours {run.max_hours:g} is too short: {self._elapsed():,.0f} s have gone into the start "
                f"and {step} steps of {speed.step:,.2g} s. Raise it, or give a number of steps in its place: "
                "run.max_hours=none with run.max_steps=N."
            )

        with_steps(self.recipe, steps)
        bound = ", the most that run.max_steps allows" if steps == run.max_steps else ""
        logger.info(
            "%s: %s steps fit into %g hours%s (a step takes %.2g s, an evaluation %.2g s).",
            run.output,
            f"{steps:,}",
            run.max_hours,
            bound,
            speed.step,
            speed.evaluation,
        )
        return steps

    def _other_number(self, step: int, planned: Recipe, speed: Speed) -> int | None:
        """Return the number of steps at a speed that differs much from the recorded one, and log it."""
        assert self.speed is not None
        left = self._limit * (1 - RESERVE) - self._elapsed()
        steps = min(step + steps_that_fit(left, speed, self.recipe), self.recipe.run.max_steps)
        reason = (
            f"{planned.run.output}: a step takes {speed.step:.2g} s, not the {self.speed.step:.2g} s from which "
            f"run.max_hours {planned.run.max_hours:g} fixed {planned.run.max_steps:,} steps."
        )
        if steps <= step or not self._allows(steps):
            logger.info("%s That number is kept, because too little time is left for another schedule.", reason)
            return None

        logger.info(
            "%s In the %.0f s that are left, %s more fit: %s in all.", reason, left, f"{steps - step:,}", f"{steps:,}"
        )
        return steps if steps != planned.run.max_steps else None

    def _allows(self, steps: int) -> bool:
        """Return whether the schedule fits into so many steps."""
        try:
            with_steps(self.recipe, steps)
        except UsageError:
            return False
        return True


def steps_that_fit(seconds: float, speed: Speed, recipe: Recipe) -> int:
    """Return the largest number of steps that fit into `seconds` with their evaluations, at most run.max_steps."""
    low = 0
    high = recipe.run.max_steps

    # A binary search, because the time rises with the number of steps.
    while low < high:
        middle = (low + high + 1) // 2
        evaluations = -(-middle // recipe.evaluation.every)  # the last step is evaluated, too
        if middle * speed.step + evaluations * speed.evaluation <= seconds:
            low = middle
        else:
            high = middle - 1
    return low


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with run.max_steps set to `steps`. Raises UsageError if its schedule does not fit into them."""
    fitting = recipe.model_copy(update={"run": recipe.run.model_copy(update={"max_steps": steps})})
    where = f"{steps:,} steps fit into run.max_hours {recipe.run.max_hours:g}"
    if recipe.schedule.warmup_steps > steps:
        raise UsageError(
            f"{where}, but the learning rate warms up for schedule.warmup_steps {recipe.schedule.warmup_steps:,}. "
            "Lower that, or raise run.max_hours."
        )
    check_schedule(fitting.optimizer, fitting.schedule, steps, where)
    return fitting


def recorded_steps(recipe: Recipe, recorded: dict[str, object], is_fixed: bool) -> int:
    """Return the number of steps of a run that resumes, and log it. recorded: the checkpoint's recipe by full key.

    is_fixed: False if the checkpoint was saved before the number was known.

    Raises UsageError as `Hours.resume` does.
    """
    run = recipe.run
    steps = recorded.get("run.max_steps")
    hours = recorded.get("run.max_hours")
    if not isinstance(steps, int) or not isinstance(hours, float):
        raise UsageError(
            f"{run.output}: the newest checkpoint was saved without run.max_hours, which fixes the length of a run at "
            "its start only. Set run.max_hours=none, and run.max_steps for another length, or choose another "
            "run.output."
        )
    if not is_fixed:
        return run.max_steps
    if hours != run.max_hours:
        raise UsageError(
            f"{run.output} began with run.max_hours {hours:g}, and now it is {run.max_hours:g}. Set it as it was. To "
            "change the length, set run.max_hours=none and run.max_steps."
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
