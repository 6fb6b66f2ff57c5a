"""What the terminal of a launcher shows of Beam's log: nothing of a local job, the essentials of a remote one.

    local runner       nothing: errors reach the terminal as exceptions, so Beam's own report of them is a repetition
    any other runner   warnings and errors, which may be seen nowhere else, and what Beam's runners say at INFO, such as
                       the id of the submitted job and the address of its page
    --verbose          everything from INFO on, with any runner, tracebacks included

This holds only while a command runs, and only when nobody has set up logging: a notebook or a program that calls
`cli.main` keeps the log as it is. Levels and handlers are put back at the end.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from pipeline.runtime.beam_internals import RUNNERS_LOGGER
from pipeline.runtime.runner_names import LOCAL_RUNNERS, short_name

BEAM_LOGGER = "apache_beam"
"""The parent of all of Beam's loggers."""

FORMAT = "%(levelname)s %(name)s: %(message)s"


class LastLineOfTracebacks(logging.Formatter):
    """Reduces a message with a traceback to its last line, the cause: engines log each failure whole and repeatedly."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if "Traceback (most recent call last)" not in text:
            return text

        last = text.rstrip().rpartition("\n")[2].strip()
        return f"{record.levelname} {record.name}: {last}"


@contextlib.contextmanager
def job_logs(beam_arguments: list[str], verbose: bool = False) -> Iterator[None]:
    """Set up the terminal's log for the block. `beam_arguments` are the flags that go to Beam, --runner among them."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return

    logger = logging.getLogger(BEAM_LOGGER if verbose else RUNNERS_LOGGER)
    previous_level = logger.level
    is_visible = verbose or not is_local_job(beam_arguments)
    handler = _visible_handler(verbose) if is_visible else logging.NullHandler()

    root.addHandler(handler)
    if is_visible and previous_level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(previous_level)
        root.removeHandler(handler)


def _visible_handler(verbose: bool) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT) if verbose else LastLineOfTracebacks(FORMAT))
    return handler


def is_local_job(beam_arguments: list[str]) -> bool:
    """Whether the job runs on this machine. That is the default, when --runner is not given."""
    runner = runner_flag(beam_arguments)
    return runner == "" or short_name(runner) in LOCAL_RUNNERS


def runner_flag(arguments: list[str]) -> str:
    """The value of --runner, empty when there is none. Examples: ["--runner=A"] and ["--runner", "A"] give "A"."""
    runner = ""
    for place, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name != "--runner":
            continue

        # argparse lets the last of several flags win; so does this loop.
        runner = value if is_joined else "".join(arguments[place + 1 : place + 2])
    return runner
