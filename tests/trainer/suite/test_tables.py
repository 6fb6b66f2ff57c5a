"""The tables: which results count, averages, intervals, and which score is marked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer.finetune.inputs import INPUTS_FILE, fingerprint_of
from trainer.finetune.results import RESULTS_FILE, spread
from trainer.suite.encoders import Encoder
from trainer.suite.plan import Plan, is_finetuned
from trainer.suite.suite_file import open_suite
from trainer.suite.suite_results import average, count_without_score, results_of
from trainer.suite.tables import best_position, error_lines, markdown, page


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def plan(suite_file: Path, tmp_path: Path) -> Plan:
    """A plan of two seeds whose folders hold results of three."""
    suite = open_suite(str(suite_file), [], [])
    plan = Plan(suite, [Encoder("first", "folder")], tmp_path / "out", 2)
    [encoder] = plan.encoders
    for name, task in suite.tasks.items():
        scores = [{"dev": {task.metric: value}} for value in (0.25, 0.75, 1.0)]
        seeds = [{"seed": number, "scores": of_seed, "seconds": 1800.0} for number, of_seed in enumerate(scores)]
        # The order of the seeds is not that of the file.
        content = {"seeds": seeds[::-1], "baseline": {"dev": {task.metric: 0.25}}}
        write(plan.place(encoder, name) / RESULTS_FILE, content)
    order = {"accuracy": 0.6, "seconds": 36.0, "phenomena": {"word order": 0.6}}
    write(plan.place(encoder, "order") / RESULTS_FILE, order)
    return plan


def test_only_the_seeds_that_were_asked_for_count(plan: Plan) -> None:
    found = results_of(plan, {})
    assert found["scores"]["first"]["subjects"]["values"] == [0.25, 0.75]
    assert found["scores"]["first"]["subjects"]["baseline"] == 0.25
    assert found["scores"]["first"]["subjects"]["hours"] == 1.0
    assert found["averages"]["first"]["values"] == [0.25, 0.75]
    assert found["details"]["first"] == {"order": {"word order": 0.6}}
    assert error_lines(found) == []


def test_results_of_jobs_that_are_not_done_do_not_count(plan: Plan) -> None:
    """Their folders may hold fewer seeds, or results of an earlier start."""
    found = results_of(plan, {"first/tags": "broken"} | dict.fromkeys(("first/verbs", "first/order"), "not done"))
    assert found["averages"]["first"] is None
    assert error_lines(found) == ["first/tags: broken", "first/verbs: not done", "first/order: not done"]
    assert "word order" not in markdown(found)


def test_a_set_without_labels_is_a_line_and_not_a_traceback(plan: Plan) -> None:
    tags = plan.suite.tasks["tags"]
    entry = tags.entry.model_copy(update={"sets": ("dev", "hidden")})
    suite = replace(plan.suite, tasks={**plan.suite.tasks, "tags": replace(tags, entry=entry)})

    found = results_of(replace(plan, suite=suite), {})
    assert error_lines(found) == [
        "first/tags: the set hidden has no labels, so it has no score. Remove it from the task's sets."
    ]
    assert count_without_score(found) == 1
    assert "| tags | chunk_f1 | - |" in markdown(found)


def test_a_folder_with_more_seeds_is_done(tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    write(encoder / "config.json", {})
    output = tmp_path / "out"
    write(output / RESULTS_FILE, {"seeds": [{"seed": seed} for seed in (2, 0, 1)]})
    assert not is_finetuned(output, str(encoder), 2)  # of no known encoder

    write(output / INPUTS_FILE, {"encoder": fingerprint_of(str(encoder))})
    assert is_finetuned(output, str(encoder), 3)
    assert not is_finetuned(output, str(encoder), 4)
    assert is_finetuned(output, str(tmp_path / "removed"), 3)

    write(encoder / "config.json", {"changed": True})
    assert not is_finetuned(output, str(encoder), 3)


def cell(*values: float, hours: float = 0.5, error: str | None = None, baseline: float | None = None) -> dict[str, Any]:
    found = spread(list(values)) if values else None
    return {"values": list(values), "spread": found, "baseline": baseline, "hours": hours, "error": error}


def content(**changes: Any) -> dict[str, Any]:
    rows = [
        {"name": "rte", "metric": "accuracy", "sets": ["dev"], "starts_from": None, "in_average": True},
        {"name": "cola", "metric": "matthews", "sets": ["dev"], "starts_from": None, "in_average": True},
        {"name": "blimp", "metric": "accuracy", "sets": [], "starts_from": None, "in_average": False},
    ]
    scores = {
        "a": {"rte": cell(0.5, 0.52, 0.54), "cola": cell(0.1, 0.2, 0.3), "blimp": cell(0.7)},
        "b": {"rte": cell(0.8, 0.81, 0.82), "cola": cell(0.2, 0.3, 0.4), "blimp": cell(error="no masked LM")},
    }
    encoders = [{"label": label, "folder": f"<{label}>", "random_weights": label == "b"} for label in scores]
    return {
        "suite": "small",
        "seeds": 3,
        "encoders": encoders,
        "rows": rows,
        "scores": scores,
        "averages": {label: average(rows, cells) for label, cells in scores.items()},
        "details": {"a": {"blimp": {"agreement": 0.25}}, "b": {}},
        "probes": {
            "a": {
                "error": None,
                "task": "tags",
                "metric": "chunk_f1",
                "layers": [0.1, 0.2, 0.4],
                "baseline": {"label": "O", "score": 0.125},
                "examples": {"fitted": 2000, "train": 30000, "dev": 1000},
            },
            "b": {"error": "no layers", "layers": []},
        },
        "skipped": [{"name": "mnli", "files": ["MNLI/train.tsv"], "source": "somewhere"}],
    } | changes


def test_the_table_says_everything() -> None:
    table = markdown(content())
    assert "| rte | accuracy | 0.5200 ± 0.0497 | **0.8100 ± 0.0248** |" in table
    assert "| cola | matthews | 0.2000 ± 0.2484 | 0.3000 ± 0.2484 |" in table
    assert "| cola | a | 0.2000 | 0.2484 | 0.1500 | 0.2000 | 0.2500 | 30 min 0 s |" in table
    assert "| blimp | accuracy | 0.7000 | - |" in table
    assert "| average | of 2 |" in table
    assert "| blimp: agreement | 0.2500 | - |" in table
    assert "| 2 | 0.4000 | - |" in table
    assert "| most frequent label | 0.1250 | - |" in table
    assert "Fitted to 2,000 of 30,000 training examples, and scored on the 1,000 of the dev set." in table
    assert "- b/blimp: no masked LM" in table
    assert "- b/probe: no layers" in table
    assert "- mnli: left out, because files are missing: MNLI/train.tsv (from somewhere)" in table


def test_differences_are_those_of_the_same_seeds() -> None:
    varied = content()["scores"]
    varied["b"]["cola"] = cell(0.2, 0.2, 0.5)
    table = markdown(content(scores=varied))
    assert "| rte | +0.2900 ± 0.0248 * |" in table
    assert "| cola | +0.1000 ± 0.2484 |" in table
    assert "Differences from a" in table and "| blimp | " not in table.split("Differences from a")[1].split("##")[0]
    varied["b"]["cola"] = cell(0.1, 0.2, 0.3)
    assert "| cola | +0.0000 |" in markdown(content(scores=varied)), "equal differences have no interval"

    for alone in (content(seeds=1), content(encoders=content()["encoders"][:1])):
        assert "Differences" not in markdown(alone)


def test_the_page_says_the_same_and_loads_nothing() -> None:
    html = page(content())
    texts = ["&lt;a&gt;", "0.5200 ± 0.0497", 'class="good">0.8100 ± 0.0248', "agreement", "no masked LM"]
    for text in [*texts, "Fitted to 2,000 of 30,000 training examples"]:
        assert text in html
    assert "src=" not in html and "href=" not in html
    assert page(content(suite=None, rows=[], scores={"a": {}, "b": {}}, averages={"a": None, "b": None}))


def test_a_score_of_guessing_is_marked() -> None:
    scores = content()["scores"]
    scores["a"]["cola"] = cell(0.0, baseline=0.0)
    scores["b"]["cola"] = cell(0.1, baseline=0.0)
    table = markdown(content(scores=scores))
    assert "| cola | matthews | 0.0000 † | 0.1000 |" in table
    assert "† No better than always predicting the most frequent label of the training set" in table
    assert "†" not in markdown(content())


@pytest.mark.parametrize(("apart", "best"), [(0.25, 1), (0.24, None)])
def test_a_mark_means_that_no_interval_touches(apart: float, best: int | None) -> None:
    """The intervals are 0.1242 to each side."""
    assert best_position([cell(0.1, 0.2, 0.15), cell(0.1 + apart, 0.2 + apart, 0.15 + apart)]) == best
    assert best_position([cell(0.1, 0.2, 0.15), cell(0.6, 0.7, 0.65), cell(0.7, 0.8, 0.75)]) is None


def test_one_or_two_seeds_mark_nothing() -> None:
    three = cell(0.1, 0.2, 0.3)
    for cells in ([cell(0.1), cell(0.9)], [cell(0.1, 0.2), cell(0.8, 0.9)], [three, cell(0.9)], [three, None], [three]):
        assert best_position(cells) is None
    assert "Mean of 2 seeds, which are too few for an interval." in markdown(content(seeds=2))


def test_the_average_is_over_tasks_seed_by_seed() -> None:
    found = content()["averages"]["a"]
    assert found["values"] == pytest.approx([0.3, 0.36, 0.42])
    assert found["hours"] == 1.0
    rows: list[Mapping[str, Any]] = [
        {"name": "x", "sets": [], "in_average": True},
        {"name": "y", "sets": ["dev"], "in_average": True},
    ]
    with_pairs = average(rows, {"x": cell(0.5), "y": cell(0.1, 0.3)})
    assert with_pairs is not None and with_pairs["values"] == pytest.approx([0.3, 0.4])
    assert average(rows, {"x": cell(error="no"), "y": cell(0.1, 0.3)}) is None


def test_the_legend_says_whose_intervals_are_too_narrow() -> None:
    rows = content()["rows"]
    shared = content(rows=[{**row, "starts_from": "mnli" if row["name"] != "blimp" else None} for row in rows])
    sentence = "All seeds of rte, cola start from one encoder, the best of mnli. Their intervals, and that of an"
    assert sentence in markdown(shared)
    assert "too narrow" not in markdown(content()) + markdown(shared | {"seeds": 1})
