"""`python -m trainer.suite.child PROGRAM ...`: one job of a suite, in a process that ends when the suite's does.

finetune        what `python -m trainer.finetune` does
new_head        the encoder of a fine-tuned folder, for tasks that start from another one
export          a checkpoint of a run as a Hugging Face folder
minimal_pairs   which of two sentences an encoder finds more likely
probe           a linear classifier on the frozen vectors of each layer
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from clozeline.installation import run_explained

PARENT = "CLOZELINE_SUITE_PROCESS"
"""The environment variable with the number of the suite's process."""

PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def end_with_parent() -> None:
    """Have the kernel end this process when the suite's process ends, however that ends.

    What was saved until then is continued by the next start. Without it, a suite that was killed with SIGKILL and
    started again would meet its old jobs, which still write into its folders. Only Linux can do this.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    has_ended_before = os.getppid() != int(parent)
    if has_ended_before:
        os._exit(1)


def device_of_job() -> str:
    """Return the device that a job computes on: the GPU of its slot, if it has one and DS_ACCELERATOR allows it.

    DeepSpeed reads the same variable for trainings.
    """
    import torch

    may_use_gpu = os.environ.get("DS_ACCELERATOR", "cuda") == "cuda"
    return "cuda" if may_use_gpu and torch.cuda.is_available() else "cpu"


def run() -> int:
    """Run the program that the first argument names, and return the exit code."""
    program, *arguments = sys.argv[1:]
    prog = f"clozeline suite ({program})"

    if program == "finetune":
        from trainer.distributed.preemption import StopRequest

        # Importing takes seconds. Listen first, so that a signal during the import is not lost.
        stop = StopRequest().listen()

        from trainer.finetune.cli import main as finetune_main

        return finetune_main(arguments, stop=stop, prog=prog)

    # These write each file at once and continue with the next one, so that signals may end them anywhere.
    if program == "new_head":
        from trainer.suite.new_head import main
    elif program == "export":
        from trainer.suite.checkpoints import main
    elif program == "minimal_pairs":
        from trainer.suite.minimal_pairs.command import main
    elif program == "probe":
        from trainer.suite.probe.command import main
    else:
        raise ValueError(f"{program} is no program of a suite")
    return main(arguments, prog)


if __name__ == "__main__":
    end_with_parent()
    raise SystemExit(run_explained(run, "trainer"))
