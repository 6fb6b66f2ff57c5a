"""Damaged checkpoints: each ends in one error of exit code 4 that names the file, and nothing is discarded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import CheckpointError
from tests.trainer.checkpoint.saved import WEIGHTS_FILE, found_in, saved, seal
from trainer.checkpoint.format import (
    add_evaluation,
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    read_evaluation,
)
from trainer.checkpoint.rank_files import RankFiles, write_rank_file
from trainer.distributed.zero import MOMENTS, ParameterSlice
from trainer.export import cli as export_cli

SHAPES: dict[str, tuple[int, ...]] = {"a": (4, 3), "b": (5,), "c": (2, 2)}


def file_of(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def without_first(data: bytes) -> bytes:
    """A well-formed file that lacks a tensor."""
    header, body = parts_of(data)
    first = next(name for name in header if name != "__metadata__")
    begin, end = header.pop(first)["data_offsets"]
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    return file_of(json.dumps(header).encode(), body[end - begin :])


def of_float16(data: bytes) -> bytes:
    """A well-formed file whose first tensor is of another type."""
    header, body = parts_of(data)
    entry = next(entry for name, entry in header.items() if name != "__metadata__")
    entry.update(dtype="F16", shape=[2 * entry["shape"][0]])
    return file_of(json.dumps(header).encode(), body)


def without_shapes(data: bytes) -> bytes:
    header, body = parts_of(data)
    del header["__metadata__"]
    return file_of(json.dumps(header).encode(), body)


def nested(data: bytes) -> bytes:
    return file_of(b'{"a":' * 50_000, b"")


MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0" * 4,
    "nested": nested,
    "empty": lambda data: b"",
    "without shapes": without_shapes,
}


def write_all(path: Path) -> None:
    """Write the file of a run's only rank."""
    slices = []
    for name, shape in SHAPES.items():
        values_N = torch.randn(shape).flatten()
        slices.append(ParameterSlice(name, 0, values_N, dict.fromkeys(MOMENTS, values_N), True))
    write_rank_file(path, slices, SHAPES)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_file_that_is_not_a_ranks_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / WEIGHTS_FILE
    write_all(path)
    RankFiles(tmp_path).read("a", 0, 12)
    path.write_bytes(MALFORMED[name](path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors is not the file of a rank"):
        RankFiles(tmp_path)


@pytest.fixture(scope="module")
def half(training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after step 4 of 8, with one checkpoint."""
    out = tmp_path_factory.mktemp("half") / "run"
    training.trained(1, out, run__max_steps=8, run__stop_at=4)
    return out


def nan_weights(data: bytes) -> bytes:
    return data[:-4] + b"\0\0\xc0\x7f"


def no_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def damaged(damage: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Damage for which the manifest vouches."""

    def act(checkpoint: Path) -> None:
        path = checkpoint / WEIGHTS_FILE
        path.write_bytes(damage(path.read_bytes()))
        seal(checkpoint)

    return act


RUNS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no manifest": (no_manifest, "has no manifest.json"),
    "a tensor is missing": (damaged(without_first), "do not hold all of weights"),
    "another type": (damaged(of_float16), "do not hold all of weights"),
    "not finite": (damaged(nan_weights), "that are not finite"),
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


@pytest.mark.parametrize("damage", [without_first, of_float16, nested])
def test_exports_refuse_damaged_weights(half: Path, tmp_path: Path, damage: Callable[[bytes], bytes], capsys) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    damaged(damage)(out / "checkpoints/step-00000004")
    assert export_cli.main([str(out), "--output", str(tmp_path / "hf")]) == 4
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and "step-00000004" in error and error.count("\n") == 1


@pytest.mark.parametrize("file", ["state.json", "manifest.json", WEIGHTS_FILE])
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
    "M-not-utf8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", FIGURES)
def test_an_evaluation_of_another_form_counts_as_none(tmp_path: Path, name: str) -> None:
    checkpoint = saved(tmp_path, 6)
    (checkpoint / "evaluation.json").write_bytes(FIGURES[name])
    assert read_evaluation(str(checkpoint)) == {}
    assert best_step(str(tmp_path)) is None and fault_of_checkpoint(checkpoint) is None
    add_evaluation(checkpoint, {"eval_mlm_loss": 2.0})
    assert best_step(str(tmp_path)) == 6 and fault_of_checkpoint(checkpoint) is None


def test_a_newer_folder_without_a_manifest_is_passed_over_and_named(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        saved(tmp_path, step)
    for step in (3, 9):
        (checkpoint_path(str(tmp_path), step) / "manifest.json").unlink()
    found = found_in(tmp_path)
    assert found is not None and found.path.name == "step-00000006"
    assert [fault.split("/")[-1] for fault in found.faults] == ["step-00000009 has no manifest.json"]
