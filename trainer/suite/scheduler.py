"""Runs jobs in parallel, each in a process of its own, and none before what it needs is done.

A job that fails ends nothing but itself and the jobs that need it. When the suite is asked to stop, all processes are
asked to save and end; what they saved is continued by the next start. The scheduler holds nothing of a finished job but
its outcome: output goes straight to a file for each job, of which only the end is read, and only after a failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

from trainer.logs import logger
from trainer.suite.child import PARENT
from trainer.suite.stop import Stop

SECONDS_BETWEEN_LOOKS = 0.1

END_OF_LOG = 8192
"""Bytes of a log that are searched for its last error."""

PREFIX = "clozeline: "
"""What our programs begin a line about an error with."""


@dataclass(frozen=True)
class Job:
    """A process to run: `python -m trainer.suite.child WORDS`.

    name: also that of its log. needs: the names of jobs that must be done before.
    is_done: whether there is nothing left to do; asked when all needs are met. prepare: called before the start.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    is_done: Callable[[], bool] = field(default=lambda: False, compare=False)
    prepare: Callable[[], None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Slot:
    """A place for a process: the cores or the GPU that it gets, as environment variables."""

    environment: dict[str, str]


@dataclass(frozen=True)
class _Running:
    job: Job
    slot: Slot
    process: subprocess.Popen[bytes]


class Scheduler:
    """Runs jobs, at most one at a time in each slot, in the given order as far as their needs allow."""

    def __init__(self, jobs: Sequence[Job], slots: Sequence[Slot], logs: Path, stop: Stop):
        """logs: the folder of the files that the jobs' output is written to."""
        self.errors: dict[str, str] = {}
        """By the name of a job that failed: why, in one line."""

        self.done: set[str] = set()
        """The names of jobs whose results are there and are what was asked for."""

        self._roots: dict[str, str] = {}

        self._waiting = list(jobs)
        self._free = list(slots)
        self._running: list[_Running] = []
        self._count = len(jobs)
        self._logs = logs
        self._stop = stop

    def run(self) -> None:
        """Run all jobs. Raises SuiteStoppedError once all processes have ended, if the suite was asked to stop."""
        self._logs.mkdir(parents=True, exist_ok=True)
        while (self._waiting or self._running) and not self._stop.asked:
            self._collect()
            self._start_what_can_start()
            if self._running:
                sleep(SECONDS_BETWEEN_LOOKS)

        if self._running or self._waiting:
            self._end_all()
            raise self._stop.error(
                f"Stopped with {len(self.done)} of {self._count} jobs done; what the others did is saved. The same "
                "command continues."
            )

    # ---- Starting ----

    def _start_what_can_start(self) -> None:
        """Fill the free slots, and settle the jobs that have nothing to do or cannot be done."""
        for job in list(self._waiting):
            failed = [need for need in job.needs if need in self.errors]
            if failed:
                self._waiting.remove(job)
                # The job that failed itself, behind others that were not started either.
                self._roots[job.name] = self._roots.get(failed[0], failed[0])
                self._fail(job, f"not started, because {self._roots[job.name]} failed")
                continue

            is_ready = all(need in self.done for need in job.needs)
            if is_ready and self._free:
                self._waiting.remove(job)
                self._settle_or_start(job)

    def _settle_or_start(self, job: Job) -> None:
        if job.is_done():
            self.done.add(job.name)
            logger.info("%s: done before (%d of %d)", job.name, len(self.done), self._count)
            return

        if job.prepare is not None:
            job.prepare()
        slot = self._free.pop(0)
        logger.info("%s: started", job.name)
        with self.log_of(job.name).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainer.suite.child", *job.words],
                env=os.environ | slot.environment | {PARENT: str(os.getpid()), "PATH": search_path()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal reaches only the suite's process, which asks the others to save.
                start_new_session=True,
            )
        self._running.append(_Running(job, slot, process))

    def log_of(self, name: str) -> Path:
        """Return the file that a job's output is written to."""
        return self._logs / f"{name.replace('/', '.')}.log"

    # ---- Ending ----

    def _collect(self) -> None:
        """Note which processes have ended, and free their slots."""
        for running in list(self._running):
            exit_code = running.process.poll()
            if exit_code is None:
                continue
            self._running.remove(running)
            self._free.append(running.slot)

            if exit_code == 0:
                self.done.add(running.job.name)
                logger.info("%s: done (%d of %d)", running.job.name, len(self.done), self._count)
            else:
                self._fail(running.job, self._reason(running.job, exit_code))

    def _fail(self, job: Job, reason: str) -> None:
        self.errors[job.name] = reason
        logger.info("%s: %s", job.name, reason)

    def _reason(self, job: Job, exit_code: int) -> str:
        """Return in one line why a process ended."""
        path = self.log_of(job.name)
        if exit_code < 0:
            return f"ended by {signal.Signals(-exit_code).name}; see {path}"

        told = last_error(path)
        return told if told is not None else f"exit code {exit_code}; see {path}"

    def _end_all(self) -> None:
        """Ask all processes to save and end, and wait for them."""
        logger.info("Stopping: %d jobs save what they did. Ctrl-C ends them at once.", len(self._running))
        for running in self._running:
            running.process.terminate()

        while any(running.process.poll() is None for running in self._running):
            if self._stop.at_once:
                for running in self._running:
                    running.process.kill()
            sleep(SECONDS_BETWEEN_LOOKS)
        self._collect_after_stop()
        self._count_what_was_done_before()

    def _collect_after_stop(self) -> None:
        """Count what was done by the time of the stop. What ended otherwise is continued later, and is no failure."""
        for running in self._running:
            if running.process.returncode == 0:
                self.done.add(running.job.name)
        self._running.clear()

    def _count_what_was_done_before(self) -> None:
        """Count the jobs that did not have their turn, but were done by an earlier start: their results stand."""
        if self._stop.at_once:
            return
        for job in self._waiting:
            if all(need in self.done for need in job.needs) and job.is_done():
                self.done.add(job.name)


def search_path() -> str:
    """Return PATH behind the interpreter's folder, so that DeepSpeed finds ninja if no environment is activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def last_error(path: Path) -> str | None:
    """Return the last line about an error in a job's log, None if there is none."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - END_OF_LOG))
        lines = file.read().decode(errors="replace").splitlines()

    told = [line for line in lines if line.startswith(PREFIX)]
    return told[-1].removeprefix(PREFIX) if told else None


def slots(workers: int | None) -> list[Slot]:
    """Return the slots of this machine.

    On GPUs there is one for each, otherwise one for each core. More `workers` than GPUs share them in turn. Each
    process computes with one thread on the CPU, unless OMP_NUM_THREADS says otherwise: with fewer cores than threads
    all of them would wait for each other, and sums over several threads depend on their number.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    environment = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", threads)}

    devices = gpus()
    if not devices:
        return [Slot(environment) for _ in range(workers or available_cores())]
    return [
        Slot(environment | {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]})
        for number in range(workers or len(devices))
    ]


def gpus() -> list[str]:
    """Return the NVIDIA GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them. Loads no CUDA."""
    if os.environ.get("DS_ACCELERATOR", "cuda") != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name not in ("", "-1")]
    names = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(names, key=int)


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
