"""Measures how fast a run trains: its rates, the seconds of its steps, and its share of the devices' peak.

Nothing here waits for the device.

Ranks wait for each other in every step, so the seconds of a whole step are nearly the same on all of them, and do not
show which rank the others wait for. What differs is a rank's own seconds: those of its forward passes, which contain no
collective call (except in ZeRO 3, which gathers weights there), and those of waiting for data. They show a slow GPU, a
machine with other work or a slow disk.

On a GPU, the times of forward passes and of the ends of steps are events in the device's queue. They are read when a
line is logged, when the results of the last step are on the host and the device has therefore passed its events.
"""

from __future__ import annotations

import resource
import socket
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator

from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder, mean_seen
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.threads import device_kind
from trainer.metrics.ranks import RankReport
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token, peak_flops
from trainer.step import HostCopy, to_device

STATUS = Path("/proc/self/status")
"""Linux only: holds the peak of the process's resident memory, VmHWM, in kB."""


class MeasuredInterval(NamedTuple):
    """What was measured since the last logged line.

    step_seconds: mean of this rank's steps, without evaluations and checkpoints. ranks: what all ranks measured up to
    the line before, empty at the first one. ended_at: when the last step ended, by `perf_counter`. stalled_seconds: how
    long this process had waited for data by then.
    """

    step_seconds: float
    ranks: list[RankReport]
    ended_at: float
    stalled_seconds: float


class StepClock:
    """Times the steps of one engine. The loop reports when a step begins and ends; hooks observe forward passes."""

    def __init__(self, engine: DeepSpeedEngine):
        """A collective call."""
        self._device = torch.device(engine.device or "cpu")
        self._hosts = run_on_all_ranks(socket.gethostname)

        # The last logged line: what this rank measured for it, until it is gathered; then that of all ranks.
        self._line_step = 0
        self._measured: list[float] | None = None
        self._gathered: HostCopy | None = None

        # Since the last logged line: steps and their seconds, and the begins and ends of their forward passes. The
        # passes of the step in progress are kept apart.
        self._steps = 0
        self._step_seconds = 0.0
        self._passes: list[tuple[Any, Any]] = []
        self._passes_of_step: list[tuple[Any, Any]] = []
        self._step_began = perf_counter()
        self._pass_began: Any = None

        # Seconds of waiting for data: up to the end of the last step, and up to the last logged line.
        self._stalled = 0.0
        self._stalled_before = 0.0

        # A mark whose time is known by the host's clock, and the mark at the end of the last step.
        self._known = self._step_end = self._mark()
        if self._device.type == "cuda":
            self._known.synchronize()
        self._known_at = perf_counter()

        # Hooks are on the engine, not on the model, because a model may be compiled together with its hooks.
        engine.register_forward_pre_hook(self._before_pass)
        engine.register_forward_hook(self._after_pass)

    def step_begins(self) -> None:
        """Note that a step begins. Call this before its data are read."""
        self._step_began = perf_counter()

    def step_ended(self, stalled_seconds: float) -> float:
        """Note that a step's update was started, and return how many seconds the step took. A collective call.

        What the ranks measured for a line is gathered here and not while it is logged, because a rank whose data cannot
        be read logs its last line alone. stalled_seconds: how long this process has waited for data so far.
        """
        seconds = perf_counter() - self._step_began
        self._steps += 1
        self._step_seconds += seconds
        self._stalled = stalled_seconds
        self._passes += self._passes_of_step
        self._passes_of_step = []
        self._step_end = self._mark()
        if self._measured is not None:
            own_N = to_device(torch.tensor(self._measured, dtype=torch.float64), self._device)
            all_RN = [torch.empty_like(own_N) for _ in self._hosts]
            dist.all_gather(all_RN, own_N)
            self._gathered = HostCopy(torch.cat(all_RN))
            self._measured = None
        return seconds

    def end_interval(self, step: int) -> MeasuredInterval:
        """Return what was measured up to the end of `step` since the last call.

        The results of the step must be on the host.
        """
        steps = max(self._steps, 1)
        step_seconds = self._step_seconds / steps
        passes = sum(seconds_between(begin, end) for begin, end in self._passes)
        own_seconds = (passes + self._stalled - self._stalled_before) / steps
        self._known_at += seconds_between(self._known, self._step_end)
        self._known = self._step_end

        self._steps = 0
        self._step_seconds = 0.0
        self._passes = []
        self._stalled_before = self._stalled
        ranks = self._reports()
        self._line_step = step
        self._measured = [step_seconds, own_seconds, float(peak_memory())]
        return MeasuredInterval(step_seconds, ranks, self._known_at, self._stalled)

    def _reports(self) -> list[RankReport]:
        if self._gathered is None:
            return []
        values = iter(self._gathered.read())
        numbers = zip(self._hosts, zip(values, values, values, strict=True), strict=True)
        return [
            RankReport(self._line_step, step_seconds, own_seconds, int(memory), rank, host)
            for rank, (host, (step_seconds, own_seconds, memory)) in enumerate(numbers)
        ]

    def _before_pass(self, engine: Any, inputs: Any) -> None:
        # Evaluations, which are not timed, use the same engine.
        if engine.training:
            self._pass_began = self._mark()

    def _after_pass(self, engine: Any, inputs: Any, losses: Any) -> None:
        if engine.training:
            self._passes_of_step.append((self._pass_began, self._mark()))

    def _mark(self) -> Any:
        """Return the time now by `perf_counter`, or on a GPU an event at this place of its queue."""
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Meter:
    """Counts the tokens and seconds of a run over all its resumes, and measures rates between two readings.

    tokens: trained on so far, without padding. seconds: spent on training so far.
    """

    def __init__(self, tokens: int, seconds: float):
        """`tokens` and `seconds` are the run's totals when it was resumed."""
        self.tokens = tokens
        self._seconds_before = seconds
        self._started = perf_counter()

        # The last reading, from which rates are measured.
        self._last_tokens = tokens
        self._last_time = self._started
        self._last_stalled = 0.0

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        """Seconds spent on training so far, over all resumes."""
        return self._seconds_before + perf_counter() - self._started

    def read(self, now: float, stalled: float) -> dict[str, float | None]:
        """Return totals, and rates since the last reading.

        now: the time of the reading by `perf_counter`, when the tokens that were added had been trained on. stalled:
        the seconds that this process had waited for data by then.
        """
        elapsed = now - self._last_time
        readings: dict[str, float | None] = {
            "tokens": self.tokens,
            "tokens_per_second": (self.tokens - self._last_tokens) / elapsed,
            "loader_stall_fraction": (stalled - self._last_stalled) / elapsed,
            "seconds": self._seconds_before + now - self._started,
        }

        self._last_tokens = self.tokens
        self._last_time = now
        self._last_stalled = stalled
        return readings

    def skip(self, seconds: float) -> None:
        """Exclude `seconds` that were not spent on training from the next rates. They still count in `seconds`."""
        self._last_time += seconds


