"""A rank that stays and trains again and again, for to start one takes longer than a small run.

Each line of its standard input is a run, {"flags": [...], "faults": "", "out": FILE, "err": FILE}: the trainer's flags,
the faults that it is to have (see faults.py), and where what it prints goes. It answers with the exit code, as a line
of its standard output. fp16 is allowed on any CPU.
"""

import json
import os
import sys
import traceback

from torch.nn import functional

from tests.trainer.distributed.faults import faulty
from trainer.cli import main

LINEAR = functional.linear
"""ZeRO 3 replaces it in its process for good, by one that rounds differently."""


def code_of(flags: list[str], faults: str) -> int:
    """As the interpreter would end."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # prints when it is imported

    CPU_Accelerator.is_fp16_supported = lambda self: True  # DeepSpeed asks for fast fp16; slow will do
    try:
        with faulty(faults):
            return main(flags)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        functional.linear = LINEAR


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        for stream, name in ((1, "out"), (2, "err")):
            with open(job[name], "wb") as file:
                os.dup2(file.fileno(), stream)
        code = code_of(job["flags"], job["faults"])
        sys.stdout.flush()
        sys.stderr.flush()
        print(code, file=answers, flush=True)
