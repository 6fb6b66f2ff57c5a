"""What a step of each optimizer, stage and precision waits for, for test_bf16_updates.py.

step_waits.py OUT.json    (as one of the ranks that the environment names)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks.step_costs import CASES, copied_values, loop_of, one_step
from benchmarks.waits import counted_waits
from trainer.distributed.process_group import start_distributed

MICRO_BATCHES = 2


def main(out: Path) -> None:
    torch.set_num_threads(1)
    start_distributed(timeout=600)
    found = {}
    with tempfile.TemporaryDirectory() as run:
        for case in CASES:
            with patch("trainer.models.encoder.attend", copied_values), loop_of(case, MICRO_BATCHES, run) as loop:
                for step in (1, 2):
                    one_step(loop, step)
                with counted_waits() as waits:
                    one_step(loop, 3)
            found[case] = vars(waits)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
