"""Checkpoints that are written while training continues: the same bytes, and nothing is lost however the run ends.

`hold` keeps a file of a checkpoint from being written until a later step computes, which would never come if training
waited for the file. Two ranks make two forward passes a step, one rank makes four.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from schemas.errors import StorageError
from tests.trainer.one_rank import group_of_one, small_batch, small_engine, small_recipe
from trainer.checkpoint import background, snapshot
from trainer.checkpoint import format as layout
from trainer.checkpoint.background import BackgroundSaves
from trainer.checkpoint.format import fault_of_checkpoint
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.snapshot import copied_bytes, fits, snapshot_of
from trainer.checkpoint.state import TrainingState

ONE = NodeFolders([0])
STATE = TrainingState(step=3, tokens=7, seconds=0.5, identity={"seed": 1})


def saved_bytes(checkpoint: Path) -> dict[str, Any]:
    """Everything that a checkpoint holds, without the seconds that training took."""
    assert fault_of_checkpoint(checkpoint) is None
    found: dict[str, Any] = {path.name: path.read_bytes() for path in checkpoint.glob("rank-*")}
    found["state"] = json.loads((checkpoint / "state.json").read_text())
    found["state"].pop("seconds")
    found["state"].pop("recipe")
    return found


@pytest.fixture(scope="module")
def foreground(training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of two ranks that stands still at each save, and keeps every checkpoint."""
    out = tmp_path_factory.mktemp("foreground") / "run"
    training.trained(2, out, checkpoint__background=False, checkpoint__every=2, checkpoint__keep=9)
    return out


# Runs


def test_training_goes_on_while_a_checkpoint_is_written(training, foreground: Path, tmp_path: Path) -> None:
    """Step 4 is saved while steps 5 and 6 are taken, and holds the weights of step 4."""
    training.trained(2, tmp_path, "hold:0:1:13", checkpoint__keep=9)
    assert layout.steps_saved(str(tmp_path)) == [4, 8, 12]
    for step in (4, 8, 12):
        assert saved_bytes(layout.checkpoint_path(str(tmp_path), step)) == saved_bytes(
            layout.checkpoint_path(str(foreground), step)
        )
    assert training.losses(tmp_path) == training.losses(foreground)


def test_a_save_waits_for_the_one_before(training, foreground: Path, tmp_path: Path) -> None:
    """Every step is saved, and the first two while the step after them computes."""
    changes = {"checkpoint__every": 1, "checkpoint__keep": 12}
    training.trained(2, tmp_path, "hold:1:1:3,hold:1:2:5", **changes)
    assert layout.steps_saved(str(tmp_path)) == list(range(1, 13))
    for step in (2, 4):
        assert saved_bytes(layout.checkpoint_path(str(tmp_path), step)) == saved_bytes(
            layout.checkpoint_path(str(foreground), step)
        )


def test_a_stop_waits_for_the_save_in_progress_and_saves(training, foreground: Path, tmp_path: Path) -> None:
    """Rank 1 is asked to stop in step 7, before which rank 0 may not write its part of step 4."""
    done = training.warm(2, tmp_path, "hold:0:1:13,ask:1:13:13")
    assert done.returncode == 75, done.stderr
    steps = layout.steps_saved(str(tmp_path))
    assert steps[0] == 4 and steps[1] in (6, 7) and len(steps) == 2
    assert f"step {steps[1]} of 12 is saved" in done.stderr

    training.trained(2, tmp_path)
    assert training.losses(tmp_path) == training.losses(foreground)
    assert training.tensors(tmp_path, 12) == training.tensors(foreground, 12)


def test_a_kill_during_a_save_loses_that_save_alone(training, tmp_path: Path) -> None:
    """One rank, killed in step 10 while step 8 is written; resumed, it equals a run that was not."""
    out = tmp_path / "run"
    faults = "hold:0:2:999,die:0:38:38"
    process = training.start_words(
        ["python", "-m", "tests.trainer.faulty_rank", faults, "trainer", *training.flags(out)]
    )
    told, _ = process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL, told
    assert layout.steps_saved(str(out)) == [4]
    assert len(list((out / "checkpoints").glob("step-00000008.*.partial"))) == 1

    straight = tmp_path / "straight"
    for where in (out, straight):
        training.trained(1, where)
    assert not list((out / "checkpoints").glob("*.partial"))
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 12) == training.tensors(straight, 12)


def test_a_rollback_goes_back_to_the_checkpoint_that_was_being_written(training, tmp_path: Path) -> None:
    """Steps 5 and 6 are bad, and step 4 is written only once step 6 computes."""
    changes = {"anomaly__max_skips": 2, "anomaly__max_rollbacks": 1}
    done = training.trained(2, tmp_path, "hold:0:1:11,nan:0:9:12", **changes)
    assert "Going back to step 4; 2 steps of data are left out." in done.stdout


