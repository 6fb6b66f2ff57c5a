"""Deterministic kernels: operations that have none are computed all the same, and the first one is named."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import forked
from tests.trainer.finetune.tasks import write_task
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


PUT_IN_THE_BACKWARD_PASS = """
import sys
import torch
from trainer.finetune import run
from trainer.finetune.cli import main

class Same(torch.autograd.Function):
    "The identity. Its backward pass copies the gradient with an operation that has no deterministic kernel."

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        places = torch.arange(gradient.numel()).view_as(gradient)
        return torch.empty_like(gradient).put_(places, gradient)

def with_same(*arguments):
    model = build(*arguments)
    model.base_model.encoder.layer[0].output.register_forward_hook(lambda _module, _inputs, output: Same.apply(output))
    return model

build = run.build_model
run.build_model = with_same
sys.exit(main(sys.argv[1:]))
"""


def test_a_model_with_such_an_operation_trains_as_any_other(finetune, encoder, tmp_path: Path) -> None:
    """With dropout: the trial before training draws no numbers of it, and leaves no gradients."""
    task = write_task(tmp_path, "sentence")
    assert finetune(encoder("bert"), task, tmp_path / "plain").returncode == 0

    words = [str(encoder("bert")), "--task", str(task), "--output", str(tmp_path / "other")]
    done = forked.run(["python", "-m", "tests.run_code", PUT_IN_THE_BACKWARD_PASS, *words])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("put_ has no deterministic kernel") == 1
    assert "Warning" not in done.stderr

    ours, theirs = (results_of(tmp_path / name) for name in ("other", "plain"))
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    assert [line["loss"] for line in ours[:2]] == pytest.approx([line["loss"] for line in theirs[:2]], rel=1e-5)


def results_of(output: Path) -> list[dict[str, Any]]:
    """The losses and scores of all epochs, and the predictions."""
    files = [output / "seed-0/metrics.jsonl", output / "seed-0/predictions_dev.jsonl"]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
