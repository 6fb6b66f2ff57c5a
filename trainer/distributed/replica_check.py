"""Whether all ranks hold the same weights where they should. Memory, kernels and networks do err, and then quietly.

In stages 0 to 2 every rank keeps all weights that the model computes with; in stage 3 only the small ones. What ranks
keep only a part of has no copy to compare with.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import ClozelineError
from trainer.distributed.zero import named_parameters


class ReplicaError(ClozelineError):
    """Ranks hold different weights. Nothing of them may be saved."""

    everywhere = True


def check_replicas(engine: DeepSpeedEngine, step: int) -> None:
    """Compare all weights over the ranks. A collective call. Raises ReplicaError on every rank, naming the odd one."""
    held = {name: p.data for name, p in named_parameters(engine) if p.numel() > 0 or not hasattr(p, "ds_id")}
    if not held:
        return
    mine_P = torch.stack([_sum_of_bits(values) for values in held.values()])
    all_RP = [torch.empty_like(mine_P) for _ in range(dist.get_world_size())]
    dist.all_gather(all_RP, mine_P)
    sums = [tuple(sums_P.tolist()) for sums_P in all_RP]
    usual, count = Counter(sums).most_common(1)[0]
    if count == len(sums):
        return
    odd = [rank for rank, found in enumerate(sums) if found != usual]
    at = next(i for i, (a, b) in enumerate(zip(sums[odd[0]], usual, strict=True)) if a != b)
    others = "rank 0" if len(sums) == 2 else "most ranks"
    raise ReplicaError(
        f"After step {step} rank {', '.join(map(str, odd))} holds other weights than {others}, first in "
        f"{list(held)[at]}: memory, a device or the network has erred. Nothing of it was saved. Look after that "
        "rank's machine; the same command resumes from the last checkpoint."
    )


def _sum_of_bits(values: Tensor) -> Tensor:
    """() int64, another one when any single bit of the values is another."""
    bits = values.contiguous().view({4: torch.int32, 2: torch.int16}[values.element_size()])
    return bits.sum(dtype=torch.int64)