def test_an_error_waits_for_the_save_in_progress(training, tmp_path: Path) -> None:
    """Step 7 finds another weight on rank 1, while rank 0 may not write its part of step 4 before step 7."""
    changes = {"anomaly__replica_check_every": 7, "engine__zero_stage": 0}
    done = training.warm(2, tmp_path, "hold:0:1:13,poison:1:13:13", **changes)
    assert done.returncode == 1 and "After step 7 rank 1 holds other weights" in done.stderr, done.stderr
    assert "than rank 0, first in mlm_head.bias" in done.stderr
    assert layout.steps_saved(str(tmp_path)) == [4]
    assert fault_of_checkpoint(layout.checkpoint_path(str(tmp_path), 4)) is None


def test_a_full_disk_in_the_background_is_logged(training, tmp_path: Path) -> None:
    done = training.warm(2, tmp_path, "hold:0:1:9,full:1:1:1")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "Step 4 was not saved, and training continues: " in done.stdout
    assert "No space left on device" in done.stdout
    assert layout.steps_saved(str(tmp_path)) == [8, 12]


# One rank, in this process


@pytest.fixture
def engine() -> Iterator[Any]:
    with group_of_one():
        made = small_engine(small_recipe("engine.zero_stage=0", "engine.precision=fp32"))
        train(made, 0)
        yield made
        made.destroy()


def train(engine: Any, number: int) -> None:
    losses = engine(small_batch(number))
    engine.backward(losses.mlm_sum + losses.pair_sum)
    engine.step()


def test_without_memory_for_a_copy_saves_are_made_as_before(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = snapshot_of(engine, STATE)
    monkeypatch.setattr(snapshot, "available_bytes", lambda: copied_bytes(taken))
    saves = BackgroundSaves(enabled=True)
    assert saves.copy(taken) is None and saves.copy(taken) is None
    assert capsys.readouterr().out.count("There is not enough host memory for a copy") == 1


def test_memory_that_the_system_refuses_is_not_asked_for_again(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(*arguments: Any, **named: Any) -> torch.Tensor:
        calls.append(arguments)
        raise RuntimeError("CUDA error: out of memory")

    saves = BackgroundSaves(enabled=True)
    taken = snapshot_of(engine, STATE)
    monkeypatch.setattr(snapshot.torch, "empty", refuse)
    assert saves.copy(taken) is None and saves.copy(taken) is None and len(calls) == 1


@pytest.mark.parametrize(
    ("nodes", "sizes", "fit"),
    [
        ([0, 0], [(40, 100), (40, 100)], True),
        ([0, 0], [(41, 100), (40, 100)], False),
        ([0, 1], [(80, 100), (80, 100)], True),
        ([0, 1], [(80, 100), (80, 99)], False),
    ],
)
def test_the_ranks_of_a_machine_share_its_memory(nodes: list[int], sizes: list[tuple[int, int]], fit: bool) -> None:
    assert fits(nodes, sizes) is fit


def test_an_error_of_the_thread_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise StorageError("the disk is gone")

    with group_of_one():
        saves = BackgroundSaves(enabled=True)
        saves.start("saving step 4", fail)
        with pytest.raises(StorageError, match="the disk is gone"):
            saves.wait()
        saves.wait()
        saves.close()


@pytest.mark.parametrize("fails", [False, True])
def test_memory_stays_as_it_is_if_the_run_fails(engine: Any, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """To unpin it would wait for a device that waits for a lost rank. So it is not freed either."""
    freed: list[bool] = []
    monkeypatch.setattr(snapshot.HostMemory, "free", lambda memory: freed.append(True))
    monkeypatch.setattr(background, "LEFT_PINNED", [])
    with contextlib.suppress(RuntimeError), BackgroundSaves(enabled=True) as saves:
        assert saves.copy(snapshot_of(engine, STATE)) is not None
        freed.clear()
        if fails:
            raise RuntimeError("Connection closed by peer")
    assert freed == ([] if fails else [True])
    assert len(background.LEFT_PINNED) == fails


def test_closing_waits_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever ends the run is more important than the save, whose error is logged."""
    may_end = Event()
    ended = Event()

    def fail() -> None:
        assert may_end.wait(30)
        ended.set()
        raise StorageError("the disk is gone")

    with group_of_one():
        saves = BackgroundSaves(enabled=True)
        saves.start("saving step 4", fail)
        may_end.set()
        saves.close()
    assert ended.is_set()
    assert "The last checkpoint was not saved: the disk is gone" in capsys.readouterr().out
