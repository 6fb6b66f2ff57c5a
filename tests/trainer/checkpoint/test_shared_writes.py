"""Checkpoints that ranks of two nodes write together: who writes which block, and what happens to a lost write."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import StorageError
from trainer.checkpoint import layout, publication, sharded
from trainer.checkpoint.manifest import describe_file, fault_of_checkpoint
from trainer.checkpoint.shared_writes import HeldBytes
from trainer.checkpoint.write_plan import BLOCK

APART = "apart:0:1:1,apart:1:1:1"
LARGER = {
    "model__hidden_size": 256,
    "model__intermediate_size": 512,
    "model__num_attention_heads": 2,
    "model__hidden_dropout_prob": 0.0,
    "schedule__warmup_steps": 1,
    "run__max_steps": 1,
}
SAVED_OFTEN = LARGER | {"run__max_steps": 6, "checkpoint__every": 2}
FILES = ("model.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors")


def writes(traces: Path, rank: int, file: str) -> list[tuple[int, int]]:
    """(first byte, end) of each write of a rank into a file."""
    trace = Path(f"{traces}.{rank}")
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [(int(at), int(at) + int(length)) for name, at, length in lines if name == file]


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_two_nodes_never_write_into_one_block(training, tmp_path, stage: int) -> None:
    changes = LARGER | {"engine__zero_stage": stage}
    runs = {}
    for name, faults in (("apart", APART), ("together", "")):
        traces = tmp_path / f"{name}.writes"
        done = training.run_traced(2, tmp_path / name, traces, faults, **changes)
        assert done.returncode == 0, done.stderr
        runs[name] = tmp_path / name / "checkpoints/step-00000001"

    blocks_of_two = {"apart": 0, "together": 0}
    for name in runs:
        for file in FILES:
            size = (runs[name] / file).stat().st_size
            by_rank = [writes(tmp_path / f"{name}.writes", rank, f"step-00000001/{file}") for rank in range(2)]
            blocks = [{b for at, end in found for b in range(at // BLOCK, -(-end // BLOCK))} for found in by_rank]
            blocks_of_two[name] += len(blocks[0] & blocks[1])
            ends = sorted((at, end) for found in by_rank for at, end in found)
            assert all(end == at for (_, end), (at, _) in pairwise(ends))
            assert ends[-1][1] == size and ends[0][0] < 10_000, "all but the header, each byte once"
    print(f"stage {stage}: blocks written by both ranks, on one node and on two: {blocks_of_two}")
    assert blocks_of_two["together"] > 0 == blocks_of_two["apart"]
    for file in (*FILES, "state.json"):
        if file != "state.json":
            assert (runs["apart"] / file).read_bytes() == (runs["together"] / file).read_bytes()
    assert fault_of_checkpoint(runs["apart"]) is None


@pytest.mark.parametrize("faults", [APART, ""], ids=["two nodes", "one node"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_write_is_not_published(training, tmp_path, faults: str, rank: int) -> None:
    """A byte of the third checkpoint's exp_avg_sq changes behind the back of the rank that wrote it."""
    damage = f"{faults},damage:{rank}:9:9" if faults else f"damage:{rank}:9:9"
    done = training.warm(2, tmp_path, damage, **SAVED_OFTEN)
    assert done.returncode == 5 and "Traceback" not in done.stderr, done.stderr
    assert f"differs from what rank {rank} wrote in bytes " in done.stderr
    assert "Step 6 could not be saved: exp_avg_sq.safetensors of " in done.stderr
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    done = training.warm(2, tmp_path, **SAVED_OFTEN)
    assert done.returncode == 0 and "Resuming from " in done.stdout and "step 4" in done.stdout


def test_training_continues_after_a_damaged_write(training, tmp_path) -> None:
    done = training.warm(2, tmp_path, f"{APART},damage:1:4:4", **SAVED_OFTEN)
    assert done.returncode == 0, done.stderr
    assert "Step 4 was not saved, and training continues: model.safetensors of " in done.stdout
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000006"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fault", ["full", "unreadable"])
def test_a_rank_that_fails_in_one_file_leaves_no_other_waiting(training, tmp_path, fault: str, rank: int) -> None:
    """The first file of the second checkpoint fails on one rank; blocks of all three files are exchanged."""
    changes = SAVED_OFTEN | {"engine__timeout_seconds": 20}
    done = training.warm(2, tmp_path, f"{APART},{fault}:{rank}:4:4", **changes)
    saved = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    if fault == "full":
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        assert "Step 4 was not saved, and training continues: " in done.stdout
        assert "No space left on device" in done.stdout
        assert saved == ["step-00000002", "step-00000006"]
    else:
        assert done.returncode == 1, done.stderr
        assert f"Rank {rank} failed with RuntimeError: a copy from the device failed" in done.stderr
        assert saved == ["step-00000002"]


def test_a_file_that_no_rank_has_checked_is_not_published(tmp_path) -> None:
    partial = publication.begin(str(tmp_path), 4)
    for name in ("model.safetensors", "state.json"):
        (partial / name).write_text("x")
    entries: list[Any] = [describe_file(partial, partial / "state.json")]
    with pytest.raises(StorageError, match=r"holds model\.safetensors, state\.json, but the ranks have checked state"):
        sharded._publish(partial, str(tmp_path), 4, entries, keep=1)
    assert layout.steps_saved(str(tmp_path)) == []


def test_held_bytes_are_found_over_parts() -> None:
    values_N = torch.arange(10.0)
    held = HeldBytes([(116, values_N[4:]), (100, values_N[:4])])
    assert held.read(108, 124).tolist() == [2.0, 3.0, 4.0, 5.0]
    assert held.read(100, 140).tolist() == values_N.tolist()
    assert held.read(136, 140).tolist() == [9.0]
