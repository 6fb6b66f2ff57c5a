"""What the labels of files may be, and what is said of those that look wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError
from tests.trainer.finetune.tasks import data_of, lines_of, write_lines
from trainer.finetune.examples import TaskData


def read(folder: Path, kind: str, lines: list[dict[str, Any]], **data: Any) -> TaskData:
    write_lines(folder / "lines.jsonl", lines)
    return data_of(folder, kind, "lines.jsonl", **data)


def choices(*labels: Any) -> list[dict[str, Any]]:
    return [{"context": f"Context {label}.", "choices": ["a", "b", "c", "d"], "label": label} for label in labels]


def texts(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"Text {number}.", "label": label} for number, label in enumerate(labels)]


def test_positions_from_1_are_told_how_to_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"0 to 3. .* from 1, set data.labels = \[\"1\", \"2\", \"3\", \"4\"\]"):
        read(tmp_path, "choice", choices(1, 4))
    data = read(tmp_path, "choice", choices(1, 4), labels=["1", "2", "3", "4"])
    assert [example.label for example in data.train] == [0, 3]  # type: ignore[union-attr]

    with pytest.raises(DataError, match=r"line 1: 4 choices, but data.labels names 3: A, B, C"):
        read(tmp_path, "choice", choices("A"), labels=["A", "B", "C"])
    with pytest.raises(DataError, match=r'unknown label "1". Expected one of one, 2, 3, 4. .* list all in data.labels'):
        read(tmp_path, "choice", choices(1), labels=["one", "2", "3", "4"])


def test_labels_that_differ_in_case_alone_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(tmp_path, "sentence", texts("bad", "Good", "good", " good", "BAD"))
    assert [record.message for record in caplog.records] == [
        'The labels "BAD" and "bad" differ only in case, and are different classes. Write them alike if they are one.'
    ]
    caplog.clear()
    read(tmp_path, "sentence", texts("Good", "good"), labels=["Good", "good"])
    assert not caplog.records


def test_a_label_of_the_dev_set_in_another_case_is_told_which_one_it_may_be(tmp_path: Path) -> None:
    write_lines(tmp_path / "dev.jsonl", texts("OFFENSIVE"))
    with pytest.raises(DataError, match=r'unknown label "OFFENSIVE". .* Did you mean offensive\?'):
        read(tmp_path, "sentence", texts("none", "offensive"), dev="dev.jsonl")


def test_several_labels_of_an_example_are_refused_as_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: the label is \['a', 'b'\], .* several labels .* not supported"):
        read(tmp_path, "sentence", texts(["a", "b"], "c"))


def test_predicted_choices_have_the_names_of_the_task(finetune, encoder, tmp_path: Path) -> None:
    write_lines(tmp_path / "lines.jsonl", choices(*"ABCDABCD"))
    (tmp_path / "task.toml").write_text(
        'name = "c"\nkind = "choice"\n[data]\ntrain = "lines.jsonl"\ndev = "lines.jsonl"\n'
        'labels = ["A", "B", "C", "D"]\n[training]\nepochs = 1\nbatch = 4\n'
    )
    done = finetune(encoder("bert"), tmp_path / "task.toml", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    predicted = lines_of(tmp_path / "out/seed-0/predictions_dev.jsonl")
    right = sum(made["prediction"] == label for made, label in zip(predicted, "ABCDABCD", strict=True))
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert {made["prediction"] for made in predicted} <= set("ABCD")
    assert results["summary"]["dev"]["accuracy"]["mean"] == right / 8
    assert results["data"]["labels"] == dict.fromkeys("ABCD", 2)
