"""Runs the jobs of a suite in parallel, each in its own process and only after the jobs that it needs.

If a job fails, the jobs that need it are not started; all others continue. When the suite is asked to stop, every
process saves and ends, and the next start continues from there. A job's output goes directly to its log file. Only the
end of that file is read, and only after a failure, so memory does not grow with the output of jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from schemas.errors import INTERRUPTED, PreemptedError
from schemas.host_limits import available_bytes, usable_cores, usable_gpus
from trainer.distributed.stop import StopRequest
from trainer.logs import logger
from trainer.metrics.presentation import duration

PARENT = "CLOZELINE_SUITE_PROCESS"
"""The environment variable that holds the process id of the suite's process."""

POLL_SECONDS = 0.1
"""Seconds between two checks for processes that have ended."""

END_OF_LOG = 8192
"""Bytes at the end of a log to search for its last error."""

ERROR_PREFIX = "clozeline: "
"""The prefix of the error lines that trainer/command_line.py prints."""

MEMORY_OF_A_JOB = 3 << 30
"""Bytes that fine-tuning a BERT-base on a CPU takes, about."""

Slot = dict[str, str]
"""Resources for one process: the environment variables that set its number of threads and its GPU."""


@dataclass(frozen=True)
class Job:
    """A process to run: `python -m trainer.suite.child WORDS`, a module whose `main` gets the other words.

    name: names the job and its log. needs: the names of the jobs that must be done first.
    is_done: called once all needed jobs are done; if it returns True, the job's results exist and it is not started.
    prepare: called just before the start. score: called once the job is done; returns its score for the log, if any.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    is_done: Callable[[], bool] = field(default=lambda: False, compare=False)
    prepare: Callable[[], None] = field(default=lambda: None, compare=False)
    score: Callable[[], str] = field(default=lambda: "", compare=False)


@dataclass(frozen=True)
class _Running:
    job: Job
    slot: Slot
    process: subprocess.Popen[bytes]
    started_at: float


class Scheduler:
    """Runs jobs in the given order, except that a job waits for those it needs, at most one at a time in each slot."""

    def __init__(self, jobs: Sequence[Job], slots: Sequence[Slot], logs: Path, stop: StopRequest):
        """logs: the folder for the jobs' output."""
        self.done: set[str] = set()
        """The names of the jobs whose results exist and are what was asked for."""

        self.errors: dict[str, str] = {}
        """By job name, one line that says why the job failed or was not started."""

        self._waiting = list(jobs)
        self._free = list(slots)
        self._running: list[_Running] = []
        self._count = len(jobs)
        self._logs = logs
        self._stop = stop

    def run(self) -> None:
        """Run all jobs. If the suite is asked to stop, raises PreemptedError once all processes have ended.

        Its exit code is 130 after Ctrl-C, else 75. Jobs that fail are recorded in `errors`.
        """
        self._stop.training_begins()

        while (self._waiting or self._running) and not self._stop.asked:
            self._collect()
            self._start_what_can_start()
            if self._running:
                sleep(POLL_SECONDS)

        if self._running or self._waiting:
            self._end_all()
            stopped = PreemptedError(
                f"stopped with {len(self.done)} of {self._count} jobs done; the progress of the others is saved. The "
                "same command continues."
            )
            if self._stop.interrupted:
                stopped.exit_code = INTERRUPTED
            raise stopped

    # ---- Starting ----

    def _start_what_can_start(self) -> None:
        """Start jobs in the free slots, and remove those that are done already or need a job that failed."""
        for job in list(self._waiting):
            failed = next((need for need in job.needs if need in self.errors), None)
            if failed is not None:
                self._waiting.remove(job)
                self.errors[job.name] = f"not started, because {failed} failed"
                logger.info("%s: not started (%s), because %s failed", job.name, self._position(), failed)
            elif self._free and self.done.issuperset(job.needs):
                self._waiting.remove(job)
                self._start_unless_done(job)

    def _start_unless_done(self, job: Job) -> None:
        if job.is_done():
            self.done.add(job.name)
            logger.info("%s: done before (%s)", job.name, self._position())
            return

        job.prepare()
        slot = self._free.pop(0)
        logger.info("%s: started, with its log in %s", job.name, self.log_of(job.name))
        self.log_of(job.name).parent.mkdir(parents=True, exist_ok=True)
        with self.log_of(job.name).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainer.suite.child", *job.words],
                env=os.environ | slot | {PARENT: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # With a new session, Ctrl-C in a terminal reaches only the suite's process, which asks jobs to save.
                start_new_session=True,
            )
        self._running.append(_Running(job, slot, process, monotonic()))

    def log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    # ---- Ending ----

    def _collect(self) -> None:
        for running in list(self._running):
            exit_code = running.process.poll()
            if exit_code is None:
                continue

            self._running.remove(running)
            self._free.append(running.slot)
            name = running.job.name

            if exit_code == 0:
                self.done.add(name)
                time = duration(monotonic() - running.started_at)
                told = ", ".join(text for text in (running.job.score(), time) if text)
                logger.info("%s: done (%s): %s", name, self._position(), told)
            else:
                self.errors[name] = self._reason(name, exit_code)
                logger.info("%s: failed (%s): %s", name, self._position(), self.errors[name])

    def _position(self) -> str:
        return f"{len(self.done) + len(self.errors)} of {self._count}"

    def _reason(self, name: str, exit_code: int) -> str:
        path = self.log_of(name)
        if exit_code < 0:
            return f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)}); see {path}"

        return last_error(path) or f"exit code {exit_code}; see {path}"

    def _end_all(self) -> None:
        """Ask all processes to save and end, and wait for them. A second Ctrl-C ends this process, and so all jobs."""
        logger.info("Stopping: %d jobs save their progress.", len(self._running))
        for running in self._running:
            running.process.terminate()

        # The processes that still finished are done. The others did not fail: the next start continues them.
        for running in self._running:
            if running.process.wait() == 0:
                self.done.add(running.job.name)
        self._running.clear()


def last_error(path: Path) -> str | None:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - END_OF_LOG))
        lines = file.read().decode(errors="replace").splitlines()

    errors = [line for line in lines if line.startswith(ERROR_PREFIX)]
    return errors[-1].removeprefix(ERROR_PREFIX) if errors else None


# ---- The resources of this machine ----


def slots(workers: int | None) -> list[Slot]:
    """Return the slots of this machine: one per GPU or, without GPUs, one per core.

    Without a GPU there are fewer if memory is short. workers: the number of slots instead. If there are more slots than
    GPUs, slots share GPUs.
    """
    # One thread per process, unless OMP_NUM_THREADS says otherwise. With more threads than cores, processes would wait
    # for each other. The number of threads also affects the rounding of sums.
    threads = os.environ.get("OMP_NUM_THREADS") or "1"
    slot = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", threads)}

    devices = usable_gpus()
    if not devices:
        suffices_for = max(1, available_bytes() // MEMORY_OF_A_JOB)
        return [slot] * (workers or min(usable_cores(), suffices_for))
    count = workers or len(devices)
    return [slot | {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} for number in range(count)]
