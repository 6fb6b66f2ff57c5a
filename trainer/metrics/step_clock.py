"""Measures how long steps take on this rank, without waiting for the device and without collective calls.

Ranks wait for each other in every step, so the seconds of a whole step are nearly the same on all of them, and do not
show which rank the others wait for. What differs is a rank's own seconds: those of its forward passes, which contain no
collective call (except in ZeRO 3, which gathers weights there), and those of waiting for data. They show a slow GPU, a
machine with other work or a slow disk.

On a GPU, forward passes and the ends of steps are measured by events in the device's queue. At the end of a log
interval, only the events that the device has already passed are read, which does not wait for it.

A step is logged while the next one is computed, so what a line says is measured up to the end of its own step.

Each rank's measurements reach the others with the watchdog's heartbeats (trainer/distributed/watchdog.py).
"""

from __future__ import annotations

import resource
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator

from trainer.distributed.watchdog import Watchdog
from trainer.metrics.ranks import RankReport, reports_of
from trainer.models.batch import PackedBatch
from trainer.models.flops import ExecutedWork

STATUS = Path("/proc/self/status")
"""Linux only: holds the peak of the process's resident memory, VmHWM, in kB."""


@dataclass(frozen=True)
class MeasuredInterval:
    """What was measured since the last logged line.

    step_seconds: mean of this rank's steps, without evaluations and checkpoints; None if there was no step. work: what
    this rank computed. ranks: the last report of each rank; those of other ranks may be four seconds old. ended_at:
    when the last step ended, by `perf_counter`. stalled_seconds: how long this process had waited for data by then.
    """

    step_seconds: float | None
    work: ExecutedWork
    ranks: list[RankReport]
    ended_at: float = 0.0
    stalled_seconds: float = 0.0


class StepClock:
    """Times the steps of one engine. The loop reports when a step begins and ends; hooks observe forward passes."""

    def __init__(self, engine: DeepSpeedEngine, watchdog: Watchdog):
        self._watchdog = watchdog
        device = torch.device(engine.device or "cpu")
        self._timer = DevicePassTimer() if device.type == "cuda" else HostPassTimer()

        # Sums since the last logged line.
        self._steps = 0
        self._step_seconds = 0.0
        self._work = ExecutedWork()
        self._step_began = perf_counter()

        # Seconds of waiting for data: up to the end of the last step, and up to the last logged line.
        self._stalled = 0.0
        self._stalled_before = 0.0

        # Hooks are on the engine, not on the model, because a model may be compiled together with its hooks.
        engine.register_forward_pre_hook(self._before_pass)
        engine.register_forward_hook(self._after_pass)

    def step_begins(self) -> None:
        """Note that a step begins. Call this before its data are read."""
        self._step_began = perf_counter()

    def step_ended(self, stalled_seconds: float) -> float:
        """Note that a step's update was started, and return how many seconds the step took.

        stalled_seconds: how long this process has waited for data so far.
        """
        seconds = perf_counter() - self._step_began
        self._steps += 1
        self._step_seconds += seconds
        self._stalled = stalled_seconds
        self._timer.step_ended()
        return seconds

    def end_interval(self, step: int) -> MeasuredInterval:
        """Return what was measured since the last call, report it to the other ranks, and begin a new interval.

        The results of the last step must be on the host, which means that the device has computed it.
        """
        steps = max(self._steps, 1)
        step_seconds = self._step_seconds / steps if self._steps else None
        waited = (self._stalled - self._stalled_before) / steps
        passes = self._timer.seconds_per_step()
        work = self._work

        self._steps = 0
        self._step_seconds = 0.0
        self._work = ExecutedWork()
        self._stalled_before = self._stalled

        # The last report stays if no step was completed or, on a GPU, if none is known to have been completed.
        if step_seconds is not None and passes is not None:
            report = RankReport(step, step_seconds, passes + waited, peak_memory())
            self._watchdog.report(report._asdict())
        ranks = reports_of(self._watchdog.reports())
        return MeasuredInterval(step_seconds, work, ranks, self._timer.ended_at(), self._stalled)

    def _before_pass(self, engine: Any, inputs: tuple[PackedBatch]) -> None:
        # Evaluations, which are not timed, use the same engine.
        if engine.training:
            self._work.add(inputs[0])
            self._timer.pass_begins()

    def _after_pass(self, engine: Any, inputs: tuple[PackedBatch], losses: Any) -> None:
        if engine.training:
            self._timer.pass_ends()


class HostPassTimer:
    """Times forward passes on a CPU, where a call returns when its computation is done."""

    def __init__(self) -> None:
        self._began = 0.0
        self._of_this_step = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._ended_at = perf_counter()

    def pass_begins(self) -> None:
        self._began = perf_counter()

    def pass_ends(self) -> None:
        self._of_this_step += perf_counter() - self._began

    def step_ended(self) -> None:
        self._seconds += self._of_this_step
        self._steps += 1
        self._of_this_step = 0.0
        self._ended_at = perf_counter()

    def ended_at(self) -> float:
        """Return when the last step ended, by `perf_counter`."""
        return self._ended_at

    def seconds_per_step(self) -> float | None:
        """Return the mean seconds of the steps since the last call, None if there was no step."""
        mean = self._seconds / self._steps if self._steps else None
        self._seconds = 0.0
        self._steps = 0
        return mean


class DevicePassTimer:
    """Times forward passes on a GPU, between two events in its queue, and the ends of steps.

    Only creating a timer waits for the device: for an event whose time is then known by the host's clock.
    """

    def __init__(self) -> None:
        self._of_this_step: list[tuple[Any, Any]] = []
        self._began: Any = None

        # Steps whose events the device may not have passed yet, and events that can be reused.
        self._steps: deque[list[tuple[Any, Any]]] = deque()
        self._free: list[Any] = []

        # An event that the device has passed, when it did, and the event at the end of the last step.
        self._known = self._record()
        self._known.synchronize()
        self._known_at = perf_counter()
        self._end = self._known

    def pass_begins(self) -> None:
        self._began = self._record()

    def pass_ends(self) -> None:
        self._of_this_step.append((self._began, self._record()))

    def step_ended(self) -> None:
        self._steps.append(self._of_this_step)
        self._of_this_step = []
        # Not reused, because it may be the known event, and one event a step costs nothing.
        self._end = torch.cuda.Event(enable_timing=True)
        self._end.record()

    def ended_at(self) -> float:
        """Return when the device ended the last step, by `perf_counter`; now if it has not passed its end yet."""
        if self._end.query():
            self._known_at += self._known.elapsed_time(self._end) / 1000
        else:
            self._known_at = perf_counter()
        self._known = self._end
        return self._known_at

    def seconds_per_step(self) -> float | None:
        """Return the mean seconds of the steps that the device has completed since the last call, None without any."""
        seconds = 0.0
        steps = 0
        while self._steps and all(end.query() for _, end in self._steps[0]):
            for begin, end in self._steps.popleft():
                seconds += begin.elapsed_time(end) / 1000
                self._free += [begin, end]
            steps += 1
        return seconds / steps if steps else None

    def _record(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def peak_memory() -> int:
    """Return this process's peak memory in bytes: of tensors on its device or, on a CPU, of the whole process."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() != "cpu":
        return int(accelerator.max_memory_allocated())

    if STATUS.exists():
        for line in STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
