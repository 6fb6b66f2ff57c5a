"""Compares the speed of a run's real steps with the speed from which run.max_hours fixed their number.

The rehearsal (trainer/rehearsal.py) may have been disturbed by other programs, and a run may resume on a machine that
is faster or busier. So each process measures its first steps, after WARM_STEPS. It looks at them when there are
FIRST_LOOK and each time that there are twice as many, until enough was measured and the warm-up is over. If a step
takes much more or less time than was recorded, the number of steps is fixed again for the time that is left. The run
then saves and resumes with that number, which is recorded as any change of a recipe at a resume is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

from schemas.errors import UsageError
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.horizon import RESERVE, SECONDS, SHARE, WARM_STEPS, Speed, steps_that_fit, with_steps
from trainer.logs import logger

FIRST_LOOK = 16

MUCH = 1.25
"""The ratio of two speeds from which they differ much."""


class StepsChangedError(Exception):
    """The run has saved, and goes on with another number of steps. Raised on every rank."""

    def __init__(self, steps: int):
        self.steps = steps


class Look(NamedTuple):
    """What rank 0 found: the speed to record, and the new number of steps, None to keep it."""

    speed: Speed
    steps: int | None


@dataclass
class Pace:
    """Measures the steps of this process.

    recipe: as it was loaded, whose run.max_steps is the upper bound. speed: on which the number of steps rests.
    seconds_before: of training in earlier processes, without their starts. started: when this one began, by
    `perf_counter`.
    """

    recipe: Recipe
    speed: Speed
    seconds_before: float
    started: float
    _steps: int = 0
    _seconds: float = 0.0
    _next_look: int = FIRST_LOOK
    _has_looked: bool = field(default=False)

    def phase_begins(self) -> None:
        """Begin to measure anew, because the first steps of an engine are slow."""
        self._steps = 0
        self._seconds = 0.0
        self._next_look = FIRST_LOOK

    def add(self, seconds: float, step: int, planned: Recipe) -> bool:
        """Count a step of so many seconds, and return whether to `look` after it. Equal on all ranks.

        planned: the recipe with the number of steps so far.
        """
        self._steps += 1
        if self._steps > WARM_STEPS:
            self._seconds += seconds
        if self._steps != self._next_look:
            return False

        self._next_look *= 2
        return not self._has_looked or step <= planned.schedule.warmup_of(planned.run.max_steps)

    def look(self, step: int, planned: Recipe) -> int | None:
        """Return the new number of steps, None to keep it. A collective call."""
        look = run_on_rank_0(lambda: self._look(step, planned))
        if look is None:
            return None
        self._has_looked = True
        self.speed = look.speed
        return look.steps

    def _look(self, step: int, planned: Recipe) -> Look | None:
        """Return what was found, None if too little was measured so far."""
        hours = self.recipe.run.max_hours or 0.0
        if self._seconds < min(SECONDS, SHARE * hours * 3600):
            return None

        seconds = self._seconds / (self._steps - WARM_STEPS)
        ratio = seconds / self.speed.step
        if 1 / MUCH <= ratio <= MUCH:
            return Look(self.speed, None)

        speed = replace(self.speed, step=seconds, evaluation=self.speed.evaluation * ratio)
        elapsed = self.seconds_before + perf_counter() - self.started
        left = hours * 3600 * (1 - RESERVE) - elapsed
        steps = min(step + steps_that_fit(left, speed, self.recipe), self.recipe.run.max_steps)
        reason = (
            f"{planned.run.output}: a step takes {seconds:.2g} s, not the {self.speed.step:.2g} s from which "
            f"run.max_hours {hours:g} fixed {planned.run.max_steps:,} steps."
        )
        if not self._allows(steps) or steps <= step:
            logger.info("%s That number is kept, because too little time is left for another schedule.", reason)
            return Look(speed, None)

        logger.info(
            "%s In the %.0f s that are left, %s more fit: %s in all.", reason, left, f"{steps - step:,}", f"{steps:,}"
        )
        return Look(speed, steps if steps != planned.run.max_steps else None)

    def _allows(self, steps: int) -> bool:
        """Return whether the schedule fits into so many steps."""
        try:
            with_steps(self.recipe, steps)
        except UsageError:
            return False
        return True
