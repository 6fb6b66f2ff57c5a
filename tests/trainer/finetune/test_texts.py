"""--write_texts: the texts of a task's training files, for continued pretraining."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import ClozelineError, DataError, UsageError
from tests.trainer.finetune.tasks import lines_of, write_task
from trainer.finetune import cli
from trainer.finetune.examples import Answer, ChoiceExample, Example, SpanExample, TagExample, TextExample
from trainer.finetune.texts import texts_of, write_texts


def texts_in(path: Path) -> list[str]:
    return [line["text"] for line in lines_of(path)]


def told(words: list[str]) -> str:
    """The line of the error with which the command ends before it reads a file."""
    with pytest.raises(ClozelineError) as caught:
        cli.check_flags(cli.parser("clozeline finetune").parse_args(words))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_texts_of_the_training_file_are_written_and_no_others(tmp_path: Path, capsys) -> None:
    task = write_task(tmp_path / "task", "sentence")
    out = tmp_path / "new" / "texts.jsonl"
    assert cli.main(["--task", str(task), "--write_texts", str(out)]) == 0
    training = list(dict.fromkeys(texts_in(task.parent / "train.jsonl")))
    assert texts_in(out) == training
    assert f"{out} has the {len(training)} texts of the training files of" in capsys.readouterr().out

    before = out.stat().st_mtime_ns
    assert cli.main(["--task", str(task), "--write_texts", str(out)]) == 0
    assert out.stat().st_mtime_ns == before, "shard takes a file with a newer time for a changed one"


def test_a_file_with_something_else_is_kept(tmp_path: Path, capsys) -> None:
    task = write_task(tmp_path / "task", "sentence")
    train = task.parent / "train.jsonl"
    before = train.read_text()
    assert cli.main(["--task", str(task), "--write_texts", str(train)]) == 2
    assert f"--write_texts {train} exists and holds something else. Give another file" in capsys.readouterr().err
    assert train.read_text() == before


def test_labels_are_left_out_and_all_choices_taken() -> None:
    examples: list[tuple[Example, list[str]]] = [
        (TextExample("0", "One.", None, 1), ["One."]),
        (TextExample("0", "One.", "Two.", 0.5), ["One.\nTwo."]),
        (ChoiceExample("0", "It", ("is.", "was."), 1), ["It", "is.", "was."]),
        (TagExample("0", ("Ann", "reads"), (0, 1)), ["Ann reads"]),
        (SpanExample("0", "Who?", "Ann reads.", (Answer("Ann", 0),), False), ["Ann reads.", "Who?"]),
    ]
    for example, texts in examples:
        assert list(texts_of(example)) == texts


def test_a_text_that_examples_share_is_one_document(tmp_path: Path) -> None:
    path = str(tmp_path / "texts.jsonl")
    examples = [SpanExample(str(n), f"Who is {n}?", "Ann reads.", (), True) for n in range(2)]
    assert write_texts(examples, path) == 3
    assert texts_in(Path(path)) == ["Ann reads.", "Who is 0?", "Who is 1?"]
    with pytest.raises(DataError, match="the 1 training examples of the task hold no text"):
        write_texts([TagExample("0", (" ",), (0,))], str(tmp_path / "none.jsonl"))


def test_flags_that_do_not_go_together() -> None:
    texts = ["--task", "t.toml", "--write_texts", "t.jsonl"]
    for others in (["encoder"], ["--output", "out"], ["--seeds", "2"], ["--new_head"]):
        assert told([*others, *texts]) == "--write_texts trains nothing. Give only --task, --data and --set with it."
    assert told(["--write_texts", "t.jsonl"]).startswith("--task is missing")
    assert told(["--task", "t.toml"]).startswith("Missing: FOLDER, --output.")
    with pytest.raises(UsageError):
        cli.parser("clozeline finetune").parse_args(["encoder", *texts, "--steps", "steps.toml"])
