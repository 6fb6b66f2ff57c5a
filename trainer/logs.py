"""The trainer's log: one logger for all modules, aware of the rank it runs on.

Every rank runs the same code, so a plain print would repeat each line once per rank. `logger.info` writes to stdout on
rank 0 alone; what only another rank can know is logged with `extra=EVERY_RANK` and carries that rank's number.
Errors go to stderr on whichever rank they happen.

    from trainer.logs import EVERY_RANK, logger

    logger.info("Resuming from %s: step %d.", path, step)
    logger.info("%s holds the lock.", host, extra=EVERY_RANK)

Once training begins, rank 0 also writes its lines to log.txt in the output folder, with their times (UTC), and those
from before. A command that continues appends to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from schemas import progress
from schemas.errors import StorageError
from schemas.terminal import terminal_safe

EVERY_RANK = {"every_rank": True}
"""For lines of all ranks."""
IN_FILE_ONLY = {"in_file_only": True}
"""For lines whose figures a terminal shows in another way."""

LOG_FILE = "log.txt"
MOST_WAITING = 1000  # lines that are kept until there is a file

logger = logging.getLogger("clozeline.trainer")


def rank_of_process() -> int:
    """Return this process's rank as its launcher set it: RANK, SLURM_PROCID, or 0 without a launcher.

    What is no number counts as 0; the command refuses it (trainer/cli.py).
    """
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    return int(rank) if rank.isdecimal() else 0


class _LogFile:
    """Rank 0's lines with their times. Those before `open`, when the folder may yet be refused, wait for it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: TextIO | None = None
        self._waiting: deque[str] = deque(maxlen=MOST_WAITING)
        self.after_last_line: Callable[[], None] | None = None

    def open(self, folder: Path) -> None:
        """Append to the log of a folder from now on. A disk that refuses lines does not end the command."""
        path = folder / LOG_FILE
        if path == self._path and path.exists():
            return
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
            self._path = path
        while self._waiting:
            self._write(self._waiting.popleft())

    def add(self, message: str) -> None:
        """Write a message. message: safe to print."""
        if rank_of_process() == 0:
            line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {message}\n"
            self._waiting.append(line) if self._file is None else self._write(line)

    def end(self) -> None:
        """Do what waits for the last line."""
        act, self.after_last_line = self.after_last_line, None
        if act is not None:
            act()

    def _write(self, line: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError):
                self._file.write(line)


log_file = _LogFile()


class _RankHandler(logging.Handler):
    """Writes messages to stdout and errors to stderr, and drops messages that rank 0 writes as well."""

    def emit(self, record: logging.LogRecord) -> None:
        rank = rank_of_process()
        is_error = record.levelno >= logging.ERROR
        if rank != 0 and not is_error and not getattr(record, "every_rank", False):
            return

        message = terminal_safe(record.getMessage())
        if rank != 0:
            message = f"rank {rank}: {message}"
        if is_error:
            message = f"clozeline: {message}"
        log_file.add(message)
        if getattr(record, "in_file_only", False):
            return

        # The streams are looked up for each line because tests and progress bars replace them.
        stream = sys.stderr if is_error else sys.stdout
        if record.levelno >= logging.WARNING:
            message = progress.colored(message, progress.RED if is_error else progress.YELLOW, stream)
        # A log that cannot be written must not end a training run.
        with contextlib.suppress(OSError, ValueError, StorageError), progress.above():
            print(message, file=stream, flush=True)


def show_place(place: str) -> None:
    """Let the terminal of rank 0 show what is done at present. place: as in `Watchdog.at`; a step's work is no news."""
    if rank_of_process() == 0:
        what = re.sub(r"^(seed \d+, )?step \d+(, |$)", "", place)
        progress.doing("" if what.startswith(("computing", "reading data")) else what)


GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/kfd"))
"""Device files that exist if the machine has a GPU of NVIDIA or AMD with its driver."""


def _says_something(record: logging.LogRecord) -> bool:
    """Return whether a message of DeepSpeed's is one to act on. That it computes on the CPU is none without a GPU."""
    is_about_cpu = record.getMessage().startswith("Setting accelerator to CPU.")
    return not is_about_cpu or any(device.exists() for device in GPU_DEVICES)


logger.addHandler(_RankHandler())
logger.setLevel(logging.INFO)
logger.propagate = False
# Before DeepSpeed is imported, because it logs the message during its import.
logging.getLogger("DeepSpeed").addFilter(_says_something)
