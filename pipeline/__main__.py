"""`python -m pipeline`.

Nothing else is defined here: Beam's workers could not import what a `__main__` module defines.
"""

import atexit
import os
import sys

from clozeline.installation import run_explained

INTERRUPTED = 130  # as in pipeline.cli, which is imported only once it is known to be ours


def run() -> int:
    """Run a command of the pipeline and return the exit code."""
    from pipeline.cli import main

    return main()


def end(code: int) -> None:
    """End the process with an exit code.

    After Ctrl-C, a worker of a remote engine in this process may wait for that engine forever, and tearing down the
    interpreter around its threads aborts. So the exit handlers, which stop what Beam has started, run here, and
    nothing waits for threads.
    """
    if code != INTERRUPTED:
        raise SystemExit(code)

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(run_explained(run, "pipeline"))
