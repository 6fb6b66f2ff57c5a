"""What a launcher's terminal shows of Beam's log: nothing for a local job, the essentials for a cloud job.

    local runner       nothing: errors reach the terminal as exceptions, so Beam's own report would repeat them
    job service        our own warnings; the launcher itself says what the job is called and why it failed, and the rest
                       is on the console of Flink, Spark or Prism
    any other runner   warnings and errors, which may be seen nowhere else, and what Beam's runners log at INFO, such as
                       the id of the submitted job and the address of its page
    --verbose          everything from INFO up, with any runner, including tracebacks

This holds only while a command runs, and only if logging has not been set up: a notebook or a program that calls
`cli.main` keeps its log settings. Levels and handlers are restored at the end.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from pipeline.runtime.beam_internals import RUNNERS_LOGGER
from pipeline.runtime.runner_names import LOCAL_RUNNERS, PORTABLE_RUNNERS, short_name

BEAM_LOGGER = "apache_beam"
"""The parent of all of Beam's loggers."""

OWN_LOGGER = "clozeline"
"""The parent of all of the pipeline's loggers."""

RETRYING_LOGGERS = ("gcsfs", "google.auth", "urllib3")
"""Loggers of clients that warn at each retry; the launcher reports the final failure."""

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

    shown = _shown_loggers(beam_arguments, verbose)
    loggers = [logging.getLogger(name) for name in shown]
    levels = [logger.level for logger in loggers]
    handler = _handler(beam_arguments, verbose)

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


def _shown_loggers(beam_arguments: list[str], verbose: bool) -> list[str]:
    """Return the loggers whose records are shown from INFO up."""
    if verbose:
        return [BEAM_LOGGER, OWN_LOGGER]
    if is_local_job(beam_arguments) or is_job_of_a_service(beam_arguments):
        return []
    return [RUNNERS_LOGGER]


def _handler(beam_arguments: list[str], verbose: bool) -> logging.Handler:
    if is_local_job(beam_arguments) and not verbose:
        return logging.NullHandler()

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT) if verbose else LastLineOfTracebacks(FORMAT))
    if is_job_of_a_service(beam_arguments) and not verbose:
        handler.addFilter(logging.Filter(OWN_LOGGER))
    elif not verbose:
        handler.addFilter(_is_no_retry)
    return handler


def _is_no_retry(record: logging.LogRecord) -> bool:
    return not record.name.startswith(RETRYING_LOGGERS)


def is_local_job(beam_arguments: list[str]) -> bool:
    """Whether the job runs on this machine. That is the default, when --runner is not given."""
    runner = runner_flag(beam_arguments)
    return runner == "" or short_name(runner) in LOCAL_RUNNERS


def is_job_of_a_service(beam_arguments: list[str]) -> bool:
    """Whether the job goes to Flink, Spark, Prism or another job service."""
    return short_name(runner_flag(beam_arguments)) in PORTABLE_RUNNERS


def runner_flag(arguments: list[str]) -> str:
    """Return the value of --runner, or "". Examples: ["--runner=A"] and ["--runner", "A"] give "A"."""
    runner = ""
    for place, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name != "--runner":
            continue

        # argparse lets the last of several flags win; so does this loop.
        runner = value if is_joined else "".join(arguments[place + 1 : place + 2])
    return runner
