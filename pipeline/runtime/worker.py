"""A local worker process: Beam's own, with less on the user's terminal.

Errors still reach the user: Beam sends an exception's text to the process that runs the job, which raises it.
"""

import gc
import io
import logging
import os
import sys

from pipeline.runtime import local_workers
from pipeline.runtime.carried_errors import is_carried
from schemas.errors import UsageError


class QuietErrors(io.TextIOWrapper):
    """stderr without the tracebacks of errors that a user can act on.

    Beam prints the traceback of every exception, whole, before it sends it on. What it prints of faults in the program
    still appears.
    """

    _after_traceback = False

    def write(self, text: str) -> int:
        line_end_only = text == "\n" and self._after_traceback  # print writes a text and its line end apart
        self._after_traceback = is_carried(text)
        if self._after_traceback or line_end_only:
            return len(text)
        return super().write(text)


def main() -> None:
    try:
        local_workers.end_with_launcher()
    except UsageError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None

    gc.set_threshold(100_000, 50, 50)  # a run holds millions of strings and no cycles; looking for some costs 5%
    sys.stderr = QuietErrors(sys.stderr.buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    logging.getLogger().addHandler(logging.NullHandler())  # until Beam's handler takes the log to the launcher

    from apache_beam.runners.worker import sdk_worker_main  # it warns while it is imported

    sdk_worker_main.main(sys.argv)
    os._exit(0)  # all work is handed over; tearing down the interpreter would keep the user waiting half a second


if __name__ == "__main__":
    main()
