"""Calls a function for many items in processes of this machine, which end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from time import monotonic
from typing import TypeVar

from pipeline.beam.stop_signals import SIGNALS
from schemas import progress
from schemas.errors import ClozelineError

WORTH_A_PROCESS = 4 << 20  # bytes of input; with less, starting processes takes longer than the work
PRINT_EVERY = 30.0  # seconds between lines of progress where there is no terminal

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_processes(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """Yield the function's result for each item, in the items' order. At most 2 * `processes` items are under way.

    Raises the first error of a call, and ClozelineError if a process is killed; then the others are ended at once.
    """
    if processes == 1:
        yield from map(function, items)
        return

    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_process)
    under_way: deque[Future[Result]] = deque()
    try:
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) >= 2 * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    except BaseException as error:  # also Ctrl-C, after which a call would take seconds to end
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()).difference(others):
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise ClozelineError(
                "A process was killed; when memory runs out, the system does that. Finished pieces are kept: run the "
                "same command again, with fewer --processes if memory is short."
            ) from error
        raise
    pool.shutdown()


def _begin_process() -> None:
    """Leave signals to the launcher, and end with it, however it ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process as soon as the one that started it with multiprocessing has ended, in whatever way.

    A fork server, which may have forked it, lives as long as any of its children, so it is not what is watched.
    """

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def with_progress(results: Iterator[Result], total: int, what: str) -> Iterator[Result]:
    """Yield the results while a bar shows on a terminal how many there are, or a line every PRINT_EVERY seconds."""
    printed = monotonic()
    with progress.Bar(what, total, " pieces") as bar:
        for number, result in enumerate(results, 1):
            bar.advance()
            if not bar.is_drawn and monotonic() - printed >= PRINT_EVERY:
                printed = monotonic()
                print(f"{what}: {number:,} of {total:,}", file=sys.stderr, flush=True)
            yield result
