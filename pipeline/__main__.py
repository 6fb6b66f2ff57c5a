"""`python -m pipeline`. What is defined here cannot be sent to Beam's workers: only the end of the process is here."""

import atexit
import os
import sys

from pipeline.cli import main


def end(code: int) -> None:
    """End the process.

    After Ctrl-C a worker of a remote engine in this process may wait for that engine forever, and tearing the
    interpreter down around its threads aborts. So the exit handlers, which stop what Beam has started, run here, and
    nothing waits for threads.
    """
    if code == 130:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    end(main())
