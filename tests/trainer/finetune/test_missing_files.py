"""A file of a task that does not exist: what names it, and what to correct, before anything slow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import DataError
from tests.trainer.finetune.tasks import write_task
from trainer.config.parse import Origin
from trainer.finetune.cli import _read_request, parser
from trainer.finetune.files.sets import check_task_files
from trainer.finetune.task_file import read_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "polarity", "sentence")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that has the files of an encoder by name."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    return folder


def refusal(words: list[str]) -> str:
    with pytest.raises(DataError) as refused:
        _read_request(parser("clozeline finetune").parse_args([*words, "--output", "out"]))
    return str(refused.value)


def test_the_key_of_the_task_file_and_a_near_file_are_named(folder: Path, task: Path) -> None:
    task.write_text(task.read_text().replace("dev.jsonl", "devv.jsonl"))
    assert refusal([str(folder), "--task", str(task)]) == (
        f"{task.parent}/devv.jsonl, the dev set of sentence, does not exist. Did you mean {task.parent}/dev.jsonl? "
        f"Correct data.dev of {task}, or give the folder that holds the task's files with --data."
    )


def test_a_file_of_another_set_is_not_suggested(folder: Path, task: Path) -> None:
    """Its examples would be trained on and then scored."""
    (task.parent / "dev.jsonl").unlink()
    message = refusal([str(folder), "--task", str(task)])
    assert "dev.jsonl, the dev set of sentence, does not exist. Correct data.dev of" in message

    (task.parent / "dev1.jsonl").touch()
    assert f"does not exist. Did you mean {task.parent}/dev1.jsonl? " in refusal([str(folder), "--task", str(task)])


def test_a_flag_that_names_the_file_is_named(folder: Path, task: Path) -> None:
    words = [str(folder), "--task", str(task), "--set", "data.extra.hard=hard/dev.jsonl"]
    message = refusal(words)
    assert "hard/dev.jsonl, the hard set of sentence, does not exist. Correct --set data.extra.hard=hard" in message


def test_a_shipped_task_is_not_to_be_corrected(folder: Path, tmp_path: Path) -> None:
    message = refusal([str(folder), "--task", "glue/rte", "--data", str(tmp_path)])
    assert "the train set of rte, does not exist. It comes from https://" in message
    assert message.endswith("Give the folder that holds the task's files with --data.")


def test_only_the_first_missing_file_counts_and_urls_are_looked_up(task: Path) -> None:
    resolved = read_task(str(task), [])
    check_task_files(resolved, str(task.parent), Origin(str(task)))
    with pytest.raises(DataError, match=r"^memory://none/train.jsonl, the train set of sentence, does not exist"):
        check_task_files(resolved, "memory://none", Origin(str(task)))


def test_what_is_wrong_with_a_file_is_found_before_anything_slow_is_imported(folder: Path, task: Path) -> None:
    (task.parent / "test.jsonl").write_text("{")
    code = (
        "import sys\nfrom trainer.finetune.cli import main\ncode = main(sys.argv[1:])\n"
        "print(code, [name for name in ('torch', 'transformers', 'deepspeed', 'sklearn') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(folder), "--task", str(task), "--output", "out"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "3 []\n" and "test.jsonl line 1" in done.stderr
