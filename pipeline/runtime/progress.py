"""How far a job is, seen from outside: finished pieces appear in its staging folder, and a thread counts them.

Nothing passes through Beam for this, so it works the same on every runner. On a terminal it is a bar with MB/s and the
time left; elsewhere it is a line every PRINT_EVERY seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from tqdm import tqdm

from pipeline.runtime.staging import Staging
from schemas import storage
from schemas.errors import StorageError

LOOK_EVERY = 0.5  # seconds between looks at a local folder
LOOK_EVERY_IN_STORE = 5.0  # seconds; listing an object store is a request, so it is looked at less often
PRINT_EVERY = 30.0  # seconds


@contextmanager
def job_progress(name: str, staging: Staging, weights: Mapping[str, int]) -> Iterator[None]:
    """Show progress while the block runs; `weights` gives the bytes of work behind each report that will appear."""
    watch = _Watch(name, staging, weights)
    done = threading.Event()
    thread = threading.Thread(target=watch.run, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass(frozen=True)
class _Watch:
    """Counts the finished work of a job and shows it."""

    name: str
    staging: Staging
    weights: Mapping[str, int]

    def run(self, done: threading.Event) -> None:
        """Show progress until the job is done."""
        total = sum(self.weights.values())
        look_every = LOOK_EVERY if storage.is_local(self.staging.output) else LOOK_EVERY_IN_STORE
        on_terminal = sys.stderr.isatty()
        started = monotonic()
        printed = started
        finished = 0

        with tqdm(total=total, desc=self.name, unit="B", unit_scale=True, disable=not on_terminal, leave=False) as bar:
            while not done.wait(look_every):
                with contextlib.suppress(StorageError):  # the job itself meets the same error and reports it
                    finished = self._finished_bytes()
                bar.update(finished - bar.n)

                now = monotonic()
                if not on_terminal and now - printed >= PRINT_EVERY:
                    printed = now
                    print(progress_line(self.name, finished, total, now - started), file=sys.stderr, flush=True)

    def _finished_bytes(self) -> int:
        names = storage.names(self.staging.url(""))
        return sum(self.weights.get(name, 0) for name in names)


def progress_line(name: str, finished: int, total: int, seconds: float) -> str:
    """Example: `progress_line("shard", 5_000_000, 8_000_000, 10)` -> `"shard: 5.0 of 8.0 MB, 0.5 MB/s, 6 s left"`."""
    speed = finished / max(seconds, 1e-9)
    left = "time left not known yet"
    if finished:
        left = f"{(total - finished) / speed:.0f} s left"
    return f"{name}: {finished / 1e6:.1f} of {total / 1e6:.1f} MB, {speed / 1e6:.1f} MB/s, {left}"
