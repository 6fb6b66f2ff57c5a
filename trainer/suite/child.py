"""Runs one job of a suite, `python -m trainer.suite.child MODULE ...`, in a process that ends when the suite's does.

A signal may end it at any point: fine-tuning saves as it does elsewhere, and the others publish each file atomically.
The next start continues from what is there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module

from clozeline.installation import run_explained
from trainer.suite.jobs import PARENT

PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def end_with_parent() -> None:
    """Have the kernel kill this process when the suite's process ends for any reason. Only Linux supports this.

    Without this, jobs of a suite that was killed with SIGKILL would still write to its folders when it is started
    again. The next start continues from what this process has saved.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the suite's process ended before the prctl call, no signal will come.
    if os.getppid() != int(parent):
        os._exit(1)


def run() -> int:
    module, *arguments = sys.argv[1:]
    return import_module(module).main(arguments, prog=f"clozeline suite ({module})")


if __name__ == "__main__":
    end_with_parent()
    raise SystemExit(run_explained(run, "trainer"))
