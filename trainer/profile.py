"""Profiles some steps of a run for `--profile N`: a trace of every operation, and a table of the longest ones.

The first steps after a start are left out, because they allocate memory, load kernels and compile. Then N steps are
recorded with torch.profiler, and the run continues. Recording changes neither random numbers nor results, so losses are
the same with and without it; only the recorded steps are slower.

RUN/profile gets two files from each rank that records:

    rank-00000-steps-000005-000007.json.gz   Chrome's trace format, for ui.perfetto.dev or chrome://tracing
    rank-00000-steps-000005-000007.txt       the table

The first eight ranks record, which is one node in most clusters. One rank would not be enough: a trace of a rank that
waits in a collective call does not show which rank it waits for. All ranks would be too many: a trace takes megabytes
per step, and the slowest of hundreds of ranks is easier to find in the metrics (trainer/metrics/ranks.py).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import PreemptedError, UsageError
from trainer.config.schema import RunSection
from trainer.logs import logger
from trainer.metrics.presentation import keep_running

PROFILE_FOLDER = "profile"

WARM_UP_STEPS = 4
"""Steps of this process before the recorded ones. The profiler itself warms up in the last of them."""

MAX_STEPS = 100
"""A limit, because events stay in memory until the last recorded step: about a kilobyte each, and thousands per
micro-batch."""

MAX_RANKS = 8
"""The number of ranks that record, starting from rank 0."""

TABLE_ROWS = 12


def check_steps(steps: int, run: RunSection) -> None:
    """Raise UsageError unless --profile asks for 1 to MAX_STEPS steps, and for no more than the run has."""
    last_step = min(run.stop_at or run.max_steps, run.max_steps)
    if not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"--profile {steps}: give a number of steps from 1 to {MAX_STEPS}.")

    if WARM_UP_STEPS + steps > last_step:
        raise UsageError(
            f"--profile {steps} needs {WARM_UP_STEPS + steps} steps, because the first {WARM_UP_STEPS} are not "
            f"recorded, but the run ends at step {last_step}. Ask for fewer steps, or raise run.max_steps or "
            "run.stop_at."
        )


@contextlib.contextmanager
def profiling(steps: int, run_folder: str, rank: int) -> Iterator[StepProfiler]:
    """Record `steps` steps while the context lasts; 0 records nothing.

    If the run ends or is asked to stop earlier, the steps recorded so far are written.
    """
    is_recording_rank = rank < MAX_RANKS
    recorder = StepProfiler(steps if is_recording_rank else 0, run_folder, rank)
    try:
        yield recorder
    except PreemptedError:
        recorder.close()
        raise
    # After any other error nothing is written, because the device may wait for a lost rank and never finish its queue.
    recorder.close()


class StepProfiler:
    """Records the steps after the warm-up. Calls before and after the recorded steps cost next to nothing."""

    def __init__(self, steps: int = 0, run_folder: str = ".", rank: int = 0):
        """steps: how many to record. run_folder: RUN."""
        self._steps = steps
        self._folder = Path(run_folder, PROFILE_FOLDER)
        self._rank = rank

        self._steps_ended = 0
        self._profile: Any = None
        self._recorded: list[int] = []
        self._is_done = steps == 0

    def step_ended(self, step: int) -> None:
        """Note that a step was computed and its update started. The last recorded step waits for the device."""
        if self._is_done:
            return

        with keep_running(f"The profile in {self._folder}"):
            self._advance(step)
            return

        # Only reached if `keep_running` suppressed an error, which would recur in every further step.
        self._is_done = True

    def close(self) -> None:
        """Write what was recorded, unless that was done already."""
        if self._is_done:
            return

        self._is_done = True
        with keep_running(f"The profile in {self._folder}"):
            if self._profile is not None:
                self._profile.stop()
            if self._recorded:
                self._write()
            else:
                logger.info("--profile recorded nothing: the run ended within %d steps of its start.", WARM_UP_STEPS)

    def _advance(self, step: int) -> None:
        self._steps_ended += 1

        if self._profile is not None:
            self._profile.step()
            if self._steps_ended > WARM_UP_STEPS:
                self._recorded.append(step)

        if self._steps_ended == WARM_UP_STEPS - 1:
            self._start()

        if len(self._recorded) == self._steps:
            self.close()

    def _start(self) -> None:
        # Imported here, because `--help` and recipe checks load this module before torch.
        import torch
        from torch import profiler

        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)

        # One warm-up step of the profiler's own, then one more active step than is recorded: at the end of its last
        # active step the profiler would write a trace by itself, before `stop` can report that it failed.
        schedule = profiler.schedule(wait=0, warmup=1, active=self._steps + 1, repeat=1)
        self._profile = profiler.profile(activities=activities, schedule=schedule, record_shapes=True)
        self._profile.start()

    def _write(self) -> None:
        """Write the trace, which appears whole or not at all, and the table. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"rank-{self._rank:05d}-steps-{self._recorded[0]:06d}-{self._recorded[-1]:06d}"
        trace = self._folder / f"{name}.json.gz"
        table = table_of(self._profile.key_averages(), len(self._recorded))

        self._write_trace(trace)
        (self._folder / f"{name}.txt").write_text(f"{table}\n", encoding="utf-8")

        # Events of a long recording take gigabytes.
        self._profile = None
        logger.info("Profile of steps %d to %d: %s\n%s", self._recorded[0], self._recorded[-1], trace, table)

    def _write_trace(self, path: Path) -> None:
        uncompressed = path.with_name(f".{path.stem}.partial")
        compressed = path.with_name(f".{path.name}.partial")
        try:
            self._profile.export_chrome_trace(str(uncompressed))
            check_whole(uncompressed)
            with uncompressed.open("rb") as source, gzip.open(compressed, "wb", compresslevel=5) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            os.replace(compressed, path)
        finally:
            uncompressed.unlink(missing_ok=True)
            compressed.unlink(missing_ok=True)


def check_whole(trace: Path) -> None:
    """Raise OSError if a JSON trace is missing or truncated, because torch's writer does not report a full disk."""
    end = b""
    if trace.exists():
        with trace.open("rb") as file:
            file.seek(max(0, trace.stat().st_size - 16))
            end = file.read()

    if not end.rstrip().endswith(b"}"):
        free = shutil.disk_usage(trace.parent).free
        raise OSError(f"the trace was cut, and {free / 1e6:,.0f} MB are free in {trace.parent}")


def table_of(averages: Any, steps: int) -> str:
    """Return a text table of the operations with the longest self time, over `steps` steps.

    averages: what torch.profiler.profile.key_averages returns. Times are in milliseconds per step, on the device if
    there is one, otherwise on the CPU, and exclude the operations that an operation calls.
    """
    rows = [row for row in averages if not row.key.startswith("ProfilerStep")]
    on_device = any(row.self_device_time_total for row in rows)

    def own_time(row: Any) -> float:
        return row.self_device_time_total if on_device else row.self_cpu_time_total

    total = sum(own_time(row) for row in rows) or 1.0
    rows.sort(key=own_time, reverse=True)

    device = "device" if on_device else "CPU"
    lines = [f"{device + ' ms a step':>16}  {'share':>6}  {'calls a step':>12}  operation"]
    for row in rows[:TABLE_ROWS]:
        milliseconds = own_time(row) / 1000 / steps
        share = own_time(row) / total
        lines.append(f"{milliseconds:16.3f}  {share:6.1%}  {row.count / steps:12.1f}  {row.key[:80]}")
    return "\n".join(lines)
