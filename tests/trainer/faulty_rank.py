"""A program of the trainer with faults (see faults.py), and with fp16 on any CPU.

python -m tests.trainer.faulty_rank FAULTS MODULE FLAG...
"""

from __future__ import annotations

import os
import runpy
import sys

from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from tests.trainer.distributed.faults import faulty

if __name__ == "__main__":
    # DeepSpeed asks for fast fp16; slow fp16 is good enough for tests.
    CPU_Accelerator.is_fp16_supported = lambda self: True

    os.environ.setdefault("RANK", "0")
    faults, *sys.argv[:] = sys.argv[1:]
    with faulty(faults):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
