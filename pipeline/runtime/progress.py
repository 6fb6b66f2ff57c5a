"""Shows a job's progress from a thread, by its engine's metrics or else by the pieces in its staging.

Dataflow and Prism count finished pieces while a job runs; Flink, Spark and local runners do not. For those the staging
folder is listed, which on an object store takes one request per thousand reports, and takes at most LOOKING_SHARE of
the time. On a terminal, progress is a bar with MB/s and the time left; elsewhere it is a line every PRINT_EVERY
seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from tqdm import tqdm

from pipeline.commit.staging import Staging
from pipeline.runtime import metrics
from schemas import storage
from schemas.errors import StorageError

LOOK_EVERY = 0.5  # seconds between looks at a local folder
LOOK_EVERY_IN_STORE = 5.0  # seconds; listing an object store is a request, so it is looked at less often
LOOKING_SHARE = 0.05  # of the time, at most; a long listing is repeated after a long pause
PRINT_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Work:
    """What a job's progress is measured by: pieces of about the same size.

    prefix: prefix of the names of their reports in staging.
    pieces: how many there are.
    bytes: input bytes of all pieces together.
    """

    prefix: str
    pieces: int
    bytes: int


NOT_MEASURED = Work("", 0, 0)
"""The work of a job that has a single step, which shows no progress."""


STOP_SECONDS = 2.0
"""How long the end of a job waits for its last progress line."""


@contextmanager
def job_progress(name: str, staging: Staging, work: Work) -> Iterator[JobProgress]:
    """Show progress while the block runs."""
    progress = JobProgress(name, staging, work)
    done = threading.Event()
    thread = threading.Thread(target=progress.show, args=(done,), daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        done.set()
        thread.join(STOP_SECONDS)  # it may wait for a job server that does not answer


@dataclass
class JobProgress:
    """Finds out how much of a job's work is finished, and shows it.

    result: Beam's result of a job that runs on an engine; set once the job is submitted.
    """

    name: str
    staging: Staging
    work: Work
    result: Any = None

    def follow(self, result: Any) -> None:
        """From now on, take the progress from a job's metrics if its engine updates them while the job runs."""
        self.result = result

    def show(self, done: threading.Event) -> None:
        """Show progress until the job is done."""
        total = self.work.bytes
        look_every = LOOK_EVERY if storage.is_local(self.staging.output) else LOOK_EVERY_IN_STORE
        pause = look_every
        on_terminal = sys.stderr.isatty()
        started = monotonic()
        printed = started
        finished = 0

        with tqdm(total=total, desc=self.name, unit="B", unit_scale=True, disable=not on_terminal, leave=False) as bar:
            while not done.wait(pause):
                looked = monotonic()
                with contextlib.suppress(StorageError):  # the job itself meets the same error and reports it
                    finished = total * min(self._finished_pieces(), self.work.pieces) // max(self.work.pieces, 1)
                bar.update(finished - bar.n)
                if finished == total:
                    bar.set_description(f"{self.name}, last steps")

                now = monotonic()
                pause = max(look_every, (now - looked) / LOOKING_SHARE)
                if not on_terminal and now - printed >= PRINT_EVERY:
                    printed = now
                    print(progress_line(self.name, finished, total, now - started), file=sys.stderr, flush=True)

    def _finished_pieces(self) -> int:
        counted = self._counted_pieces()
        if counted:
            return counted

        if not self.work.prefix:
            return 0
        names = storage.names(self.staging.url(""), self.work.prefix)
        return sum(name.endswith(".json") for name in names)

    def _counted_pieces(self) -> int:
        """Return the finished pieces by the job's metrics; 0 for a local job, and if metrics come only at the end."""
        result = self.result
        if result is None:
            return 0
        try:
            return metrics.finished_pieces(result)
        except Exception:  # clients raise anything when an engine is busy or gone; the job itself reports that
            return 0


def progress_line(name: str, finished: int, total: int, seconds: float) -> str:
    """Example: `progress_line("shard", 5_000_000, 8_000_000, 10)` -> `"shard: 5.0 of 8.0 MB, 0.5 MB/s, 6 s left"`."""
    if total == 0:
        return f"{name}: running for {seconds:.0f} s"
    if finished >= total:
        # Steps that need all of the input at once, such as learning a vocabulary, have no pieces to count.
        return f"{name}: all {total / 1e6:.1f} MB are read; the last steps run, {seconds:.0f} s since the start"

    speed = finished / max(seconds, 1e-9)
    left = "time left not known yet"
    if finished:
        left = f"{(total - finished) / speed:.0f} s left"
    return f"{name}: {finished / 1e6:.1f} of {total / 1e6:.1f} MB, {speed / 1e6:.1f} MB/s, {left}"
