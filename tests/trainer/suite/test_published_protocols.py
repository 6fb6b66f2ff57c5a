"""The suites that ship follow the code of the benchmarks that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.suite.conftest import write_lines
from trainer.finetune.examples import TextExample
from trainer.finetune.files.read import read_task_data
from trainer.suite.minimal_pairs import results
from trainer.suite.suite_file import open_suite

MULTIRC = {
    "paragraph": "The wire was down.",
    "question": "What was down?",
    "answer": "The wire",
    "idx": {"paragraph": 26, "question": 298, "answer": 1562},
    "label": 1,
}
WSC = {
    "text": "Joe is older than he looks.",
    "span1_index": 0,
    "span2_index": 4,
    "span1_text": "Joe",
    "span2_text": "he",
    "idx": 32,
    "label": 0,
}


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("multirc", MULTIRC, ("What was down? The wire", "The wire was down.", 1)),
        ("wsc", WSC, ("he Joe", "Joe is older than he looks.", 0)),
    ],
)
def test_babylm_puts_the_question_before_its_text(
    name: str, line: dict[str, object], expected: tuple[str, str, int], tmp_path: Path
) -> None:
    """As finetune/dataset.py of babylm/evaluation-pipeline-2025 does, whose files have these keys."""
    for split in ("train", "valid"):
        write_lines(tmp_path / f"glue_filtered/{name}.{split}.jsonl", [line])

    task = open_suite("babylm", [name], []).tasks[name]
    [example] = read_task_data(task.task, str(tmp_path)).train
    assert isinstance(example, TextExample)
    assert (example.text, example.text_pair, example.label) == expected


def test_babylm_masks_one_token_at_a_time_and_warms_up_as_its_pipeline_does() -> None:
    suite = open_suite("babylm", [], [])
    assert {pairs.variant for pairs in suite.minimal_pairs.values()} == {"token"}
    assert {task.task.training.warmup_ratio for task in suite.tasks.values()} == {0.06}


def test_each_paradigm_counts_the_same() -> None:
    """BLiMP and BabyLM average over paradigms. Those of BabyLM's supplement have 64 to 3,867 pairs."""
    large = {"phenomenon": "agreement", "paradigm": "large", "pairs": 90, "right": 90}
    small = {"phenomenon": "agreement", "paradigm": "small", "pairs": 10, "right": 0}
    found = results({}, [{"paradigms": [large], "seconds": 1.0}, {"paradigms": [small], "seconds": 2.0}])
    assert found["accuracy"] == 0.5
    assert found["phenomena"] == {"agreement": 0.9}
    assert (found["pairs"], found["seconds"]) == (100, 3.0)


def test_a_paradigm_in_two_files_counts_once() -> None:
    halves = [{"phenomenon": "order", "paradigm": "order", "pairs": 10, "right": right} for right in (10, 0)]
    other = {"phenomenon": "order", "paradigm": "other", "pairs": 10, "right": 10}
    files = [{"paradigms": [row], "seconds": 0.0} for row in (*halves, other)]
    found = results({}, files)
    assert found["paradigms"] == {"order": 0.5, "other": 1.0}
    assert found["accuracy"] == 0.75
