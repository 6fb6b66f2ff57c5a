"""Collects the scores of all jobs in OUTPUT/results.json, from which the table and the report are built.

The content depends only on the jobs' results, so except for hours an interruption of the suite does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trainer.finetune.results import RESULTS_FILE, spread
from trainer.suite.encoders import Encoder
from trainer.suite.needed_files import Missing
from trainer.suite.plan import PROBE, Plan, job_name, read_json
from trainer.suite.seed_scores import seeds_of, unlabeled_sets, values_of

ACCURACY = "accuracy"

Cell = dict[str, Any]
"""A cell of the table. values: one score per seed, or a single one. spread: their statistics, None without values.
baseline: what always predicting the most frequent label scores, None if the task has no labels to count. hours: the
time that the job took. error: why there is no score, None if there is one."""


@dataclass(frozen=True)
class JobStates:
    """How jobs ended.

    done: the names of the jobs whose results are what the plan asks for. errors: by name, why a job failed or was not
    planned.
    """

    done: AbstractSet[str]
    errors: Mapping[str, str]


def outcome(plan: Plan, jobs: JobStates, skipped: Sequence[Missing]) -> dict[str, Any]:
    """Return the content of results.json.

    Only jobs that are done count. The folder of any other job may hold results of an earlier start with fewer seeds.
    """
    rows = rows_of(plan)
    scores: dict[str, dict[str, Cell]] = {}
    for encoder in plan.encoders:
        scores[encoder.label] = {row["name"]: cell_of(plan, row, encoder, jobs) for row in rows}

    return {
        "suite": plan.suite.entry.name if plan.suite is not None else None,
        "seeds": plan.seeds,
        "encoders": [shown_encoder(encoder) for encoder in plan.encoders],
        "rows": rows,
        "scores": scores,
        "averages": {label: average(rows, cells) for label, cells in scores.items()},
        "details": {encoder.label: details_of(plan, encoder, jobs) for encoder in plan.encoders},
        "probes": probes_of(plan, jobs),
        "skipped": [shown_part(part) for part in skipped],
    }


def shown_encoder(encoder: Encoder) -> dict[str, Any]:
    """Return what results.json has of an encoder."""
    return {
        "label": encoder.label,
        "folder": encoder.folder,
        "random_weights": encoder.random_weights,
    }


def shown_part(part: Missing) -> dict[str, Any]:
    """Return what results.json has of a part of the suite whose files are missing."""
    return {
        "name": part.name,
        "files": list(part.files),
        "source": part.source,
    }


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of the table: tasks, then minimal pairs."""
    if plan.suite is None:
        return []

    rows: list[dict[str, Any]] = []
    for task in plan.suite.tasks:
        entry = task.entry
        row = {
            "name": entry.name,
            "metric": task.metric,
            "sets": list(entry.sets),
            "starts_from": entry.starts_from,
            "in_average": entry.in_average,
        }
        rows.append(row)
    for pairs in plan.suite.minimal_pairs:
        row = {
            "name": pairs.name,
            "metric": ACCURACY,
            "sets": [],
            "starts_from": None,
            "in_average": pairs.in_average,
        }
        rows.append(row)
    return rows


def cell_of(plan: Plan, row: Mapping[str, Any], encoder: Encoder, jobs: JobStates) -> Cell:
    """Return the cell of one encoder in one row: per seed, the mean of the row's metric over its sets."""
    error = error_of(row["name"], encoder, jobs)
    if error is not None:
        return empty_cell(error)

    results = read_json(plan.place(encoder, row["name"]) / RESULTS_FILE)
    if not row["sets"]:
        return filled_cell([results[ACCURACY]], results["seconds"] / 3600)

    seeds = seeds_of(results, plan.seeds)
    unlabeled = unlabeled_sets(seeds, row["sets"])
    if unlabeled:
        return empty_cell(f"the set {unlabeled[0]} has no labels, so it has no score. Remove it from the task's sets.")

    values = values_of(seeds, row["sets"], row["metric"])
    baselines = [results["baseline"][name][row["metric"]] for name in row["sets"] if results["baseline"]]
    hours = sum(seed["seconds"] for seed in seeds) / 3600
    return filled_cell(values, hours, fmean(baselines) if baselines else None)


