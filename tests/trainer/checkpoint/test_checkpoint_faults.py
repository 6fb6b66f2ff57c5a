"""Damaged checkpoints: each ends in one error of exit code 4 that names the file, and nothing is discarded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from schemas.errors import CheckpointError
from trainer.checkpoint import layout
from trainer.checkpoint.layout import best_step, checkpoint_path, newest_sound_checkpoint, read_evaluation
from trainer.checkpoint.loading import _check_finite
from trainer.checkpoint.manifest import describe_file, fault_of_checkpoint, seal
from trainer.checkpoint.safetensors_io import TensorFile
from trainer.checkpoint.state import TrainingState
from trainer.export import cli as export_cli

SHAPES = {"a": (4, 3), "b": (5,), "c": (2, 2)}


def file_of(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def changed(**values: object) -> Callable[[bytes], bytes]:
    """The first tensor's entry in the header with other values."""

    def change(data: bytes) -> bytes:
        header, body = parts_of(data)
        next(entry for name, entry in header.items() if name != "__metadata__").update(values)
        return file_of(json.dumps(header).encode(), body)

    return change


def all_at_0(data: bytes) -> bytes:
    header, body = parts_of(data)
    for entry in header.values():
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [0, end - begin]
    return file_of(json.dumps(header).encode(), body)


def with_gap(data: bytes) -> bytes:
    header, body = parts_of(data)
    last = max(header.values(), key=lambda entry: entry["data_offsets"])
    last["data_offsets"] = [offset + 8 for offset in last["data_offsets"]]
    return file_of(json.dumps(header).encode(), body + b"\0" * 8)


