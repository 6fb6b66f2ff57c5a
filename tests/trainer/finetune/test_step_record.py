"""The record of steps: what was made with something else, or with a step that is gone, is never mixed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from schemas.errors import UsageError
from trainer.finetune.steps.record import StepRecord

STEPS = {name: {"recipe": name} for name in ("domain", "task", "finetune")}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A folder in which all steps are done."""
    record = StepRecord(tmp_path)
    for name, made_with in STEPS.items():
        record.write(name, made_with, finished=True)
    return tmp_path


def test_what_is_finished_stays(output: Path) -> None:
    record = StepRecord(output)
    record.check(STEPS)
    assert all(record.is_finished(name) for name in STEPS)


def test_a_step_that_was_removed_makes_the_later_ones_invalid(output: Path) -> None:
    """The same recipe need not give the same step again: a corpus is known by its path alone."""
    shutil.rmtree(output / "task")
    with pytest.raises(UsageError, match="task is gone") as refused:
        StepRecord(output).check(STEPS)
    assert f"remove {output}/finetune to" in str(refused.value)

    shutil.rmtree(output / "domain")
    shutil.rmtree(output / "finetune")
    StepRecord(output).check(STEPS)


def test_steps_after_one_that_is_done_again_are_done_again(output: Path) -> None:
    shutil.rmtree(output / "task")
    shutil.rmtree(output / "finetune")
    record = StepRecord(output)
    record.check(STEPS)
    assert [record.is_finished(name) for name in STEPS] == [True, False, False]

    record.write("task", STEPS["task"], finished=False)
    (output / "finetune").mkdir()
    assert not StepRecord(output).is_finished("finetune"), "what was known of the removed folder is forgotten"


def test_a_change_names_all_folders_to_remove(output: Path) -> None:
    changed = STEPS | {"task": {"recipe": "another"}}
    with pytest.raises(UsageError, match="task was made with another recipe") as refused:
        StepRecord(output).check(changed)
    assert f"remove {output}/task and {output}/finetune to" in str(refused.value)


def test_a_change_of_a_recipe_is_named_with_its_values(tmp_path: Path) -> None:
    made_with = {"domain": {"recipe": {"batch": {"global_batch": 256}, "epochs": 1.0}, "text": "a"}}
    StepRecord(tmp_path).write("domain", made_with["domain"], finished=True)
    changed = {"domain": {"recipe": {"batch": {"global_batch": 16}, "epochs": 1.0}, "text": "a"}}
    StepRecord(tmp_path).check(made_with)
    with pytest.raises(UsageError, match=r"another recipe \(batch\.global_batch = 256 instead of 16\)\. Choose"):
        StepRecord(tmp_path).check(changed)
