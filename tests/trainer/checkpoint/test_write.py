"""Saving and loading by a group of one rank, in this process; several ranks are tried in test_resume_matrix."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.errors import CheckpointError, StorageError
from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from trainer.checkpoint import resume
from trainer.checkpoint.format import fault_of_checkpoint
from trainer.checkpoint.rank_files import WEIGHTS, RankFiles
from trainer.checkpoint.resume import find_checkpoint, load_checkpoint
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.snapshot import snapshot_of
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.write import write_snapshot
from trainer.distributed.zero import MOMENTS, ParameterSlice, parameter_slices, updates_made

KINDS = (WEIGHTS, *MOMENTS)
ONE = NodeFolders([0])
STATE = TrainingState(step=3, tokens=7, seconds=0.5, identity={"seed": 1})


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    with group_of_one():
        yield


def trained_engine(seed: int = 0, updates: int = 2) -> Any:
    engine = small_engine(small_recipe("engine.zero_stage=0", "engine.precision=fp32"), seed=seed)
    for number in range(updates):
        losses = engine(small_batch(number))
        engine.backward(losses.mlm_sum + losses.pair_sum)
        engine.step()
    return engine


def held(engine: Any) -> dict[str, list[float]]:
    """Everything that the engine's only rank holds, by the names in its file."""
    found: dict[str, list[float]] = {}
    for part in parameter_slices(engine):
        for kind, values_N in {WEIGHTS: part.weights, **part.moments}.items():
            found[f"{kind}/{part.name}/{part.start}"] = values_N.tolist()
    return found


def content(path: Path) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in load_file(path / "rank-00000.safetensors").items()}


def computed_with(engine: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


@pytest.fixture(scope="module")
def two_engines() -> dict[str, Any]:
    """Two engines of one form with different weights."""
    return {"first": trained_engine(), "second": trained_engine(seed=5, updates=1)}


def save(engine: Any, run: Path, step: int = 3) -> Path:
    return write_snapshot(snapshot_of(engine, STATE.model_copy(update={"step": step})), str(run), ONE)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    engine = trained_engine()
    expected = held(engine)

    path = save(engine, tmp_path)

    assert path == tmp_path / "checkpoints/step-00000003" and fault_of_checkpoint(path) is None
    assert content(path) == expected
    assert any(any(values) for name, values in expected.items() if name.startswith("exp_avg/"))
    found = find_checkpoint(str(tmp_path), ONE)
    assert found is not None and found == (path, STATE.model_copy(update={"updates": 2}), [])
    listed = [entry["path"] for entry in json.loads((path / "manifest.json").read_text())["files"]]
    assert listed == ["rank-00000.safetensors", "state.json"]

    other = trained_engine(seed=5, updates=1)
    assert held(other) != expected
    load_checkpoint(other, path, found.state)
    assert held(other) == expected and updates_made(other) == 2
    torch.testing.assert_close(computed_with(other), computed_with(engine), rtol=0, atol=0)
    engine.destroy()
    other.destroy()


def halves(parts: list[ParameterSlice]) -> list[ParameterSlice]:
    """The same elements in twice as many parts, as ranks hold them that cut tensors."""
    cut = []
    for part in parts:
        middle = part.weights.numel() // 2
        first = {key: values_N[:middle] for key, values_N in part.moments.items()}
        second = {key: values_N[middle:] for key, values_N in part.moments.items()}
        cut.append(ParameterSlice(part.name, part.start, part.weights[:middle], first, True))
        cut.append(ParameterSlice(part.name, part.start + middle, part.weights[middle:], second, True))
    return cut


def test_slices_that_begin_inside_a_parameter_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained_engine()
    other = trained_engine(seed=5, updates=1)
    path = save(engine, tmp_path)
    monkeypatch.setattr(resume, "parameter_slices", lambda engine: halves(parameter_slices(engine)))
    load_checkpoint(other, path, STATE)
    assert held(other) == held(engine)
    engine.destroy()
    other.destroy()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_save_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_engines: dict[str, Any], call: str
) -> None:
    save(two_engines["first"], tmp_path)

    def refuse(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match=r"rank-00000\.safetensors could not be written: No space left on device"):
        save(two_engines["first"], tmp_path, 4)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_writes_that_end_early_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_engines: dict[str, Any]
) -> None:
    os_write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: os_write(handle, data[:1001]))
    path = save(two_engines["first"], tmp_path)
    assert fault_of_checkpoint(path) is None and content(path) == held(two_engines["first"])


def test_a_write_that_the_disk_loses_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two_engines: Any
) -> None:
    """The manifest has the hash of what was meant to be written."""
    os_write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: os_write(handle, bytes(len(data))))
    path = save(two_engines["first"], tmp_path)
    assert fault_of_checkpoint(path) == f"{path}/rank-00000.safetensors was cut or changed"


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, two_engines: dict[str, Any]) -> None:
    path = save(two_engines["first"], tmp_path)
    shapes = {name: list(shape) for name, shape in RankFiles(path).shapes.items()}
    first = next(iter(shapes))
    tensors = load_file(path / "rank-00000.safetensors")
    shapes[first] = [2]
    save_file(tensors, path / "rank-00000.safetensors", {"shapes": json.dumps(shapes)})
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(two_engines["second"], path, STATE)
    assert str(caught.value) == f"{path} holds other tensors than this model. Use another run.output."