def cut_body(data: bytes) -> bytes:
    header, body = parts_of(data)
    return file_of(json.dumps(header).encode(), body[: len(body) // 2])


def longer_body(data: bytes) -> bytes:
    return data + b"\0" * 4


def nested(data: bytes) -> bytes:
    return file_of(b'{"a":' * 50_000, b"")


TENSOR_FILES = {
    "P1-offsets-before-the-data": (changed(data_offsets=[-4000, 0]), "not whole numbers from 0"),
    "P2-offsets-behind-the-file": (changed(data_offsets=[10**12, 10**12 + 4]), "has 4 bytes, expected 48"),
    "P3-all-at-offset-0": (all_at_0, "overlap or leave a gap"),
    "P4-dtype-F64": (changed(dtype="F64"), "is of type F64, expected F32"),
    "P5-shape-1-1": (changed(shape=[1, 1]), "has 48 bytes, expected 4"),
    "P6-body-cut": (cut_body, "bytes of data, expected"),
    "P7-header-nested": (nested, "its header is nested too deeply"),
    "P8-gap": (with_gap, "overlap or leave a gap"),
    "P9-body-longer": (longer_body, "bytes of data, expected"),
    "P10-shape-of-floats": (changed(shape=[4.0, 3.0]), "not whole numbers from 0"),
    "P11-shape-of-booleans": (changed(shape=[True, 12]), "not whole numbers from 0"),
}


@pytest.mark.parametrize("name", TENSOR_FILES)
def test_tensor_files(tmp_path: Path, name: str) -> None:
    damage, message = TENSOR_FILES[name]
    path = tmp_path / "model.safetensors"
    save_file({key: torch.randn(shape) for key, shape in SHAPES.items()}, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a safetensors file") as caught:
        TensorFile(path)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


def reseal(checkpoint: Path) -> None:
    """The manifest vouches for what lies there."""
    files = sorted(path for path in checkpoint.iterdir() if path.name != "manifest.json")
    seal(checkpoint, [describe_file(checkpoint, path) for path in files])


@pytest.fixture(scope="module")
def half(training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after step 4 of 8, with one checkpoint."""
    out = tmp_path_factory.mktemp("half") / "run"
    done = training.warm(1, out, run__max_steps=8, run__stop_at=4)
    assert done.returncode == 0, done.stderr
    return out


def nan_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    header, body = parts_of(path.read_bytes())
    body = bytearray(body)
    body[-4:] = b"\0\0\xc0\x7f"
    path.write_bytes(file_of(json.dumps(header).encode(), bytes(body)))
    reseal(checkpoint)


def overlapping(checkpoint: Path) -> None:
    path = checkpoint / "exp_avg.safetensors"
    path.write_bytes(all_at_0(path.read_bytes()))
    reseal(checkpoint)


def wrong_type(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(changed(dtype="F64")(path.read_bytes()))
    reseal(checkpoint)


RUNS = {
    "L-no-manifest": (lambda checkpoint: (checkpoint / "manifest.json").unlink(), "has no manifest.json"),
    "P-overlap-resumed": (overlapping, "overlap or leave a gap"),
    "P-dtype-resumed": (wrong_type, "is of type F64, expected F32"),
    "Q2-weights-not-finite": (nan_weights, "that are not finite"),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_not_started_again_from_damaged_checkpoints(training, half: Path, tmp_path: Path, name: str) -> None:
    damage, message = RUNS[name]
    out = Path(shutil.copytree(half, tmp_path / "run"))
    damage(out / "checkpoints/step-00000004")
    before = {path: path.stat().st_size for path in (out / "checkpoints").rglob("*")}

    done = training.warm(1, out, run__max_steps=8)
    assert done.returncode == 4 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("clozeline: ")]
    assert message in line and "step-00000004" in line
    assert {path: path.stat().st_size for path in (out / "checkpoints").rglob("*")} == before
    assert len(training.losses(out)) == 4


@pytest.mark.parametrize("name", ["P-overlap-resumed", "P-dtype-resumed"])
def test_exports_refuse_damaged_weights(half: Path, tmp_path: Path, name: str, capsys) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    path = out / "checkpoints/step-00000004/model.safetensors"
    damages = {
        "P-overlap-resumed": (all_at_0, "overlap"),
        "P-dtype-resumed": (changed(dtype="F64"), "F64"),
    }
    damage, message = damages[name]
    path.write_bytes(damage(path.read_bytes()))
    reseal(path.parent)
    assert export_cli.main([str(out), "--output", str(tmp_path / "hf")]) == 4
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize("file", ["exp_avg.safetensors", "manifest.json", "model.safetensors"])
def test_an_export_does_not_pass_over_a_damaged_newest_checkpoint(
    half: Path, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    checkpoints = out / "checkpoints"
    shutil.copytree(checkpoints / "step-00000004", checkpoints / "step-00000006")
    damaged = checkpoints / "step-00000006" / file
    damaged.write_bytes(damaged.read_bytes()[:-9])

    assert export_cli.main([str(out), "--output", str(tmp_path / "hf")]) == 4
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and str(damaged) in error and error.count("\n") == 1
    assert "--step 4" in error and not (tmp_path / "hf").exists()
    assert export_cli.main([str(out), "--output", str(tmp_path / "hf"), "--step", "4"]) == 0


FIGURES = {
    "M-number": b"5",
    "M-text": b'{"eval_mlm_loss": "x"}',
    "M-nested": b"[" * 100_000,
    "M-list": b"[1]",
    "M-boolean": b'{"eval_mlm_loss": true}',
    "M-huge": b'{"eval_mlm_loss": 1' + b"0" * 400 + b"}",
    "M-not-utf8": b"\xff\xfe",
}


def saved(run: Path, step: int) -> Path:
    path = checkpoint_path(str(run), step)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights" * 100)
    state = TrainingState(step=step, tokens=1, seconds=0.5, identity={})
    (path / "state.json").write_text(state.model_dump_json())
    reseal(path)
    return path


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("listed", [False, True], ids=["unlisted", "listed"])
def test_an_evaluation_of_another_form_counts_as_none(tmp_path: Path, name: str, listed: bool) -> None:
    """Also when the manifest lists it; written again it leaves the checkpoint whole."""
    checkpoint = saved(tmp_path, 6)
    (checkpoint / "evaluation.json").write_bytes(FIGURES[name])
    if listed:
        reseal(checkpoint)
    assert read_evaluation(str(checkpoint)) == {}
    assert best_step(str(tmp_path)) is None
    layout.add_evaluation(checkpoint, {"eval_mlm_loss": 2.0})
    assert best_step(str(tmp_path)) == 6 and fault_of_checkpoint(checkpoint) is None


def test_an_evaluation_that_is_a_folder_counts_as_none(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, 6)
    (checkpoint / "evaluation.json").mkdir()
    assert read_evaluation(str(checkpoint)) == {} and best_step(str(tmp_path)) is None
    layout.add_evaluation(checkpoint, {"eval_mlm_loss": 2.0})
    assert best_step(str(tmp_path)) == 6


def test_without_any_manifest_the_folders_are_named(tmp_path: Path) -> None:
    for step in (3, 6):
        (saved(tmp_path, step) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000003 has no manifest\.json") as caught:
        newest_sound_checkpoint(str(tmp_path))
    assert "step-00000006 has no manifest.json" in str(caught.value)


def test_a_newer_folder_without_a_manifest_is_passed_over_and_named(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        saved(tmp_path, step)
    for step in (3, 9):
        (checkpoint_path(str(tmp_path), step) / "manifest.json").unlink()
    found = newest_sound_checkpoint(str(tmp_path))
    assert found is not None and found[0].name == "step-00000006"
    assert [fault.split("/")[-1] for fault in found[1]] == ["step-00000009 has no manifest.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_values_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds values of bias that are not finite"):
        _check_finite(tmp_path / "model.safetensors", "bias", torch.tensor([1.0, value]))
