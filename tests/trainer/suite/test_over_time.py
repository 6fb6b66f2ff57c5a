"""A run's checkpoints, scored: which ones, and what the run's report shows of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.charts import Line, chart_over_hours
from schemas.errors import UsageError
from tests.conftest import Run
from tests.trainer.suite.conftest import minimal_pairs, write_lines
from trainer.metrics.curves import charts_over_hours, read_scores
from trainer.suite import checkpoints
from trainer.suite.checkpoints import hours_of, steps_of
from trainer.suite.plan import Plan
from trainer.suite.suite_file import Suite


def run_folder(folder: Path, steps: list[int]) -> Path:
    for step in steps:
        place = folder / f"checkpoints/step-{step:08d}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text("{}")
    lines = [{"step": step, "seconds": 60.0 * step, "eval_mlm_loss": 5 / step} for step in (10, 20, 25, 30)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_which_checkpoints(tmp_path: Path) -> None:
    run = str(run_folder(tmp_path / "run", [10, 20, 30]))
    assert steps_of(run, "all") == [10, 20, 30]
    assert steps_of(run, "last") == [30]
    assert steps_of(run, "30,10,10") == [10, 30]
    with pytest.raises(UsageError, match=r"no checkpoint '15'. It has 10, 20, 30; or write all, or last"):
        steps_of(run, "10,15")
    with pytest.raises(UsageError, match="holds no checkpoint"):
        steps_of(str(tmp_path), "all")
    assert hours_of(run) == pytest.approx({10: 10 / 60, 20: 20 / 60, 30: 0.5})


def test_the_axis_is_hours(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", [10, 30])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert charts_over_hours(str(run), lines) == []

    names = ["average", *"abcdefg"]
    scored = [{"step": s, "hours": s / 60, "scores": dict.fromkeys(names, s / 100)} for s in (10, 30)]
    (run / "suite_scores.json").write_text(json.dumps({"small": scored}))
    loss, first, second = charts_over_hours(str(run), lines)
    assert (loss.title, loss.unit, loss.last_step) == ("Held-out loss over hours", "hour", 0.5)
    assert [line.name for line in first.lines + second.lines] == names
    assert [dot.x for dot in first.lines[0].dots] == pytest.approx([33.4, 100], abs=0.1)

    (run / "suite_scores.json").write_text("[")
    assert read_scores(str(run)) == {}


@pytest.mark.parametrize("hours", [0.0, 1e-5, 0.02, 0.5, 3.0, 250.0])
def test_any_length_of_training_has_an_axis(hours: float) -> None:
    drawn = chart_over_hours("x", [Line("a", "blue", [(0.0, 1.0), (hours, 2.0)])], str)
    assert drawn.last_step > 0
    assert all(0 <= dot.x <= 100 for line in drawn.lines for dot in line.dots)


@pytest.mark.timeout(600)
def test_all_checkpoints_of_a_run(training, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = training.warm(1, folder, checkpoint__keep=10)
    assert done.returncode == 0, done.stderr

    suite = tmp_path / "suite"
    write_lines(suite / "pairs/order.jsonl", minimal_pairs(4, 1))
    (suite / "small.toml").write_text('name = "small"\n[minimal_pairs.order]\nfiles = "pairs/*.jsonl"\n')
    steps = ("--checkpoints", "4,12")
    done = run("clozeline", "suite", folder, *steps, "--suite", suite / "small.toml", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr

    scores = read_scores(str(folder))["small"]
    assert [line["step"] for line in scores] == [4, 12]
    assert all(0 <= line["scores"]["order"] <= 1 and line["hours"] > 0 for line in scores)
    assert (tmp_path / "out/checkpoints/step-12/config.json").exists()
    assert "Scores of small over hours" in (folder / "report.html").read_text()


def test_scores_of_a_part_join_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--only leaves the other scores and the average, which is always over the same tasks, as they were."""
    monkeypatch.setattr(checkpoints, "write_report", lambda *_: None)
    run = str(run_folder(tmp_path / "run", [10]))
    whole = Plan(Suite("small", "", {}, {}), [], tmp_path, 1, run=run, steps=[10])

    def content_of(scores: dict[str, float]) -> dict[str, Any]:
        cells = {name: {"spread": {"mean": score}} for name, score in scores.items()}
        average = {"spread": {"mean": sum(scores.values()) / len(scores)}}
        return {"suite": "small", "scores": {"step-10": cells}, "averages": {"step-10": average}}

    checkpoints.write_scores(whole, content_of({"subjects": 0.8, "verbs": 0.6}))
    checkpoints.write_scores(replace(whole, is_whole=False), content_of({"subjects": 0.9}))
    ((line,),) = read_scores(run).values()
    assert line["scores"] == pytest.approx({"average": 0.7, "subjects": 0.9, "verbs": 0.6})
