"""Deterministic kernels: operations that have none are computed all the same, and named once."""

import logging
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from trainer.finetune.determinism import computed, make_deterministic


@pytest.fixture(autouse=True)
def restored_mode() -> Iterator[None]:
    """The mode is the whole process's."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        yield
    torch.use_deterministic_algorithms(enabled, warn_only=warns)


def put_in_place() -> Tensor:
    """`put_` has no deterministic kernel, on CPUs either."""
    return torch.zeros(4).put_(torch.tensor([1]), torch.tensor([7.0]))


def test_an_operation_without_a_deterministic_kernel_is_computed_and_named_once(caplog) -> None:
    make_deterministic()
    caplog.set_level(logging.INFO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert computed(put_in_place).tolist() == [0, 7, 0, 0]
        assert computed(put_in_place).tolist() == [0, 7, 0, 0]
    assert caplog.text.count("put_ is not deterministic on this device") == 1


def test_other_operations_keep_the_strict_mode() -> None:
    """Only in this mode does memory-efficient attention use its deterministic kernel."""
    make_deterministic()
    assert computed(lambda: torch.ones(2).sum()) == 2
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_other_errors_are_raised_and_computed_once() -> None:
    make_deterministic()
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        computed(fail)
    assert len(calls) == 1


def test_a_backward_pass_that_was_interrupted_leaves_no_gradients() -> None:
    """As in SeedTraining: gradients are cleared before each pass, also before the second one."""
    make_deterministic()
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def loss_with_gradients() -> Tensor:
        optimizer.zero_grad()
        loss = (2 * weight).sum()
        loss.backward()
        put_in_place()
        return loss.detach()

    assert computed(loss_with_gradients) == 6
    assert weight.grad is not None and weight.grad.tolist() == [2, 2, 2]
