"""The scores of all jobs: OUTPUT/results.json, which the table and the page are made of.

It is a function of the jobs' results alone, so it is the same whether or not a suite was interrupted, except for hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from trainer.finetune.results import RESULTS_FILE, spread
from trainer.suite.encoders import Encoder
from trainer.suite.needed_files import Missing
from trainer.suite.plan import PROBE, Plan, name_of, read_json

ACCURACY = "accuracy"

Cell = dict[str, Any]
"""values: one for each seed, or one alone. spread: of them, None without values. hours: of training. error: or None."""


def outcome(plan: Plan, errors: Mapping[str, str], skipped: Sequence[Missing]) -> dict[str, Any]:
    """Return the content of results.json. errors: by the names of jobs that failed."""
    rows = rows_of(plan)
    scores: dict[str, dict[str, Cell]] = {}
    for encoder in plan.encoders:
        scores[encoder.label] = {row["name"]: cell_of(plan, row, encoder, errors) for row in rows}

    return {
        "suite": plan.suite.entry.name if plan.suite is not None else None,
        "seeds": plan.seeds,
        "encoders": [
            {"label": encoder.label, "folder": encoder.folder, "random_weights": encoder.random_weights}
            for encoder in plan.encoders
        ],
        "rows": rows,
        "scores": scores,
        "averages": {label: average(rows, cells) for label, cells in scores.items()},
        "details": {encoder.label: details_of(plan, encoder) for encoder in plan.encoders},
        "probes": probes_of(plan, errors),
        "skipped": [{"name": part.name, "files": list(part.files), "source": part.source} for part in skipped],
    }


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of the table: tasks, then minimal pairs."""
    if plan.suite is None:
        return []

    rows: list[dict[str, Any]] = []
    for task in plan.suite.tasks:
        entry = task.entry
        row = {"name": entry.name, "metric": task.metric, "sets": list(entry.sets), "in_average": entry.in_average}
        rows.append(row)
    for pairs in plan.suite.minimal_pairs:
        rows.append({"name": pairs.name, "metric": ACCURACY, "sets": [], "in_average": pairs.in_average})
    return rows


def cell_of(plan: Plan, row: Mapping[str, Any], encoder: Encoder, errors: Mapping[str, str]) -> Cell:
    """Return the scores of one encoder in one row."""
    name = row["name"]
    error = error_of(plan, name, encoder, errors)
    if error is not None:
        return {"values": [], "spread": None, "hours": 0.0, "error": error}

    results = read_json(plan.place(encoder, name) / RESULTS_FILE)
    if not row["sets"]:
        values = [results[ACCURACY]]
        seconds = results["seconds"]
    else:
        values = [fmean(seed["scores"][one_set][row["metric"]] for one_set in row["sets"]) for seed in results["seeds"]]
        seconds = sum(seed["seconds"] for seed in results["seeds"])
    return {"values": values, "spread": spread(values), "hours": seconds / 3600, "error": None}


def error_of(plan: Plan, name: str, encoder: Encoder, errors: Mapping[str, str]) -> str | None:
    """Return why there is no score, None if there is one."""
    job = name_of(encoder, name)
    if job in errors:
        return errors[job]
    if not (plan.place(encoder, name) / RESULTS_FILE).is_file():
        return "not done"
    return None


def average(rows: Sequence[Mapping[str, Any]], cells: Mapping[str, Cell]) -> Cell | None:
    """Return the average over tasks, None if a task of it has no score.

    Its values are averages over the tasks' first seeds, second seeds and so on. Draws of different tasks have nothing
    to do with each other, so these are independent values of the average, and an interval can be drawn from them.
    """
    counted = [cells[row["name"]] for row in rows if row["in_average"]]
    if not counted or any(cell["error"] is not None for cell in counted):
        return None

    seeds = max(len(cell["values"]) for cell in counted)
    # What has no seeds (minimal pairs) has one value, which counts with every seed.
    columns = [cell["values"] if len(cell["values"]) == seeds else cell["values"] * seeds for cell in counted]
    values = [fmean(of_seed) for of_seed in zip(*columns, strict=True)]
    hours = sum(cell["hours"] for cell in counted)
    return {"values": values, "spread": spread(values), "hours": hours, "error": None}


def details_of(plan: Plan, encoder: Encoder) -> dict[str, Any]:
    """Return the scores of minimal pairs by phenomenon."""
    if plan.suite is None:
        return {}
    found = {}
    for pairs in plan.suite.minimal_pairs:
        results = read_json(plan.place(encoder, pairs.name) / RESULTS_FILE)
        if results:
            found[pairs.name] = results["phenomena"]
    return found


def probes_of(plan: Plan, errors: Mapping[str, str]) -> dict[str, Any]:
    """Return the scores of the layers of each encoder, or why there are none. Empty without a probe."""
    if plan.probe is None:
        return {}

    probes = {}
    for encoder in plan.encoders:
        results = read_json(plan.place(encoder, PROBE) / RESULTS_FILE)
        error = error_of(plan, PROBE, encoder, errors)
        if error is not None:
            probes[encoder.label] = {"error": error, "layers": []}
        else:
            probes[encoder.label] = {
                "error": None,
                "task": results["task"],
                "metric": results["metric"],
                "layers": results["layers"],
            }
    return probes


def best_label(cells: Mapping[str, Cell | None]) -> str | None:
    """Return the label whose interval lies above those of all others; None if they overlap, or there is none.

    One seed says nothing about the next, so a cell with one value has no interval, and nothing is marked beside it.
    """
    if len(cells) < 2 or any(cell is None or len(cell["values"]) < 2 for cell in cells.values()):
        return None

    intervals = {label: interval_of(cell) for label, cell in cells.items() if cell is not None}
    best = max(intervals, key=lambda label: intervals[label][0])
    others = [high for label, (_, high) in intervals.items() if label != best]
    return best if intervals[best][0] > max(others) else None


def interval_of(cell: Cell) -> tuple[float, float]:
    """Return the ends of the 95% interval of the mean."""
    found = cell["spread"]
    return found["mean"] - found["interval"], found["mean"] + found["interval"]
