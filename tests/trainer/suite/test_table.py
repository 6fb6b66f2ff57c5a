"""The table: averages, intervals, and which score is marked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.finetune.results import spread
from trainer.suite.outcomes import average, best_label, interval_of
from trainer.suite.report import report
from trainer.suite.table import markdown, score_rows, time_of

SCORES = st.floats(-1, 1, allow_subnormal=False)


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


def test_the_better_one_is_marked_only_where_intervals_do_not_overlap() -> None:
    rows = {row.name: [score.best for score in row.scores] for row in score_rows(content())}
    assert rows == {"rte": [False, True], "cola": [False, False], "blimp": [False, False], "average": [False, False]}


def test_a_score_of_guessing_is_marked_in_the_table_and_on_the_page() -> None:
    scores = content()["scores"]
    scores["a"]["cola"] = cell(0.0, baseline=0.0)
    scores["b"]["cola"] = cell(0.1, baseline=0.0)
    found = content(scores=scores)
    assert "| cola | matthews | 0.0000 † | 0.1000 |" in markdown(found)
    assert "0.0000 †" in report(found, {})
    sentence = "† No better than always predicting the most frequent label of the training set"
    assert sentence in markdown(found) and sentence in report(found, {})
    assert "†" not in markdown(content())


@given(st.lists(st.lists(SCORES, min_size=2, max_size=5), min_size=2, max_size=4))
def test_a_mark_means_that_no_interval_touches(values: list[list[float]]) -> None:
    cells = {str(number): cell(*of_one) for number, of_one in enumerate(values)}
    best = best_label(cells)
    above = [
        label
        for label in cells
        if all(interval_of(cells[label])[0] > interval_of(cells[other])[1] for other in cells if other != label)
    ]
    assert [best] == (above or [None])


def test_one_seed_marks_nothing() -> None:
    assert best_label({"a": cell(0.1), "b": cell(0.9)}) is None
    assert best_label({"a": cell(0.1, 0.1), "b": cell(0.9)}) is None
    assert best_label({"a": cell(0.1, 0.1), "b": None}) is None
    assert best_label({"a": cell(0.1, 0.1)}) is None


def test_the_average_is_over_tasks_seed_by_seed() -> None:
    found = content()["averages"]["a"]
    assert found["values"] == pytest.approx([0.3, 0.36, 0.42])
    assert found["hours"] == 1.0
    rows: list[dict[str, Any]] = [
        {"name": "x", "sets": [], "in_average": True},
        {"name": "y", "sets": ["dev"], "in_average": True},
    ]
    assert average(rows, {"x": cell(0.5), "y": cell(0.1, 0.3)})["values"] == pytest.approx([0.3, 0.4])  # type: ignore[index]
    assert average(rows, {"x": cell(error="no"), "y": cell(0.1, 0.3)}) is None


def test_the_table_says_everything() -> None:
    table = markdown(content())
    assert "| rte | accuracy | 0.5200 ± 0.0497 | **0.8100 ± 0.0248** |" in table
    assert "| cola | a | 0.2000 | 0.1500 | 0.2500 | 0.2000 | 0.2484 | 30 min 0 s |" in table
    assert "| blimp | accuracy | 0.7000 | - |" in table
    assert "| blimp: agreement | 0.2500 | - |" in table
    assert "| 2 | 0.4000 | - |" in table
    assert "- b/blimp: no masked LM" in table
    assert "- b/probe: no layers" in table
    assert "- mnli: left out, because files are missing: MNLI/train.tsv (from somewhere)" in table


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.3, "< 1 s"), (1.0, "1 s"), (8.4, "8 s"), (125.0, "2 min 5 s"), (7260.0, "2 h 1 min")]
)
def test_short_times_can_be_read(seconds: float, text: str) -> None:
    assert time_of(cell(0.5, hours=seconds / 3600)) == text


@pytest.mark.parametrize(("seeds", "has_note"), [(1, False), (2, True), (3, True), (4, False), (5, False)])
def test_intervals_of_few_seeds_get_a_note(seeds: int, has_note: bool) -> None:
    found = content(seeds=seeds)
    assert (f"Intervals of {seeds} seeds say little" in markdown(found)) == has_note
    assert (f"Intervals of {seeds} seeds say little" in report(found, {})) == has_note

    only_pairs = [row for row in found["rows"] if not row["sets"]]
    assert "say little" not in markdown(found | {"rows": only_pairs})


def test_the_probes_have_a_baseline_and_numbers_of_examples() -> None:
    found = content()
    sentence = "Fitted to 2,000 of 30,000 training examples, and scored on the 1,000 of the dev set."
    assert "| most frequent label | 0.1250 | - |" in markdown(found)
    assert sentence in markdown(found) and sentence in report(found, {})


def test_encoders_whose_probes_had_different_numbers_of_examples() -> None:
    found = content()
    others = {"examples": {"fitted": 900, "train": 30000, "dev": 1000}}
    found["probes"] = {"a": found["probes"]["a"], "c": found["probes"]["a"] | others}
    assert "Fitted to 2,000 of 30,000 (a), 900 of 30,000 (c) training examples" in markdown(found)


def test_the_legend_says_whose_intervals_are_too_narrow() -> None:
    rows = content()["rows"]
    assert "too narrow" not in markdown(content())
    shared = content(rows=[{**row, "starts_from": "mnli" if row["name"] != "blimp" else None} for row in rows])
    sentence = "All seeds of rte, cola start from one encoder, the best of mnli. Their intervals, and that of an"
    assert sentence in markdown(shared)
    assert sentence in report(shared, {})
    assert "too narrow" not in markdown(shared | {"seeds": 1})


def test_the_page_says_the_same_and_loads_nothing() -> None:
    page = report(content(), {})
    for text in (
        "&lt;a&gt;",
        "0.5200 ± 0.0497",
        'class="good">0.8100 ± 0.0248',
        "agreement",
        "no masked LM",
        "layer 2",
    ):
        assert text in page
    assert "src=" not in page and "href=" not in page
    assert report(content(suite=None, rows=[], scores={"a": {}, "b": {}}, averages={"a": None, "b": None}), {})
