"""The adapters of DeepSpeed's private parts, on stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from trainer.distributed.deepspeed_internals import part_of


def test_the_last_part_of_a_parameter_does_not_count_its_padding() -> None:
    """Stage 3 cuts 10 elements into parts of 4 for 3 ranks: 4, 4 and 2."""
    parameter: Any = SimpleNamespace(ds_numel=10)
    flat = torch.zeros(20)
    sizes: list[int] = []
    for rank in range(4):
        optimizer = SimpleNamespace(
            grad_position={"p": [0, 7, 4]},
            get_param_id=lambda parameter: "p",
            _get_param_partition_rank=lambda parameter, rank=rank: rank,
            fp32_partitioned_groups_flat=[flat],
        )
        engine: Any = SimpleNamespace(optimizer=optimizer, device="cpu")
        found = part_of(engine, parameter)
        if found is not None:
            tensor, place = found
            assert tensor is flat and place.offset == 7 and place.start == 4 * rank
            sizes.append(place.size)
    assert sizes == [4, 4, 2], "the fourth rank has padding only"
