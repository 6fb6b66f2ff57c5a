"""Fixes the number of steps of a run whose length is given in passes over its data or in hours.

It becomes run.max_steps, in RUN/recipe.toml and in checkpoints. So a run that resumes has the same schedule, and a run
with that run.max_steps and without run.max_epochs or run.max_hours trains the same weights to the last bit.

Passes (run.max_epochs). A pass over data.pairs is as many rows as its folders hold together, or as many tokens if
batches are counted in tokens. data.weights decide how many of them come from which folder, so one with a large share is
read more than once in a pass. A run has the whole steps that lie within run.max_epochs passes, which follow from the
recipe and the manifests of the pairs alone.

Hours (run.max_hours). The first steps do not depend on the number of steps, because the learning rate still warms up.
So it is measured there:

    1. Each step's seconds are noted. After 4, 8, 16, ... steps, rank 0 checks whether that is enough, which it is when
       the warm-up ends at the latest.
    2. The held-out data are evaluated once and the figures thrown away, to know how long that takes.
    3. The number of steps that fit into the time that is left is stored in RUN/recipe.toml and in every checkpoint from
       then on. A run that resumes takes it from there. Until a checkpoint has it, every start measures.

Looking continues until the warm-up is over, and each later start looks once, because the machine may have become faster
or busier. If the steps that remain need much more or less than the time that is left, the number is fixed again for
that time, and the run's history says so.

The hours begin with the command (cli.py). They are not a hard limit: if the machine becomes slower after the last look,
the run takes longer. A scheduler that ends a job sends a signal, and the run then saves (distributed/stop.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from time import perf_counter
from typing import Any, NamedTuple

from schemas.errors import UsageError
from schemas.manifest import read_manifest
from schemas.terminal import counted, in_hours
from trainer.checkpoint.format import FoundCheckpoint
from trainer.config.schema import Recipe, RunSection
from trainer.config.validate import faults_of_ramp, faults_of_schedule, refuse
from trainer.data.share import batches_within
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
"""The ratio of two times from which they differ much."""

# Passes over the data


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
    return of_length(recipe, steps)


def of_length(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with run.max_steps set to `steps`."""
    return recipe.model_copy(update={"run": recipe.run.model_copy(update={"max_steps": steps})})


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
    length = min(steps, recipe.run.max_steps)
    refuse(faults_of_schedule(recipe.optimizer, recipe.schedule, length), where)
    refuse(faults_of_ramp(batch, length), where)
    return steps


# Hours


class Speed(NamedTuple):
    """The seconds of a step and of an evaluation, 0 in a run that has none."""

    step: float
    evaluation: float


