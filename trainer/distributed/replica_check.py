"""Guards against silent data corruption: compares weights that should be the same on all ranks.

Memory, GPU kernels and networks can flip bits without an error. In stages 0 to 2 every rank holds all weights that the
model computes with, and in stage 3 the small ones. These replicas are compared by the integer sums of their bits.
Weights of which each rank holds only a part have no replica to compare with.

Shape suffixes: P parameters, R ranks.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import ClozelineError
from trainer.distributed.deepspeed_internals import is_partitioned
from trainer.distributed.zero import named_parameters

BITS_OF = {4: torch.int32, 2: torch.int16}
"""The integer type for each element size in bytes."""


class ReplicaError(ClozelineError):
    """Ranks hold different weights, so none of the weights may be saved."""

    everywhere = True


def check_replicas(engine: DeepSpeedEngine, step: int) -> None:
    """Compare replicated weights over all ranks. A collective call.

    Raises ReplicaError on every rank, naming the ranks that differ from the majority and the first such parameter.
    """
    replicas = _replicas(engine)
    if not replicas:
        return

    sums_by_rank = _sums_by_rank(list(replicas.values()))
    majority, majority_size = Counter(sums_by_rank).most_common(1)[0]
    if majority_size == len(sums_by_rank):
        return

    odd_ranks = [rank for rank, sums in enumerate(sums_by_rank) if sums != majority]
    sums_of_odd_rank = sums_by_rank[odd_ranks[0]]
    first = next(name for name, a, b in zip(replicas, sums_of_odd_rank, majority, strict=True) if a != b)

    # Two ranks have no majority. Counter then returns the sums that it counted first, which are rank 0's.
    others = "rank 0" if len(sums_by_rank) == 2 else "most ranks"
    raise ReplicaError(
        f"After step {step} rank {', '.join(map(str, odd_ranks))} holds other weights than {others}, first in {first}: "
        "memory, a device or the network corrupted data. These weights were not saved. Check that machine's memory "
        "and GPU; the same command resumes from the last checkpoint."
    )


def _replicas(engine: DeepSpeedEngine) -> dict[str, Tensor]:
    """Return the weights that every rank holds in full, by parameter name.

    Stage 3's placeholders for sharded parameters are empty. A parameter that is empty without being sharded is compared
    like any other.
    """
    replicas = {}
    for name, parameter in named_parameters(engine):
        is_stand_in = parameter.numel() == 0 and is_partitioned(parameter)
        if not is_stand_in:
            replicas[name] = parameter.data
    return replicas


def _sums_by_rank(tensors: list[Tensor]) -> list[tuple[int, ...]]:
    """Return each rank's sums of bits, one for each tensor. A collective call."""
    own_sums_P = torch.stack([_sum_of_bits(tensor) for tensor in tensors])
    sums_RP = [torch.empty_like(own_sums_P) for _ in range(dist.get_world_size())]
    dist.all_gather(sums_RP, own_sums_P)
    return [tuple(sums_P.tolist()) for sums_P in sums_RP]


def _sum_of_bits(values: Tensor) -> Tensor:
    """Return a () int64 tensor that changes whenever a single bit of the values changes."""
    bits = values.contiguous().view(BITS_OF[values.element_size()])
    return bits.sum(dtype=torch.int64)
