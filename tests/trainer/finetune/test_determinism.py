"""Deterministic kernels: operations that have none are computed all the same, and the first one is named."""

import logging
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from trainer.finetune.determinism import choose_kernels, make_deterministic


@pytest.fixture(autouse=True)
def restored_mode() -> Iterator[None]:
    """The mode is the whole process's."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        yield
    torch.use_deterministic_algorithms(enabled, warn_only=warns)
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def put_in_place() -> Tensor:
    """`put_` has no deterministic kernel, on CPUs either."""
    return torch.zeros(4).put_(torch.tensor([1]), torch.tensor([7.0]))


def test_an_operation_without_a_deterministic_kernel_is_named_and_computed_from_then_on(caplog) -> None:
    make_deterministic()
    caplog.set_level(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_kernels(put_in_place)
        choose_kernels(put_in_place)
        assert put_in_place().tolist() == [0, 7, 0, 0]
    assert caplog.text.count("put_ has no deterministic kernel on this device") == 1


def test_other_operations_keep_the_strict_mode() -> None:
    """Only in this mode does memory-efficient attention use its deterministic kernel."""
    make_deterministic()
    choose_kernels(lambda: torch.ones(2).sum())
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_errors_are_raised() -> None:
    make_deterministic()

    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        choose_kernels(fail)


@pytest.mark.parametrize(("value", "expected"), [(None, ":4096:8"), (":16:8", ":16:8"), (":4096:2:16:8", ":4096:8")])
def test_cublas_gets_a_deterministic_workspace(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    make_deterministic()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == expected
