"""A local worker process: Beam's own, with less output on the user's terminal.

Errors still reach the user: Beam sends an exception's text to the process that runs the job, which raises it. A worker
whose launcher was killed prints nothing: its connections break, and several of Beam's threads would each print an
error.
"""

import io
import logging
import os
import sys
import threading

from pipeline.runtime import beam_internals, local_workers
from pipeline.runtime.beam_import import import_beam
from pipeline.runtime.carried_errors import is_carried
from pipeline.runtime.worker_environment import look_for_cycles_seldom
from schemas.errors import UsageError


class QuietErrors(io.TextIOWrapper):
    """stderr without the tracebacks of errors that a user can act on.

    Beam prints the traceback of every exception before it sends it to the launcher. Tracebacks of bugs in the program
    still appear.
    """

    _after_traceback = False

    def write(self, text: str) -> int:
        if text.startswith(beam_internals.LOST_LOG_CONNECTION):
            local_workers.end_if_orphaned()
        # print() writes a text and its line end separately, so the line end after a hidden traceback is hidden too.
        is_its_line_end = text == "\n" and self._after_traceback
        self._after_traceback = is_carried(text)
        if self._after_traceback or is_its_line_end:
            return len(text)
        return super().write(text)


def _report_thread_error(arguments: threading.ExceptHookArgs) -> None:
    local_workers.end_if_orphaned()
    threading.__excepthook__(arguments)


def main() -> None:
    """Work until the launcher has no more work, then end the process."""
    try:
        local_workers.end_with_launcher()
    except UsageError as error:
        print(f"clozeline: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None

    look_for_cycles_seldom()
    sys.stderr = QuietErrors(sys.stderr.buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    threading.excepthook = _report_thread_error
    logging.getLogger().addHandler(logging.NullHandler())  # until Beam's handler takes the log to the launcher
    import_beam()
    beam_internals.run_worker(sys.argv)

    # All results have been sent. Tearing down the interpreter would keep the user waiting for half a second.
    os._exit(0)


if __name__ == "__main__":
    main()
