"""`python -m pipeline`. What is defined here cannot be sent to Beam's workers: only the end of the process is here."""

import os
import sys
import threading
from time import monotonic

from pipeline.command_line import main

PATIENCE = 2.0  # seconds in which threads may end after Ctrl-C


def end(code: int) -> None:
    """End the process. After Ctrl-C a worker of a remote engine in this process may wait for that engine forever."""
    if code == 130:
        deadline = monotonic() + PATIENCE
        others = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
        for thread in others:
            thread.join(max(0.0, deadline - monotonic()))
        if any(thread.is_alive() for thread in others):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    end(main())
