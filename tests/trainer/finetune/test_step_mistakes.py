"""Steps that cannot be done: one line each, before anything is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.trainer.finetune.adapting import Adapting

pytestmark = pytest.mark.timeout(900)
"""Each start imports torch and DeepSpeed, and the pipeline's jobs Beam: seconds alone, minutes beside other tests."""

MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], Any], int, str]] = {
    "no such recipe": (lambda s: s["task"].update(recipe="adapt_tsk"), 2, "adapt_tsk does not exist. Did you mean"),
    "unknown key": (lambda s: s["task"].update(recpie="x"), 2, "unknown key task.recpie. Did you mean task.recipe?"),
    "unknown step": (lambda s: s.update(tasks={}), 2, "unknown key tasks. Did you mean task?"),
    "unknown key of a recipe": (lambda s: s["task"].update(set=["run.max_step=5"]), 2, "unknown key run.max_step."),
    "no fine-tuning": (lambda s: s.pop("finetune"), 2, "finetune is missing"),
    "no encoder": (lambda s: s.pop("general"), 2, "has no [general]"),
    "no such encoder": (lambda s: s["general"].update(folder="nowhere"), 2, "nowhere has no config.json"),
    "no such task": (lambda s: s["finetune"].update(task="nothing.toml"), 2, "nothing.toml"),
    "no corpus": (lambda s: s["domain"].pop("corpus"), 2, "[domain] needs one of corpus"),
    "rows that are too long": (
        lambda s: s["task"].update(make_pairs={"max_length": 500}),
        2,
        "make_pairs.max_length is 500, but the encoder takes rows of at most 96 tokens",
    ),
    "phases": (lambda s: s["domain"].update(recipe="modernbert_base", set=[]), 2, "has phases"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_before_anything_is_done(adapting: Adapting, mistake: str) -> None:
    change, code, message = MISTAKES[mistake]
    change(adapting.steps)
    assert_refused(adapting, code, message)


def assert_refused(adapting: Adapting, code: int, message: str) -> None:
    found, line = adapting.refusal()
    assert found == code and message in line, line
    assert not (adapting.output / "domain").exists() and not (adapting.output / "task").exists()


def test_steps_in_a_wrong_order_are_refused(adapting: Adapting) -> None:
    steps = adapting.steps
    adapting.steps = {name: steps[name] for name in ("general", "task", "domain", "finetune")}
    assert_refused(adapting, 2, "[domain] stands after [task], but is done before it")


def test_pairs_of_another_vocabulary_are_refused(adapting: Adapting, byte_rows: Path) -> None:
    del adapting.steps["domain"]["corpus"]
    adapting.steps["domain"]["pairs"] = str(byte_rows)
    assert_refused(adapting, 3, "Build the pairs with the folder's vocabulary")


def test_a_task_without_text_is_refused(adapting: Adapting) -> None:
    words = [{"words": [" ", " "], "tags": ["O", "B-X"]}] * 4
    (adapting.folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in words))
    (adapting.folder / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in words))
    task = {"name": "empty", "kind": "tags", "data": {"train": "train.jsonl", "dev": "dev.jsonl"}}
    (adapting.folder / "task.toml").write_text(tomli_w.dumps(task))
    found, line = adapting.refusal()
    assert found in (2, 3) and ("hold no text" in line or "empty" in line or "blank" in line), line


def test_flags_that_do_not_go_together(adapting: Adapting) -> None:
    flags = adapting.flags()
    assert "--seeds and --steps" in adapting.refusal(*flags, "--seeds", "3")[1]
    assert "has [general], and FOLDER" in adapting.refusal(str(adapting.encoder), *flags)[1]
    assert "FOLDER is missing" in adapting.refusal("--task", "t.toml", "--output", "o")[1]


def test_a_job_s_error_is_the_command_s(adapting: Adapting) -> None:
    adapting.steps["domain"]["corpus"] = "no_such_*.txt"
    code, line = adapting.fails()
    assert code in (2, 3) and "no_such_*.txt" in line