def filled_cell(values: list[float], hours: float, baseline: float | None = None) -> Cell:
    """Return a cell with values. hours: the time that the job took. baseline: the score of the most frequent label."""
    return {"values": values, "spread": spread(values), "baseline": baseline, "hours": hours, "error": None}


def empty_cell(error: str) -> Cell:
    """Return a cell without a score. error: why there is none."""
    return {"values": [], "spread": None, "baseline": None, "hours": 0.0, "error": error}


def error_of(name: str, encoder: Encoder, jobs: JobStates) -> str | None:
    """Return why a part of the suite has no score for an encoder, None if it has one."""
    job = job_name(encoder.label, name)
    if job in jobs.errors:
        return jobs.errors[job]
    return None if job in jobs.done else "not done"


def count_without_score(content: Mapping[str, Any]) -> int:
    """Return the number of cells without a score."""
    count = 0
    for cells in content["scores"].values():
        count += sum(cell["error"] is not None for cell in cells.values())
    return count


def average(rows: Sequence[Mapping[str, Any]], cells: Mapping[str, Cell]) -> Cell | None:
    """Return the average over tasks, None if one of them has no score.

    Its first value is the mean over the tasks' first seeds, its second value the mean over their second seeds, and so
    on. The interval is computed from these values, which are independent with one exception: all seeds of a task that
    starts from another task share that task's best encoder. The legend of the table says so.
    """
    counted = [row for row in rows if row["in_average"]]
    of_rows = [cells[row["name"]] for row in counted]
    if not counted or any(cell["error"] is not None for cell in of_rows):
        return None

    seeds = max(len(cell["values"]) for cell in of_rows)
    columns = []
    for row, cell in zip(counted, of_rows, strict=True):
        # Minimal pairs have no sets and no seeds. Their single value counts for every seed of the other rows.
        columns.append(cell["values"] if row["sets"] else cell["values"] * seeds)

    values = [fmean(of_seed) for of_seed in zip(*columns, strict=True)]
    return filled_cell(values, sum(cell["hours"] for cell in of_rows))


def details_of(plan: Plan, encoder: Encoder, jobs: JobStates) -> dict[str, Any]:
    """Return the accuracies on minimal pairs by phenomenon, for each set of minimal pairs that has a score."""
    if plan.suite is None:
        return {}

    found = {}
    for pairs in plan.suite.minimal_pairs:
        if error_of(pairs.name, encoder, jobs) is None:
            results = read_json(plan.place(encoder, pairs.name) / RESULTS_FILE)
            found[pairs.name] = results["phenomena"]
    return found


def probes_of(plan: Plan, jobs: JobStates) -> dict[str, Any]:
    """Return the probe's score of each layer for each encoder, or the error. Empty without a probe."""
    if plan.probe is None:
        return {}

    probes = {}
    for encoder in plan.encoders:
        error = error_of(PROBE, encoder, jobs)
        if error is not None:
            probes[encoder.label] = {"error": error, "layers": []}
            continue

        results = read_json(plan.place(encoder, PROBE) / RESULTS_FILE)
        probes[encoder.label] = {
            "error": None,
            "task": results["task"],
            "metric": results["metric"],
            "layers": results["layers"],
            "baseline": results["baseline"],
            "examples": results["examples"],
        }
    return probes


def best_label(cells: Mapping[str, Cell | None]) -> str | None:
    """Return the label of the cell whose interval lies above all others, None if there is no such cell.

    A single value has no interval, so a row with such a cell has no best label.
    """
    if len(cells) < 2 or any(cell is None or len(cell["values"]) < 2 for cell in cells.values()):
        return None

    intervals = {label: interval_of(cell) for label, cell in cells.items() if cell is not None}
    best = max(intervals, key=lambda label: intervals[label][0])
    others = [high for label, (_, high) in intervals.items() if label != best]
    return best if intervals[best][0] > max(others) else None


def interval_of(cell: Cell) -> tuple[float, float]:
    """Return the lower and the upper end of the 95% interval of the mean."""
    spread_of_cell = cell["spread"]
    half = spread_of_cell["interval"]
    return spread_of_cell["mean"] - half, spread_of_cell["mean"] + half
