"""How far a job is, seen from outside: finished pieces appear in its staging folder, and a thread counts them.

Nothing passes through Beam for it, so it is the same on every runner. On a terminal it is a bar with MB/s and the time
left; elsewhere a line now and then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from tqdm import tqdm

from pipeline.runtime.staging import Staging
from schemas import storage
from schemas.errors import StorageError

LOOK_EVERY, TELL_EVERY = 0.5, 30.0  # seconds; listing an object store is a request, so it is looked at less often


@contextmanager
def shown(what: str, staging: Staging, weights: Mapping[str, int]) -> Iterator[None]:
    """Show progress while the block runs; `weights` gives the bytes of work behind each report that will appear."""
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(what, staging, weights, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()


def _watch(what: str, staging: Staging, weights: Mapping[str, int], done: threading.Event) -> None:
    total = sum(weights.values())
    on_terminal = sys.stderr.isatty()
    started = told = monotonic()
    finished = 0
    with tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=not on_terminal, leave=False) as bar:
        while not done.wait(LOOK_EVERY if storage.is_local(staging.output) else 10 * LOOK_EVERY):
            with contextlib.suppress(StorageError):  # the job itself meets it too, and names it
                finished = sum(weights.get(name, 0) for name in storage.names(staging.url("")))
            bar.update(finished - bar.n)
            if not on_terminal and monotonic() - told >= TELL_EVERY:
                told = monotonic()
                print(told_line(what, finished, total, told - started), file=sys.stderr, flush=True)


def told_line(what: str, finished: int, total: int, seconds: float) -> str:
    """Example: `told_line("shard", 50_000_000, 80_000_000, 10)` -> `"shard: 50.0 of 80.0 MB, 5.0 MB/s, 6 s left"`."""
    speed = finished / max(seconds, 1e-9)
    left = f"{(total - finished) / speed:.0f} s left" if finished else "time left not known yet"
    return f"{what}: {finished / 1e6:.1f} of {total / 1e6:.1f} MB, {speed / 1e6:.1f} MB/s, {left}"
