"""The trainer's log: one logger for all modules, aware of the rank it runs on.

Every rank runs the same code, so a plain print would repeat each line once per rank. `logger.info` writes to stdout on
rank 0 alone; what only another rank can know is logged with `extra=EVERY_RANK` and carries that rank's number.
Errors go to stderr on whichever rank they happen.

    from trainer.logs import EVERY_RANK, logger

    logger.info("Resuming from %s: step %d.", path, step)
    logger.info("%s holds the lock.", host, extra=EVERY_RANK)
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from schemas.errors import StorageError
from schemas.terminal import terminal_safe

EVERY_RANK = {"every_rank": True}

logger = logging.getLogger("clozeline.trainer")


def rank_of_process() -> int:
    """Return this process's rank as its launcher set it: RANK, SLURM_PROCID, or 0 without a launcher.

    What is no number counts as 0; the command refuses it (trainer/cli.py).
    """
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    return int(rank) if rank.isdecimal() else 0


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

        # The streams are looked up for each line because tests and progress bars replace them.
        stream = sys.stderr if is_error else sys.stdout
        # A log that cannot be written must not end a training run.
        with contextlib.suppress(OSError, ValueError, StorageError):
            print(message, file=stream, flush=True)


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
