"""Many runs of `python -m trainer` in one set of ranks, since starting a set takes longer than a small run.

The argument is a JSON file: a list of {"flags": [...], "copy_of": a run folder to begin with, or null, "output": ...}.
fp16 is allowed on any CPU.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch.distributed as dist
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from trainer.command_line import main


def run_all(jobs: list[dict]) -> None:
    for job in jobs:
        if job["copy_of"] and os.environ.get("RANK", "0") == "0":
            shutil.copytree(job["copy_of"], job["output"])
        if dist.is_initialized():
            dist.barrier()
        code = main(job["flags"])
        assert code == 0, (job, code)


if __name__ == "__main__":
    CPU_Accelerator.is_fp16_supported = lambda self: True  # DeepSpeed asks for fast fp16; slow will do
    run_all(json.loads(Path(sys.argv[-1]).read_text()))
