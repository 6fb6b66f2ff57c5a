"""Runs one job of a suite, `python -m trainer.suite.child PROGRAM ...`, in a process that ends when the suite's does.

finetune        fine-tunes on a task, as `python -m trainer.finetune` does
export          writes a checkpoint of a run in the Hugging Face format, as `python -m trainer.export` does
minimal_pairs   counts how often an encoder prefers the acceptable sentence of a pair
probe           fits a linear classifier to the frozen vectors of each layer
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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
    suite_has_ended = os.getppid() != int(parent)
    if suite_has_ended:
        os._exit(1)


def run() -> int:
    """Run the program that the first argument names, and return the exit code."""
    program, *arguments = sys.argv[1:]
    prog = f"clozeline suite ({program})"

    if program == "finetune":
        from trainer.distributed.stop import StopRequest

        # Importing takes seconds. Listen first, so that a signal during the import is not lost.
        stop = StopRequest().listen()

        from trainer.finetune.cli import main as finetune_main

        return finetune_main(arguments, stop=stop, prog=prog)

    # These programs publish each file atomically, and the next start skips finished files, so a signal may end them
    # at any point.
    if program == "export":
        from trainer.export.cli import main
    elif program == "minimal_pairs":
        from trainer.suite.minimal_pairs import main
    elif program == "probe":
        from trainer.suite.probe import main
    else:
        raise ValueError(f"{program} is not a program of a suite")
    return main(arguments, prog)


if __name__ == "__main__":
    end_with_parent()
    raise SystemExit(run_explained(run, "trainer"))
