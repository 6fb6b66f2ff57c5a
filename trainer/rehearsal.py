"""Measures how fast a run will be: trains some steps on its own data, with its own engine, and discards the result.

    the first WARM_STEPS          not timed: they compile, allocate, and read the first data. After WARM_SECONDS fewer
                                  will do, but at least one
    then                          timed, until MIN_STEPS are done and SECONDS or SHARE of run.max_hours, the shorter of
                                  the two, have passed. After SECONDS fewer steps will do, but at least FEWEST_STEPS
    one evaluation                of all held-out batches, if the run has any
    a file of PROBE_BYTES         written to the folder of checkpoints and read back, as checkpoints are

The time of a checkpoint is estimated from its size and that file's speed, as if rank 0 wrote all of it. Rank 0's clock
decides for all ranks.

Weights, moments and batches of the rehearsal are discarded with its engine and its streams. Training then begins with
its own engine, streams and random numbers, as a resumed run does, so the rehearsal leaves no trace in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Any

from schemas import storage
from schemas.errors import PreemptedError
from trainer.checkpoint.layout import CHECKPOINTS_FOLDER
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.horizon import SECONDS, SHARE, WARM_STEPS, Speed
from trainer.logs import logger
from trainer.loop import Loop
from trainer.memory import count_parameters, saved_bytes
from trainer.trial_pass import meta_model

MIN_STEPS = 10
FEWEST_STEPS = 2
STEPS_AT_ONCE = 5
"""Steps between two readings of the clock, each of which waits for the device. One by one while steps are slow."""

SLOW_STEP = 1.0
"""Seconds of a step from which waiting for the device costs nothing in comparison."""

WARM_SECONDS = 10.0
ANNOUNCED = 50.0
"""Seconds after which a line says that measuring takes longer than WARM_SECONDS + SECONDS."""

PROBE_BYTES = 64 << 20
PROBE = f"write_speed{storage.PARTIAL_SUFFIX}"
"""The file's name. It ends like a partial checkpoint, so the next start removes it if this one is killed."""


def rehearse(loop: Loop, start: float) -> Speed:
    """Measure the speed of training with a loop that is used for nothing else. A collective call.

    start: the seconds that it took to open the loop's data and to build its engine.

    Raises PreemptedError on every rank if any of them was asked to stop.
    """
    recipe = loop.phase.recipe
    with long_measuring_announced():
        step, tokens = time_steps(loop, recipe.run.max_hours or 0.0)
    evaluation = time_evaluation(loop)
    save = time_save(loop, recipe)

    # Clocks differ by milliseconds between ranks, and all ranks must compute with equal numbers.
    return run_on_rank_0(lambda: Speed(start, step, evaluation, save, tokens))


def time_steps(loop: Loop, max_hours: float) -> tuple[float, float]:
    """Return the mean seconds and the mean tokens of the timed steps."""
    warm_steps = warm_up(loop)
    wanted = min(SECONDS, SHARE * max_hours * 3600)

    steps = 0
    tokens = 0.0
    at_once = 1
    started = perf_counter()
    while True:
        began = perf_counter()
        tokens += take_steps(loop, warm_steps + steps, at_once)
        steps += at_once
        seconds = perf_counter() - started

        is_enough = steps >= MIN_STEPS and seconds >= wanted
        is_late = steps >= FEWEST_STEPS and seconds >= SECONDS
        if decided_by_rank_0(is_enough or is_late):
            return seconds / steps, tokens / steps

        is_slow = (perf_counter() - began) / at_once >= SLOW_STEP
        at_once = 1 if decided_by_rank_0(is_slow) else STEPS_AT_ONCE


def warm_up(loop: Loop) -> int:
    """Take the steps that are not timed, and return their number."""
    began = perf_counter()
    steps = 0
    is_warm = False
    while not is_warm:
        take_steps(loop, steps, 1)
        steps += 1
        is_warm = decided_by_rank_0(steps == WARM_STEPS or perf_counter() - began >= WARM_SECONDS)
    return steps


def decided_by_rank_0(answer: bool) -> bool:
    """Return rank 0's answer on every rank, so that all take the same number of steps. A collective call."""
    return run_on_rank_0(lambda: answer)


@contextlib.contextmanager
def long_measuring_announced() -> Iterator[None]:
    """Log a line if the block takes longer than a rehearsal should, even if it is still in its first step."""
    timer = Timer(
        ANNOUNCED,
        lambda: logger.info(
            "Measuring takes longer than %.0f s, because a step takes long: at least %d are measured.",
            WARM_SECONDS + SECONDS,
            1 + FEWEST_STEPS,
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def take_steps(loop: Loop, done: int, steps: int) -> float:
    """Take `steps` steps after the first `done`, wait until the device has computed them, and return their tokens."""
    tokens = 0.0
    last = done + steps
    for step in range(done + 1, last + 1):
        if not loop.compute_step(step, skipped_batches=0, is_last=step == last):
            raise preempted(loop)
        result = loop.stepper.settle()
        tokens += result.sums.tokens if result is not None else 0.0
        loop.stepper.update()
        loop.clock.step_ended(loop.stream.stalled_seconds)

    result = loop.stepper.settle()
    return tokens + (result.sums.tokens if result is not None else 0.0)


def time_evaluation(loop: Loop) -> float:
    """Return the seconds of one evaluation, 0 if the run has none."""
    if loop.evaluation is None:
        return 0.0
    result = loop.evaluation.measure(loop.engine, partial(loop.leaves_evaluation, 0))
    if result.interrupted:
        raise preempted(loop)
    return result.seconds


def time_save(loop: Loop, recipe: Recipe) -> float:
    """Return the estimated seconds of writing one checkpoint."""
    # Parameters are counted from the shape, because ZeRO 3 leaves only parts of them on a rank.
    model: Any = loop.engine.module
    size = saved_bytes(count_parameters(meta_model(model.shape)))
    folder = Path(loop.run_recipe.run.folder)
    return size / PROBE_BYTES * run_on_rank_0(lambda: time_probe(folder))


def time_probe(folder: Path) -> float:
    """Return the seconds of writing a file of PROBE_BYTES, reading it back and hashing it. The file is removed."""
    probe = folder / CHECKPOINTS_FOLDER / PROBE
    content = os.urandom(PROBE_BYTES)  # random bytes, which no file system can compress
    started = perf_counter()
    try:
        with probe.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hashlib.sha256(probe.read_bytes())
        return perf_counter() - started
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def preempted(loop: Loop) -> PreemptedError:
    """Return the error that ends a run which was asked to stop before its first step."""
    return PreemptedError(
        f"{loop.run_recipe.run.output}: asked to stop while the speed of training was measured for run.max_hours. "
        "There is nothing to save. The same command starts again."
    )
