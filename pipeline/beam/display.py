"""What a launcher's terminal shows of a job: Beam's log, and the job's progress. Imports no Beam, for `--help`.

Of Beam's log:

    local runner       nothing: errors reach the terminal as exceptions, so Beam's own report would repeat them
    job service        nothing: the launcher itself says what the job is called and why it failed, and the rest is on
                       the console of Flink, Spark or Prism
    any other runner   warnings and errors, which may be seen nowhere else, and what Beam's runners log at INFO, such as
                       the id of the submitted job and the address of its page
    --verbose          everything from INFO up, with any runner, including tracebacks

This holds only while a command runs, and only if logging has not been set up: a notebook or a program that calls
`cli.main` keeps its log settings.

Progress is measured by the pieces in the job's staging, because of the engines only some count while a job runs. To
list the folder takes one request per thousand reports on an object store, and at most LOOKING_SHARE of the time. On a
terminal, progress is a bar with MB/s and the time left, or of a small job the time alone; elsewhere it is a line every
PRINT_EVERY seconds.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from pipeline.beam.internals import LOCAL_RUNNERS, PORTABLE_RUNNERS, RUNNERS_LOGGER, short_name
from schemas import progress, storage
from schemas.errors import StorageError

if TYPE_CHECKING:
    from pipeline.commit.staging import Staging

BEAM_LOGGER = "apache_beam"
"""The parent of all of Beam's loggers."""

OWN_LOGGER = "clozeline"
"""The parent of all of the pipeline's loggers."""

RETRYING_LOGGERS = ("gcsfs", "google.auth", "urllib3")
"""Loggers of clients that warn at each retry; the launcher reports the final failure."""

FORMAT = "%(levelname)s %(name)s: %(message)s"

LOOK_EVERY = 0.5  # seconds between looks at a local folder
LOOK_EVERY_IN_STORE = 5.0  # seconds; listing an object store is a request, so it is looked at less often
LOOKING_SHARE = 0.05  # of the time, at most; a long listing is repeated after a long pause
PRINT_EVERY = 30.0  # seconds
FEW_PIECES = 3  # of so few, none is finished for most of the time: the line on a terminal has the time, and no share
STOP_SECONDS = 2.0  # how long the end of a job waits for its last progress line


class LastLineOfTracebacks(logging.Formatter):
    """Reduces a message with a traceback to its last line, the cause: engines log each failure whole and repeatedly."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if "Traceback (most recent call last)" not in text:
            return text

        last = text.rstrip().rpartition("\n")[2].strip()
        return f"{record.levelname} {record.name}: {last}"


@contextmanager
def job_logs(beam_arguments: list[str], verbose: bool = False) -> Iterator[None]:
    """Set up the terminal's log for the block. `beam_arguments` are the flags that go to Beam, --runner among them."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return

    is_hidden = not verbose and _runner_flag(beam_arguments) in ("", *LOCAL_RUNNERS, *PORTABLE_RUNNERS)
    handler = logging.NullHandler() if is_hidden else _handler(verbose)
    shown = [BEAM_LOGGER, OWN_LOGGER] if verbose else [RUNNERS_LOGGER]
    loggers = [logging.getLogger(name) for name in shown if not is_hidden]
    levels = [logger.level for logger in loggers]

    root.addHandler(handler)
    for logger in loggers:
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        root.removeHandler(handler)


def _handler(verbose: bool) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT) if verbose else LastLineOfTracebacks(FORMAT))
    if not verbose:
        handler.addFilter(lambda record: not record.name.startswith(RETRYING_LOGGERS))
    return handler


def _runner_flag(arguments: list[str]) -> str:
    """Return the short name of the runner that --runner names, or "". The last of several flags wins, as for Beam."""
    runner = ""
    for place, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name == "--runner":
            runner = value if is_joined else "".join(arguments[place + 1 : place + 2])
    return short_name(runner)


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


@contextmanager
def job_progress(name: str, staging: Staging, work: Work) -> Iterator[None]:
    shown = JobProgress(name, staging, work)
    done = threading.Event()
    thread = threading.Thread(target=shown.show, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(STOP_SECONDS)  # it may wait for a store that does not answer


@dataclass
class JobProgress:
    name: str
    staging: Staging
    work: Work

    def show(self, done: threading.Event) -> None:
        look_every = LOOK_EVERY if storage.is_local(self.staging.output) else LOOK_EVERY_IN_STORE
        pause = look_every
        started = monotonic()
        printed = started
        total = self.work.bytes
        before = finished = self._finished_bytes(0)  # by an earlier attempt, in no time of this one

        is_shared = self.work.pieces > FEW_PIECES
        with progress.Bar(self.name, total if is_shared else None, "B" if is_shared else "", done=finished) as bar:
            while not done.wait(pause):
                looked = monotonic()
                finished = self._finished_bytes(finished)
                bar.reach(finished)
                bar.doing("last steps" if finished == total else "")

                now = monotonic()
                pause = max(look_every, (now - looked) / LOOKING_SHARE)
                if not bar.is_drawn and now - printed >= PRINT_EVERY:
                    printed = now
                    print(self._line(finished, before, now - started), file=sys.stderr, flush=True)

    def _finished_bytes(self, before: int) -> int:
        with contextlib.suppress(StorageError):  # the job itself meets the same error and reports it
            names = storage.names(self.staging.url(""), self.work.prefix) if self.work.prefix else []
            pieces = min(sum(name.endswith(".json") for name in names), self.work.pieces)
            return self.work.bytes * pieces // max(self.work.pieces, 1)
        return before

    def _line(self, finished: int, before: int, seconds: float) -> str:
        from tqdm import tqdm  # not in commands that show nothing

        total = self.work.bytes
        name = f"{self.name}, last steps" if finished == total > 0 else self.name
        options = {"prefix": name, "unit": "B", "unit_scale": True, "initial": before}
        return tqdm.format_meter(finished, total, seconds, ncols=0, **options)
