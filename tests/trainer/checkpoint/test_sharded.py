"""Saving and loading by a group of one rank, in this process; several ranks are tried in test_writing_together."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.errors import CheckpointError, StorageError
from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from trainer.checkpoint import layout, loading, sharded, verification
from trainer.checkpoint.manifest import fault_of_checkpoint
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.snapshot import loss_scale_of, shapes_of, snapshot_of
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.tensor_writes import write_tensor_files
from trainer.distributed.deepspeed_internals import loss_scaler_of
from trainer.distributed.zero import ParameterSlice, parameter_slices, updates_made

FILES = ["exp_avg.safetensors", "exp_avg_sq.safetensors", "model.safetensors"]
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


def held(engine: Any) -> dict[str, dict[str, list[float]]]:
    """By file, everything that the engine's only rank holds of it."""
    found: dict[str, dict[str, list[float]]] = {file: {} for file in FILES}
    for part in parameter_slices(engine):
        found["model.safetensors"][part.name] = part.weights.tolist()
        for key, values_N in part.moments.items():
            found[f"{key}.safetensors"][part.name] = values_N.tolist()
    return found


def read(path: Path) -> dict[str, dict[str, list[float]]]:
    return {file: {name: t.flatten().tolist() for name, t in load_file(path / file).items()} for file in FILES}


def computed_with(engine: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


@pytest.fixture(scope="module")
def engines() -> dict[str, Any]:
    """Two engines of one form with different weights."""
    return {"first": trained_engine(), "second": trained_engine(seed=5, updates=1)}


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    engine = trained_engine()
    expected = held(engine)

    sharded.save_checkpoint(engine, str(tmp_path), STATE, 2, {"eval_mlm_loss": 2.5})

    path = tmp_path / "checkpoints/step-00000003"
    assert fault_of_checkpoint(path) is None
    assert read(path) == expected
    assert any(any(values) for values in expected["exp_avg.safetensors"].values())
    assert layout.read_evaluation(str(path)) == {"eval_mlm_loss": 2.5}
    found = sharded.find_checkpoint(str(tmp_path))
    assert found is not None and found == (path, STATE.model_copy(update={"updates": 2}), [])
    listed = [entry["path"] for entry in json.loads((path / "manifest.json").read_text())["files"]]
    assert listed == ["evaluation.json", *FILES, "state.json"]

    other = trained_engine(seed=5, updates=1)
    assert held(other) != expected
    loading.load_checkpoint(other, path, found[1])
    assert held(other) == expected and updates_made(other) == 2
    torch.testing.assert_close(computed_with(other), computed_with(engine), rtol=0, atol=0)
    engine.destroy()
    other.destroy()


def test_shapes_are_kept_in_the_files(tmp_path: Path, engines: dict[str, Any]) -> None:
    sharded.save_checkpoint(engines["first"], str(tmp_path), STATE, 1, {})
    path = tmp_path / "checkpoints/step-00000003"
    tensors = load_file(path / "model.safetensors")
    assert {name: t.shape for name, t in tensors.items()} == {
        name: p.shape for name, p in engines["first"].module.named_parameters()
    }
    assert not (path / "evaluation.json").exists()


def test_older_ones_are_removed_and_nothing_else_is_found(tmp_path: Path, engines: dict[str, Any]) -> None:
    assert sharded.find_checkpoint(str(tmp_path)) is None
    for step in (1, 2, 3):
        sharded.save_checkpoint(engines["first"], str(tmp_path), STATE.model_copy(update={"step": step}), 2, {})
    assert layout.steps_saved(str(tmp_path)) == [2, 3]
    newest = layout.checkpoint_path(str(tmp_path), 3)
    (newest / "state.json").write_text("")
    path, state, faults = sharded.find_checkpoint(str(tmp_path)) or pytest.fail("nothing is found")
    assert (path.name, state.step, faults) == ("step-00000002", 2, [f"{newest}/state.json was cut or changed"])


@pytest.mark.parametrize("error", [StorageError("lost"), CheckpointError("other")], ids=lambda e: type(e).__name__)
def test_a_save_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: dict[str, Any], error: Exception
) -> None:
    sharded.save_checkpoint(engines["first"], str(tmp_path), STATE, 2, {})

    def fail(*arguments: Any) -> str:
        raise error

    monkeypatch.setattr(verification, "read_back", fail)
    with pytest.raises(type(error), match=str(error)):
        sharded.save_checkpoint(engines["first"], str(tmp_path), STATE.model_copy(update={"step": 4}), 2, {})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, engines: dict[str, Any]) -> None:
    sharded.save_checkpoint(engines["first"], str(tmp_path), STATE, 2, {})
    path = tmp_path / "checkpoints/step-00000003"
    tensors = load_file(path / "exp_avg.safetensors")
    name = sorted(tensors)[0]
    save_file(tensors | {name: tensors[name].flatten()[:2].clone()}, path / "exp_avg.safetensors")
    with pytest.raises(CheckpointError) as caught:
        loading.load_checkpoint(engines["second"], path, STATE)
    assert str(caught.value) == (
        f"{path}/exp_avg.safetensors holds other tensors than this model. Use another run.output."
    )


