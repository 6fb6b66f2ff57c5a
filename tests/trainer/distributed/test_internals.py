"""The adapters of DeepSpeed's and torch's private parts, on stand-ins and on a process group of one rank."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from trainer.distributed import deepspeed_internals as internals
from trainer.distributed.torch_internals import default_store, set_process_group_timeout


def engine_with(**attributes: Any) -> Any:
    return SimpleNamespace(optimizer=SimpleNamespace(**attributes), device="cpu")


def test_the_gradient_norm_is_none_without_a_wrapper() -> None:
    assert internals.gradient_norm_of(engine_with()) is None
    norm = torch.tensor(2.5)
    assert internals.gradient_norm_of(engine_with(_global_grad_norm=norm)) is norm
    # DeepSpeed sets a plain number before the first step, and after an overflow in fp16.
    assert internals.gradient_norm_of(engine_with(_global_grad_norm=2.5)) == torch.tensor(2.5)


def test_deepspeed_asks_nobody_whether_a_norm_is_valid() -> None:
    """Except in fp16. Each module has the function under its own name, and gets it back."""
    modules: list[Any] = [import_module(name) for name in internals.NORM_READERS]
    originals = [module.is_invalid_grad_norm for module in modules]
    nan = torch.tensor(torch.nan)
    assert all(original(nan) for original in originals)

    with internals.norms_stay_on_device(cast(Any, SimpleNamespace(fp16_enabled=lambda: False))):
        assert not any(module.is_invalid_grad_norm(nan) for module in modules)
    with internals.norms_stay_on_device(cast(Any, SimpleNamespace(fp16_enabled=lambda: True))):
        assert all(module.is_invalid_grad_norm(nan) for module in modules)
    assert [module.is_invalid_grad_norm for module in modules] == originals


def test_a_stand_in_knows_its_full_shape() -> None:
    whole = torch.nn.Parameter(torch.zeros(2, 2))
    stand_in = torch.nn.Parameter(torch.empty(0))
    stand_in.ds_shape = torch.Size([3, 2])  # type: ignore[attr-defined]
    assert internals.full_shape_of(whole) == (2, 2)
    assert internals.full_shape_of(stand_in) == (3, 2)
    assert internals.is_partitioned(stand_in) and not internals.is_partitioned(whole)


def test_a_parameter_on_other_ranks_has_an_empty_slice() -> None:
    parameter = SimpleNamespace(_hp_mapping=None)
    assert internals.is_in_flat_group(parameter)
    assert internals.flat_slice_of(parameter) == (0, 0, 0)


def test_the_last_part_of_a_parameter_does_not_count_its_padding() -> None:
    """Stage 3 cuts 10 elements into parts of 4 for 3 ranks: 4, 4 and 2."""
    parameter = SimpleNamespace(ds_numel=10)
    flat = torch.zeros(20)
    sizes: list[int] = []
    for rank in range(4):
        engine = engine_with(
            grad_position={"p": [0, 7, 4]},
            get_param_id=lambda parameter: "p",
            _get_param_partition_rank=lambda parameter, rank=rank: rank,
            fp32_partitioned_groups_flat=[flat],
        )
        found = internals.part_of(engine, parameter)
        if found is not None:
            tensor, place = found
            assert tensor is flat and place.offset == 7 and place.start == 4 * rank
            sizes.append(place.size)
    assert sizes == [4, 4, 2], "the fourth rank has padding only"


@pytest.fixture
def one_rank_group():
    if dist.is_initialized():
        pytest.skip("this process has a process group already")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def test_torchs_store_and_timeout_are_reached(one_rank_group) -> None:
    default_store().set("clozeline/test", "7")
    assert default_store().get("clozeline/test") == b"7"
    set_process_group_timeout(60)
    dist.barrier()
