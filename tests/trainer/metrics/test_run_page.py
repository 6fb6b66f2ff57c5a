"""The report says what the metrics say, whatever they hold, and needs nothing but itself."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from schemas.masking import KINDS
from trainer.metrics.log import NAMES
from trainer.metrics.presentation import duration, masks_note, shown_path, three_digits
from trainer.metrics.run_page import write_report


def run_folder(folder: Path, steps: int, **changes: Any) -> Path:
    """A run's recipe and metrics; `changes` are values of its third line."""
    (folder / "recipe.toml").write_text("[run]\noutput = '<b>&amp;</b>'\n")
    lines = [dict.fromkeys(NAMES, 1.0 / step) | {"step": step, "mfu": None} for step in range(1, steps + 1)]
    lines[2] |= changes
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Balanced(HTMLParser):
    """Fails on a tag that closes nothing; `texts` are what a reader sees."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_a_page_of_its_own_with_every_chart_and_the_resumes(tmp_path: Path) -> None:
    evaluated = {f"eval_{kind}_{name}": 0.5 for kind in KINDS for name in ("mlm_loss", "perplexity", "mlm_accuracy")}
    evaluated |= {"eval_mlm_loss": 0.4321, "eval_mlm_accuracy": 0.5, "eval_pair_loss": None, "eval_pair_accuracy": None}
    folder = run_folder(tmp_path, 8, **evaluated)
    (folder / "starts.jsonl").write_text('{"time": 1, "step": 6, "seconds": 1, "resumed_at": [2, 6]}')
    write_report(str(folder))
    page = (tmp_path / "report.html").read_text()
    texts = Balanced(page).texts
    for title in (
        "Loss",
        "Accuracy",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "Padding",
        "Waiting for data",
    ):
        assert title in texts
    assert "Held-out pairs at step 3" in texts and "0.4321" in texts and "ngram" in texts
    assert "Resumed after steps 2, 6: dashed in the charts." in texts
    assert set(re.findall(r'class="mark" x1="([\d.]+)%"', page)) == {"25.00", "75.00"}
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)
    assert 'output = "<b>&amp;</b>"' in "".join(texts)


def test_values_that_are_missing_or_not_finite_are_left_out(tmp_path: Path) -> None:
    write_report(str(run_folder(tmp_path, 5, loss=float("nan"), mlm_loss=float("inf"), pair_loss=None, mfu=0.5)))
    page = (tmp_path / "report.html").read_text()
    texts = Balanced(page).texts
    assert "One run, never resumed." in texts
    assert "Utilization of the devices" not in texts, "a point is no chart"
    assert not re.search(r'="[^"]*(nan|inf)', page)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/ada/data/train.tsv", "data/train.tsv"),
        ("data/train.tsv", "data/train.tsv"),
        ("s3://bucket/glue/train.tsv", "s3://bucket/glue/train.tsv"),
        ("https://ada:4f7a@host:8080/train.tsv?token=4f7a#4f7a", "https://host:8080/train.tsv"),
    ],
)
def test_pages_name_no_folders_of_the_machine_and_no_credentials(path: str, shown: str) -> None:
    assert shown_path(path) == shown


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path, run) -> None:
    folder = run_folder(tmp_path, 5)
    (folder / "recipe.toml").write_text("[run]\noutput = 'caf\u00e9'\n", encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = "import sys; from trainer.metrics.run_page import write_report; write_report(sys.argv[1])"
    done = run("python", "-c", program, folder, **locale)
    assert done.returncode == 0, done.stderr
    assert "caf\u00e9" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_run_without_metrics_has_no_report(tmp_path: Path) -> None:
    write_report(str(tmp_path))
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (3725, "1 h 2 min"), (3.6e6, "1,000 h 0 min")],
)
def test_durations_are_worded(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(11779.5, "11,800"), (1.184, "1.18"), (0.00971, "0.00971"), (12, "12")])
def test_passes_have_three_digits_and_no_exponent(number: float, text: str) -> None:
    assert three_digits(number) == text


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        ({"masking": {"prob": 0.3, "replacement": "100/0/0"}}, "training hides 30% (100/0/0): the figures of the two"),
        ({"masking": {"prob": 0.3, "final_prob": 0.15}}, "training hides 30% to 15% (80/10/10)"),
        ({}, ""),
        ({"masking": {"prob": 0.15, "stored": True}}, ""),
        ({"masking": {"prob": 0.3}, "objective": {"kind": "clm"}}, ""),
        ({"masking": {"prob": 0.3}, "model": {"family": "xlnet"}}, ""),
    ],
)
def test_held_out_rows_that_hide_other_tokens_are_said_to(recipe: dict[str, Any], told: str) -> None:
    assert told in masks_note(recipe) and bool(masks_note(recipe)) == bool(told)
