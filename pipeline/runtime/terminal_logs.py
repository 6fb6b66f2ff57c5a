"""What a launcher's terminal shows of the log: little of a local job, warnings and above of a remote one.

Only handlers are added, and only in the process that a user started. No logger's level changes, so workers, notebooks
and programs that import these modules keep the log as they have set it up.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

LOCAL_RUNNERS = ("", "fnapi", "direct", "switchingdirect", "bundlebaseddirect", "interactive")


class LastLineOfTracebacks(logging.Formatter):
    """A message that holds a traceback is its last line, the cause: engines log every failure whole and repeatedly."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if "Traceback (most recent call last)" not in text:
            return text

        last = text.rstrip().rpartition("\n")[2].strip()
        return f"{record.levelname} {record.name}: {last}"


@contextlib.contextmanager
def shown(arguments: list[str]) -> Iterator[None]:
    """Set the terminal's log up for the block; `arguments` are the flags that go to Beam, `--runner` among them.

    A local job's errors all reach the terminal as exceptions, so what Beam logs of them as well is not shown. A remote
    job's warnings come from elsewhere and are shown.
    """
    root = logging.getLogger()
    if root.handlers:  # somebody has set logging up
        yield
        return

    handler: logging.Handler
    if runner_flag(arguments).rpartition(".")[2].lower().removesuffix("runner") in LOCAL_RUNNERS:
        handler = logging.NullHandler()
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LastLineOfTracebacks("%(levelname)s %(name)s: %(message)s"))

    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def runner_flag(arguments: list[str]) -> str:
    """The value of --runner, empty when there is none. Examples: ["--runner=A"] and ["--runner", "A"] give "A"."""
    runner = ""
    for place, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name != "--runner":
            continue
        runner = value if is_joined else "".join(arguments[place + 1 : place + 2])
    return runner
