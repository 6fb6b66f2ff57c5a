"""What a run says about mistakes that would otherwise cost hours, and what it leaves alone when it is over."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def finished(training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps."""
    out = tmp_path_factory.mktemp("hints") / "run"
    training.trained(1, out, run__max_steps=6)
    return out


def test_the_key_that_ended_a_run_of_hours_is_named(training, tmp_path: Path) -> None:
    done = training.trained(1, tmp_path / "run", run__max_steps=12, run__max_hours=1, schedule__warmup_steps=8)
    assert "a larger run.max_steps trains longer." in done.stdout


def test_a_finished_run_keeps_the_recipe_that_its_steps_used(training, finished, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in out.glob("recipe*")}
    facts = (out / "text_facts.json").read_bytes()
    (out / "text_facts.json").write_text("{}")  # as of pairs whose text was described later
    done = training.trained(1, out, run__max_steps=6, optimizer__lr=0.01)
    assert "step 6 was reached before, and run.max_steps is 6, so nothing is trained." in done.stdout
    assert "lr was" not in done.stdout
    assert {path.name: path.read_bytes() for path in out.glob("recipe*")} == before
    assert (out / "text_facts.json").read_bytes() == facts

    done = training.trained(1, out, run__max_steps=4)
    assert "step 6 was reached before, and run.max_steps is 4, so nothing is trained." in done.stdout
    assert done.stdout.rstrip().endswith("step 6 is saved.")
    assert tomllib.loads((out / "recipe.toml").read_text())["run"]["max_steps"] == 6

    done = training.warm(1, out, run__max_steps=7, optimizer__lr=0.01)
    assert "optimizer.lr was 0.003, is 0.01 from step 7 on" in done.stdout


def test_pairs_whose_labels_differ_are_warned_of(training, pairs: Path, sop_pairs: list[Path], tmp_path: Path) -> None:
    other = sop_pairs[0]
    done = training.trained(1, tmp_path / "run", data__pairs=f'["{pairs}","{other}"]', run__stop_at=1)
    assert f"{pairs} has pairs for nsp and {other} for sop" in done.stdout