@dataclass
class Hours:
    """Measures the steps of this process, and says how many a run takes.

    recipe: as it was loaded, whose run.max_steps is the upper bound. started: when this command began, by
    `perf_counter`. seconds_before: of training in earlier processes, without their starts. speed: from which the number
    of steps follows; None as long as it is not fixed.
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

        # The run was stopped at the end of its warm-up. What it took so far must suffice; the next look corrects it.
        speed = self.speed = Speed(state.seconds / state.step, 0.0)
        return run_on_rank_0(lambda: self._first_number(state.step, speed))

    def after_step(
        self, step: int, seconds: float, planned: Recipe, time_evaluation: Callable[[], float]
    ) -> int | None:
        """Return the number of steps if the speed is known after a step that took `seconds`, otherwise None.

        A collective call. planned: the recipe with the number of steps so far. time_evaluation: evaluates once and
        returns the seconds, a collective call.

        Raises UsageError on every rank if the number is not fixed yet and no further step fits, or if the schedule does
        not fit into the number.
        """
        is_warming_up = step < planned.schedule.warmup_steps
        if self._has_looked and not is_warming_up:
            return None
        self._seconds.append(seconds)
        count = len(self._seconds)
        must_fix = self.speed is None and not is_warming_up
        is_power_of_two = count & (count - 1) == 0
        if not must_fix and not (is_power_of_two and count >= FIRST_LOOK):
            return None

        is_enough = run_on_rank_0(self._is_enough)
        if not must_fix and not is_enough:
            return None

        # A number that had to be fixed on too few steps is looked at again.
        self._has_looked = is_enough
        first_evaluation = time_evaluation() if self.speed is None else 0.0
        self.speed, steps = run_on_rank_0(lambda: self._decide(step, planned, first_evaluation))
        return steps

    def _is_enough(self) -> bool:
        measured = sum(self._counted())
        return measured >= SECONDS or (len(self._seconds) >= ENOUGH_STEPS and measured >= SHARE * self._limit)

    def _counted(self) -> list[float]:
        return self._seconds[min(WARM_STEPS, len(self._seconds) // 2) :]

    @property
    def _limit(self) -> float:
        """The hours, in seconds."""
        return (self.recipe.run.max_hours or 0.0) * 3600

    def _decide(self, step: int, planned: Recipe, first_evaluation: float) -> tuple[Speed, int]:
        """Return the speed to record and the number of steps. Only rank 0 calls this."""
        counted = self._counted()
        seconds = sum(counted) / len(counted)
        if self.speed is None:
            speed = Speed(seconds, first_evaluation)
            return speed, self._first_number(step, speed)

        # Evaluations become slower or faster as steps do.
        speed = Speed(seconds, self.speed.evaluation * seconds / self.speed.step)
        before = planned.run.max_steps
        evaluations = -(-(before - step) // self.recipe.evaluation.every)
        needed = (before - step) * speed.step + evaluations * speed.evaluation
        left = self._left()
        # Near the end of a run, the start of a command is much of what is left. The reserve is for that.
        if left / MUCH <= needed <= left * MUCH or abs(needed - left) <= RESERVE * self._limit:
            return self.speed, before
        try:
            steps = self._last_step(step, speed)
        except UsageError:
            self._log(f"keeps its {before:,} steps, because too little time is left for another schedule", speed)
            return speed, before
        if steps != before:
            self._log(f"{steps:,} steps fit into {in_hours(self._limit / 3600)}, not {before:,}", speed)
        return speed, steps

    def _first_number(self, step: int, speed: Speed) -> int:
        """Return the number of steps at a speed that was measured for the first time, after `step`, and log it."""
        run = self.recipe.run
        steps = self._last_step(step, speed)
        bound = f", all that {_keys_of_bound(run)} allows," if steps == run.max_steps else ""
        self._log(f"{counted(steps, 'step')}{bound} fit into {in_hours(self._limit / 3600)}", speed)
        return steps

    def _log(self, text: str, speed: Speed) -> None:
        output = self.recipe.run.output
        logger.info("%s: %s (a step takes %.2g s, an evaluation %.2g s).", output, text, *speed)

    def _last_step(self, step: int, speed: Speed) -> int:
        """Return the last step that fits, after `step`. Raises UsageError if none does, or the schedule does not."""
        run = self.recipe.run
        steps = min(step + steps_that_fit(self._left(), speed, self.recipe.evaluation.every), run.max_steps)
        if steps <= step:
            raise UsageError(
                f"run.max_hours {run.max_hours:g} is too short: {self._elapsed():,.0f} s have gone into the start and "
                f"{counted(step, 'step')} of {speed.step:,.2g} s. Raise it, or give a number of steps in its place: "
                "run.max_hours=none with run.max_steps=N."
            )
        with_steps(self.recipe, steps)
        return steps

    def _elapsed(self) -> float:
        return self.seconds_before + perf_counter() - self.started

    def _left(self) -> float:
        return self._limit * (1 - RESERVE) - self._elapsed()


def steps_that_fit(seconds: float, speed: Speed, every: int) -> int:
    """Return the largest number of steps that fit into `seconds`, with an evaluation after `every` steps and the last.

    Example: 70 s hold 45 steps of 1 s with evaluations of 5 s after 10, 20, 30, 40 and 45 steps.
    """
    rounds, rest = divmod(max(0.0, seconds), every * speed.step + speed.evaluation)
    further = max(0.0, rest - speed.evaluation) // speed.step
    return int(rounds * every + min(further, every - 1))


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with run.max_steps set to `steps`. Raises UsageError if its schedule does not fit into them."""
    where = f"{counted(steps, 'step')} fit into run.max_hours {recipe.run.max_hours:g}"
    if recipe.schedule.warmup_steps > steps:
        raise UsageError(
            f"{where}, but the learning rate warms up for schedule.warmup_steps {recipe.schedule.warmup_steps:,}. "
            "Lower that, or raise run.max_hours."
        )
    refuse(faults_of_schedule(recipe.optimizer, recipe.schedule, steps), where)
    return of_length(recipe, steps)


def _keys_of_bound(run: RunSection) -> str:
    return "run.max_steps" if run.max_epochs is None else "run.max_steps or run.max_epochs"


def recorded_steps(recipe: Recipe, recorded: dict[str, Any], is_fixed: bool) -> int:
    """Return the number of steps of a run that resumes, and log it. recorded: the checkpoint's recipe by full key.

    is_fixed: False if the checkpoint was saved before the number was known.

    Raises UsageError as `Hours.resume` does.
    """
    run = recipe.run
    hours = recorded.get("run.max_hours")
    if hours is None or (is_fixed and hours != run.max_hours):
        before = "none" if hours is None else f"{hours:g}"
        raise UsageError(
            f"{run.output} began with run.max_hours {before}, and now it is {run.max_hours:g}. Set it as it was, or "
            "choose another run.output. To change the length, set run.max_hours=none and run.max_steps."
        )
    if not is_fixed:
        return run.max_steps

    steps = recorded["run.max_steps"]
    if run.max_steps < steps:
        raise UsageError(
            f"{_keys_of_bound(run)} allows {run.max_steps:,} steps, fewer than the {steps:,} that run.max_hours "
            f"{hours:g} fixed when {run.output} began. Raise it. To shorten the run, keep it and set "
            "run.max_hours=none."
        )

    # With run.max_hours, run.max_steps is only an upper bound, so a higher one may or may not be meant as a new length.
    logger.info(
        "%s: keeps the %s steps that run.max_hours %g fixed, unless they need much more or less than the time that is "
        "left. To change the length, set run.max_hours=none and run.max_steps.",
        run.output,
        f"{steps:,}",
        hours,
    )
    return steps
