"""A rank that stays and trains again and again, because starting one takes longer than a small run.

Each line of its standard input is a run, {"program": MODULE, "flags": [...], "faults": "", "out": FILE, "err": FILE}:
the module of the command line, its flags, the faults to have (see faults.py), and the files for what it prints. It
answers with a line of its standard output, ANSWER and the exit code. fp16 is allowed on any CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any

ANSWER = "warm rank ended with "
"""Begins an answer: libraries print lines of their own to the same stream before the first run."""


def exit_code_of(program: str, flags: list[str], faults: str) -> int:
    """Run a command line, and return the exit code that the interpreter would end with."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from torch.nn import functional

    from tests.trainer.distributed.faults import faulty

    # DeepSpeed asks for fast fp16; slow fp16 is good enough for tests.
    CPU_Accelerator.is_fp16_supported = lambda self: True  # type: ignore[method-assign]

    # ZeRO 3 replaces this function in its process for good, by one that rounds differently.
    linear = functional.linear
    try:
        with faulty(faults):
            return importlib.import_module(program).main(flags)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        functional.linear = linear


def redirect(descriptor: int, file: str) -> None:
    """Let a stream of this process, and what its libraries print to it, go to a file."""
    with open(file, "wb") as target:
        os.dup2(target.fileno(), descriptor)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        redirect(1, job["out"])
        redirect(2, job["err"])

        code = exit_code_of(job["program"], job["flags"], job["faults"])

        sys.stdout.flush()
        sys.stderr.flush()
        print(f"{ANSWER}{code}", file=answers, flush=True)


if __name__ == "__main__":
    serve()
