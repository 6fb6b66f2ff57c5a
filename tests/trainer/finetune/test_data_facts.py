"""What a fine-tuning says about its data: sizes, labels, truncated texts, and what a constant prediction scores."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.finetune.tasks import choice_lines, sentence_lines, tag_lines, write_lines, write_task

OTHER = {"text": "The cat.", "label": "second"}
"""An example of the second label."""


def lines_of(task: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in task.with_name(f"{name}.jsonl").read_text().splitlines()]


def fine_tuned(finetune, encoder, task: Path, *flags: str) -> dict[str, Any]:
    """The results of one epoch of BERT, with what the command printed as "log"."""
    output = task.parent / "out"
    done = finetune(encoder("bert"), task, output, "--set", "training.epochs=1", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads((output / "results.json").read_text()) | {"log": done.stdout + done.stderr}


def test_sizes_files_and_labels(finetune, encoder, tmp_path: Path) -> None:
    task = write_task(tmp_path, "sentence")
    results = fine_tuned(finetune, encoder, task, "--set", "training.max_length=7")

    labels = Counter(line["label"] for line in lines_of(task, "train"))
    assert results["data"] == {
        "files": {name: [str(tmp_path / f"{name}.jsonl")] for name in ("train", "dev", "test")},
        "examples": {"train": 48, "dev": 24, "test": 24},
        "shared": [],
        "labels": {"first": labels["first"], "second": labels["second"]},
    }

    shown = f"first: {labels['first']}; second: {labels['second']}"
    assert f"examples: 48 train, 24 dev, 24 test ({shown}); 6 steps of 8 per epoch" in results["log"]
    assert "48 of 48 training examples fill a row of 7 tokens" in results["log"]

    report = (tmp_path / "out/report.html").read_text()
    assert f"{tmp_path.name}/dev.jsonl" in report and shown in report
    assert str(tmp_path) not in report, "a page that is shared names no folders of this machine"
    headline = report[: report.index("Scores over all seeds")]
    assert headline.index("accuracy, test") < headline.index("accuracy, dev")


def test_examples_that_several_sets_share_are_counted(finetune, encoder, tmp_path: Path) -> None:
    task = write_task(tmp_path, "sentence")
    train = lines_of(task, "train")
    write_lines(tmp_path / "dev.jsonl", train)
    write_lines(tmp_path / "test.jsonl", [train[0], *({"text": f"New {n}.", "label": "first"} for n in range(11))])
    results = fine_tuned(finetune, encoder, task)
    log = results["log"]
    assert "48 of 48 dev examples are also train examples, so their scores do not show how well new text is" in log
    assert "1 of 12 test examples are also train examples.\n" in log
    assert "1 of 12 test examples are also dev examples.\n" in log

    assert results["data"]["shared"][0] == {"set": "dev", "other": "train", "examples": 48}
    for page in ("report.html", "hf/README.md"):
        told = (
            "48 of 48 dev examples are also train examples, so their scores do not show how well new text is predicted."
        )
        assert told in (tmp_path / "out" / page).read_text(), page


@pytest.mark.parametrize("kind", ["sentence", "choice", "tags"])
def test_the_baseline_is_the_most_frequent_training_label(finetune, encoder, tmp_path: Path, kind: str) -> None:
    task = write_task(tmp_path, kind)
    # Many examples of one label, so that it is the most frequent one whatever is drawn.
    lines = {"sentence": sentence_lines, "choice": choice_lines, "tags": tag_lines}[kind](200, seed=5)
    if kind != "tags":
        lines = lines[:20] + [line for line in lines[20:] if line["label"] == lines[0]["label"]]
    write_lines(tmp_path / "train.jsonl", lines)
    results = fine_tuned(finetune, encoder, task, "--set", 'metrics=["accuracy"]')

    dev = lines_of(task, "dev")
    if kind == "tags":
        tags = [tag for line in dev for tag in line["tags"]]
        expected = tags.count("O") / len(tags)
    else:
        expected = sum(line["label"] == lines[0]["label"] for line in dev) / len(dev)
    assert results["baseline"]["dev"] == {"accuracy": pytest.approx(expected)}
    assert f"{expected:.4f}" in (tmp_path / "out/report.html").read_text()


def test_a_score_of_guessing_is_told(finetune, encoder, tmp_path: Path) -> None:
    """Without a step at a rate that changes anything, the head predicts one label, or worse."""
    task = write_task(tmp_path, "sentence")
    write_lines(tmp_path / "dev.jsonl", [line | {"label": "first"} for line in sentence_lines(30, 1)] + [OTHER])
    write_lines(tmp_path / "train.jsonl", [line | {"label": "first"} for line in sentence_lines(30, 1)] + [OTHER])
    log = fine_tuned(finetune, encoder, task, "--set", "training.lr=1e-9")["log"]
    assert 'is no better than that of always predicting "first", 0.9677. Raise training.epochs, which is' in log
    assert "another training.lr, which is 1e-09" in log


@pytest.mark.parametrize("kind", ["pair", "span"])
def test_a_kind_without_classes_has_no_baseline(finetune, encoder, tmp_path: Path, kind: str) -> None:
    results = fine_tuned(finetune, encoder, write_task(tmp_path, kind, train=8, dev=8))
    assert results["baseline"] == {} and results["data"]["labels"] == {}
    assert "most frequent label" not in (tmp_path / "out/report.html").read_text()