def seconds_between(begin: Any, end: Any) -> float:
    """Return the seconds between two marks of a `StepClock`, which the device must have passed."""
    return end - begin if isinstance(end, float) else begin.elapsed_time(end) / 1000


def peak_memory() -> int:
    """Return this process's peak memory in bytes: of tensors on its device or, on a CPU, of the whole process."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() != "cpu":
        return int(accelerator.max_memory_allocated())

    # getrusage would count the process that started this one. gVisor's file has no such line.
    lines = STATUS.read_text(encoding="utf-8").splitlines() if STATUS.exists() else []
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    if peak is not None:
        return 1024 * int(peak.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def mfu_of_one_token(recipe: Recipe, folders: list[PairFolder], world_size: int) -> float | None:
    """Return the model FLOPs utilization (trainer/models/flops.py) at one real token per second over all devices.

    None if their peak is not known: on CPUs, on unknown GPUs, and in fp32.
    """
    if device_kind() != "cuda" or recipe.engine.precision == "fp32":
        return None

    peak = peak_flops(torch.cuda.get_device_name())
    if peak is None:
        return None

    shape = encoder_shape(recipe.model, folders[0].vocabulary.size)
    seen = mean_seen(folder.manifest for folder in folders)
    predicted = 1.0 if recipe.objective.kind == "clm" else recipe.masking.prob
    return flops_per_token(shape, seen, predicted) / (world_size * peak)