def test_a_checkpoint_of_values_that_are_not_finite_is_refused(tmp_path: Path, engines: dict[str, Any]) -> None:
    sharded.save_checkpoint(engines["first"], str(tmp_path), STATE, 2, {})
    path = tmp_path / "checkpoints/step-00000003"
    tensors = load_file(path / "exp_avg_sq.safetensors")
    name = sorted(tensors)[-1]
    tensors[name].view(-1)[-1] = torch.inf
    save_file(tensors, path / "exp_avg_sq.safetensors")
    with pytest.raises(CheckpointError) as caught:
        loading.load_checkpoint(engines["second"], path, STATE)
    assert str(caught.value) == (
        f"{path}/exp_avg_sq.safetensors holds values of {name} that are not finite. Delete {path}, so that the run "
        "resumes from an older checkpoint, or use another run.output."
    )


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


def test_the_header_is_checked_with_the_elements(tmp_path: Path, engines: dict[str, Any]) -> None:
    """What is read back of a file is all of it: the header first, as rank 0 wrote it, then the elements in order."""
    engine = engines["first"]
    snapshot = replace(snapshot_of(engine, STATE, {}), slices=halves(parameter_slices(engine)))
    partial = sharded._begin(str(tmp_path), snapshot)
    written = write_tensor_files(partial, snapshot, [0])

    assert read(partial) == held(engine)
    assert sorted(written) == FILES
    for name, pieces in written.items():
        data = (partial / name).read_bytes()
        length = 8 + int(np.frombuffer(data[:8], "<u8")[0])
        assert pieces[0] == WrittenPiece(0, length, zlib.crc32(data[:length]), 0)
        assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
        assert pieces[-1].end == len(data)
        assert all(zlib.crc32(data[piece.begin : piece.end]) == piece.crc for piece in pieces)


def test_parts_that_begin_inside_a_tensor_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = trained_engine()
    other = trained_engine(seed=5, updates=1)
    sharded.save_checkpoint(engine, str(tmp_path), STATE, 1, {})
    monkeypatch.setattr(loading, "parameter_slices", lambda engine: halves(parameter_slices(engine)))
    loading.load_checkpoint(other, tmp_path / "checkpoints/step-00000003", STATE)
    assert held(other) == held(engine)
    engine.destroy()
    other.destroy()


def engine_with(optimizer: Any, fp16: bool = True) -> Any:
    return SimpleNamespace(optimizer=optimizer, fp16_enabled=lambda: fp16)


@pytest.mark.parametrize("name", ["loss_scaler", "loss_scale_config"])
def test_the_loss_scale_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of the scaler's fields those that it has, by either name that DeepSpeed has for it."""
    scaler = SimpleNamespace(cur_scale=256.0, cur_iter=7, last_overflow_iter=-1, other=3)
    engine = engine_with(SimpleNamespace(**{name: scaler}))
    assert loss_scale_of(engine) == {"cur_scale": 256.0, "cur_iter": 7, "last_overflow_iter": -1}
    scaler.cur_hysteresis = 2
    assert loss_scale_of(engine) == {
        "cur_scale": 256.0,
        "cur_iter": 7,
        "last_overflow_iter": -1,
        "cur_hysteresis": 2,
    }
    assert loss_scale_of(engine_with(SimpleNamespace(**{name: scaler}), fp16=False)) == {}
    assert loss_scaler_of(engine_with(SimpleNamespace())) is None

    done = []
    monkeypatch.setattr(loading, "parameter_slices", lambda engine: [])
    monkeypatch.setattr(loading, "_read", lambda *arguments: done.append("read"))
    monkeypatch.setattr(loading, "publish_weights", lambda engine: done.append("publish"))
    monkeypatch.setattr(loading, "set_updates_made", lambda engine, updates: done.append(updates))
    saved = {"cur_scale": 64.0, "cur_iter": 9, "of another version": 1.0}
    loading.load_checkpoint(engine, tmp_path, STATE.model_copy(update={"loss_scale": saved, "updates": 5}))
    assert (scaler.cur_scale, scaler.cur_iter, scaler.cur_hysteresis) == (64.0, 9, 2)
    assert not hasattr(scaler, "of another version")
    assert done == ["read", "publish", 5]


def test_parameters_that_are_cut_keep_their_shape() -> None:
    """In stage 3 a parameter is an empty stand-in that knows its shape, and its weights are not copied whole."""
    stand_in = torch.nn.Parameter(torch.empty(0))
    stand_in.ds_shape = torch.Size([3, 2])  # type: ignore[attr-defined]
    whole = torch.nn.Parameter(torch.zeros(2, 2))
    engine: Any = SimpleNamespace(module=SimpleNamespace(named_parameters=lambda: [("a", stand_in), ("b", whole)]))
    assert shapes_of(engine) == {"a": (3, 2), "b": (2, 2)}

    file: Any = SimpleNamespace(read=lambda name, start, count: torch.arange(start, start + count).float())
    loading._read_whole(engine, file)
    assert whole.tolist() == [[0.0, 1.0], [2.0, 3.0]] and stand_in.numel() == 0
