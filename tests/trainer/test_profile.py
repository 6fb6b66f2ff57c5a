"""`--profile` writes what it says, on every rank, and leaves the training as it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.errors import PreemptedError
from trainer.cli import main
from trainer.profile import MAX_RANKS, WARM_UP_STEPS, Recording, StepProfiler, profiling

RECIPE = ["--config", "tests/recipes/small_bert.toml", "--set", "data.pairs=/none"]


def trace_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace."""
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def some_work() -> None:
    values = torch.rand(64, 64)
    (values @ values).sum()


def recorded_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "profile").glob("*"))


def test_two_ranks_write_traces_and_train_as_without(training, straight: Path, tmp_path: Path) -> None:
    """Steps 5 and 6 of 12; checkpoints and losses equal those of a run that was not profiled."""
    out = tmp_path / "run"
    done = training.warm(2, out, profile=2)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr

    names = [f"rank-0000{rank}-steps-000005-000006.{kind}" for rank in (0, 1) for kind in ("json.gz", "txt")]
    assert recorded_names(out) == names
    for rank in (0, 1):
        events = trace_of(out / f"profile/rank-0000{rank}-steps-000005-000006.json.gz")
        operators = [event["name"] for event in events if event.get("cat") == "cpu_op"]
        # A forward pass multiplies by the same matrices in each of the two micro-batches of each of the two steps.
        assert operators.count("aten::linear") % 4 == 0 and operators.count("aten::linear") > 0

    table = (out / "profile/rank-00000-steps-000005-000006.txt").read_text()
    assert table in done.stdout and "aten::" in table and "# of Calls" in table
    assert "Profile of steps 5 to 6: " in done.stdout

    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 12) == training.tensors(straight, 12)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--profile", "0"], "--profile 0: give a number of steps from 1 to 100."),
        (["--profile", "-3"], "--profile -3: give a number of steps from 1 to 100."),
        (["--profile", "101"], "--profile 101: give a number of steps from 1 to 100."),
        (["--profile", "many"], "argument --profile: invalid int value: 'many'."),
        (["--profile", "7", "--set", "run.stop_at=10"], "--profile 7 needs 11 steps, because the first 4 are not"),
        (["--profile", "1", "--profile_after", "3"], "--profile_after 3: give at least 4 steps"),
    ],
)
def test_mistakes_are_one_line(capsys, flags: list[str], message: str) -> None:
    assert main([*RECIPE, *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"clozeline: {message}") and error.count("\n") == 1, error


def test_a_run_that_is_asked_to_stop_writes_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(PreemptedError), profiling(Recording(5, after=6), str(tmp_path), rank=2) as profiler:
        assert profiler is not None
        for step in range(21, 21 + 6 + 2):
            some_work()
            profiler.step_ended(step)
        raise PreemptedError("asked to stop")

    name = "rank-00002-steps-000027-000028"
    assert recorded_names(tmp_path) == [f"{name}.json.gz", f"{name}.txt"]
    products = [event for event in trace_of(tmp_path / f"profile/{name}.json.gz") if event["name"] == "aten::mm"]
    assert len(products) == 2


def test_a_run_that_ends_during_the_warm_up_says_so(tmp_path: Path, capsys) -> None:
    with profiling(Recording(5), str(tmp_path), rank=0) as profiler:
        assert profiler is not None
        for step in range(1, WARM_UP_STEPS + 1):
            some_work()
            profiler.step_ended(step)
    assert "--profile recorded nothing: the run ended within 4 steps of its start." in capsys.readouterr().out
    assert recorded_names(tmp_path) == []


@pytest.mark.parametrize(("steps", "rank"), [(0, 0), (2, MAX_RANKS)])
def test_nothing_is_recorded_unless_asked_for_nor_on_late_ranks(tmp_path: Path, steps: int, rank: int) -> None:
    with profiling(Recording(steps), str(tmp_path), rank) as profiler:
        assert profiler is None


def test_a_folder_that_cannot_be_written_is_one_line_and_training_continues(tmp_path: Path, capsys) -> None:
    (tmp_path / "profile").write_text("a file in the folder's place")
    profiler = StepProfiler(Recording(1), str(tmp_path), rank=0)
    for step in range(1, 9):
        some_work()
        profiler.step_ended(step)
    profiler.close()

    told = capsys.readouterr().out
    assert told.count("could not be written (FileExistsError: ") == 1 and told.count("\n") == 1
