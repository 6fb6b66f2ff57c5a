"""Profiles some steps of a run for `--profile N`: a trace of every operation, and a table of the longest ones.

The first steps after a start are left out, because they allocate memory, load kernels and compile; `--profile_after`
leaves out more. Then N steps are recorded with torch.profiler, and the run continues. Recording changes neither random
numbers nor results; only the recorded steps are slower.

The first eight ranks record, which is one node in most clusters: a trace of one rank that waits in a collective call
does not show which rank it waits for, and traces of all ranks take megabytes per step each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import PreemptedError, UsageError
from trainer.config.schema import RunSection
from trainer.logs import logger
from trainer.metrics.presentation import keep_running

WARM_UP_STEPS = 4
"""Steps of this process before the recorded ones. The profiler itself warms up in the last of them."""

MAX_STEPS = 100
"""A limit, because events stay in memory until the last recorded step: about a kilobyte each, and thousands per
micro-batch."""

MAX_RANKS = 8
"""The number of ranks that record, starting from rank 0."""


class Recording(NamedTuple):
    """Which steps of a process to record: `steps` of them, 0 for none, after the first `after`."""

    steps: int = 0
    after: int = WARM_UP_STEPS


NOTHING = Recording()


def check_recording(recording: Recording, run: RunSection) -> None:
    """Raise UsageError unless --profile asks for 1 to MAX_STEPS steps, and for no more than the run has."""
    steps, after = recording
    if not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"--profile {steps}: give a number of steps from 1 to {MAX_STEPS}.")
    if after < WARM_UP_STEPS:
        raise UsageError(f"--profile_after {after}: give at least {WARM_UP_STEPS} steps, which load and compile.")

    last_step = min(run.stop_at or run.max_steps, run.max_steps)
    if after + steps > last_step:
        raise UsageError(
            f"--profile {steps} needs {after + steps} steps, because the first {after} are not recorded, but the run "
            f"ends at step {last_step}. Ask for fewer steps, or raise run.max_steps or run.stop_at."
        )


@contextlib.contextmanager
def profiling(recording: Recording, run_folder: str, rank: int) -> Iterator[StepProfiler | None]:
    """Record steps while the context lasts; None if there are none to record on this rank.

    If the run ends or is asked to stop earlier, the steps recorded so far are written. After any other error nothing
    is, because the device may wait for a lost rank and never finish its queue.
    """
    if recording.steps == 0 or rank >= MAX_RANKS:
        yield None
        return

    profiler = StepProfiler(recording, run_folder, rank)
    try:
        yield profiler
    except PreemptedError:
        profiler.close()
        raise
    profiler.close()


class StepProfiler:
    """Records the steps after the warm-up. Calls before and after the recorded steps cost next to nothing."""

    def __init__(self, recording: Recording, run_folder: str, rank: int):
        """recording: at least one step. run_folder: RUN."""
        self._after = recording.after
        self._folder = Path(run_folder, "profile")
        self._rank = rank
        self._last_step = 0

        # Imported here, because `--help` and recipe checks load this module before torch.
        from torch import profiler

        schedule = profiler.schedule(wait=self._after - 1, warmup=1, active=recording.steps, repeat=1)
        self._profile: Any = profiler.profile(schedule=schedule, on_trace_ready=self._write, record_shapes=True)
        self._profile.start()

    def step_ended(self, step: int) -> None:
        """Note that a step was computed and its update started. The last recorded step waits for the device."""
        if self._profile is None:
            return

        self._last_step = step
        with keep_running(f"The profile in {self._folder}"):
            self._profile.step()
            return

        # Only reached if `keep_running` suppressed an error, which would recur in every further step.
        self._profile = None

    def close(self) -> None:
        if self._profile is None:
            return

        if self._profile.step_num <= self._after:
            logger.info("--profile recorded nothing: the run ended within %d steps of its start.", self._after)
        with keep_running(f"The profile in {self._folder}"):
            self._profile.stop()

    def _write(self, profile: Any) -> None:
        """Write the trace and the table of what was recorded. The profiler calls this at the end. Raises OSError."""
        # Events of a long recording take gigabytes.
        self._profile = None
        recorded = profile.step_num - self._after
        if recorded < 1:
            return

        first_step = self._last_step - recorded + 1
        trace = self._folder / f"rank-{self._rank:05d}-steps-{first_step:06d}-{self._last_step:06d}.json.gz"
        self._folder.mkdir(parents=True, exist_ok=True)
        profile.export_chrome_trace(str(trace))

        averages = profile.key_averages()
        on_device = any(row.self_device_time_total for row in averages)
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        table = averages.table(sort_by=order, row_limit=12)
        trace.with_name(trace.name.replace(".json.gz", ".txt")).write_text(f"{table}\n", encoding="utf-8")
        logger.info("Profile of steps %d to %d: %s\n%s", first_step, self._last_step, trace, table)
