"""`python -m pipeline`.

Nothing else is defined here: Beam's workers could not import what a `__main__` module defines.
"""

import atexit
import logging
import os
import sys
import threading

from clozeline.installation import run_explained
from pipeline.runtime.worker_environment import look_for_cycles_seldom


def run() -> int:
    """Run a command of the pipeline and return the exit code."""
    look_for_cycles_seldom()
    from pipeline.cli import main

    return main()


def end(code: int) -> None:
    """End the process with an exit code.

    Exit handlers, which stop what Beam has started, still run. Their log messages, and exceptions in threads whose
    engine is gone, are noise by then, so both are hidden. Tearing down the interpreter would take a tenth of a second,
    and after a job on an engine it may wait forever for a worker's thread, or abort.
    """
    logging.disable(logging.CRITICAL)
    threading.excepthook = _ignore
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a command may be started without them
            stream.flush()
    os._exit(code)


def _ignore(arguments: threading.ExceptHookArgs) -> None:
    pass


if __name__ == "__main__":
    end(run_explained(run, "pipeline"))
