"""Collects the scores of all jobs in OUTPUT/results.json, from which the tables are built.

The content depends only on the jobs' results, so except for hours an interruption of the suite does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from trainer.finetune.results import spread
from trainer.suite.encoders import Encoder
from trainer.suite.plan import PROBE, Plan, job_name, seeds_of, unlabeled_sets, values_of

ACCURACY = "accuracy"

Errors = Mapping[str, str]
"""For each job that is not done, by its name, one line that says why."""

Cell = dict[str, Any]
"""A cell of the table. values: one score per seed, or a single one. spread: their statistics, None without values.
baseline: what always predicting the most frequent label scores, None if the task has no labels to count. hours: the
time that the job took. error: why there is no score, None if there is one."""


def results_of(plan: Plan, errors: Errors) -> dict[str, Any]:
    """Return the content of results.json.

    Only jobs without an error count. The folder of any other job may hold results of an earlier start with fewer seeds.
    """
    rows = rows_of(plan)
    scores: dict[str, dict[str, Cell]] = {}
    for encoder in plan.encoders:
        scores[encoder.label] = {row["name"]: cell_of(plan, row["name"], encoder, errors) for row in rows}

    return {
        "suite": plan.suite.name or None,
        "seeds": plan.seeds,
        "encoders": [
            {"label": encoder.label, "folder": encoder.folder, "random_weights": encoder.random_weights}
            for encoder in plan.encoders
        ],
        "rows": rows,
        "scores": scores,
        "averages": {label: average(rows, cells) for label, cells in scores.items()},
        "details": {encoder.label: phenomena_of(plan, encoder, errors) for encoder in plan.encoders},
        "probes": {encoder.label: probe_of(plan, encoder, errors) for encoder in plan.encoders if plan.probe},
        "skipped": [asdict(part) for part in plan.skipped],
    }


def rows_of(plan: Plan) -> list[dict[str, Any]]:
    """Return what the table says of each task and of each set of minimal pairs, which have no sets and no seeds."""
    rows = []
    for name, task in plan.suite.tasks.items():
        entry = task.entry.model_dump(include={"sets", "starts_from", "in_average"})
        rows.append({"name": name, "metric": task.metric} | entry)
    for name, pairs in plan.suite.minimal_pairs.items():
        row = {"name": name, "metric": ACCURACY, "sets": [], "starts_from": None, "in_average": pairs.in_average}
        rows.append(row)
    return rows


def cell_of(plan: Plan, name: str, encoder: Encoder, errors: Errors) -> Cell:
    """Return the cell of one encoder in one row: per seed, the mean of the row's metric over its sets."""
    error = errors.get(job_name(encoder.label, name))
    if error is not None:
        return new_cell(error=error)

    results = plan.results(encoder, name)
    if name in plan.suite.minimal_pairs:
        return new_cell([results[ACCURACY]], results["seconds"] / 3600)

    task = plan.suite.tasks[name]
    seeds = seeds_of(results, plan.seeds)
    unlabeled = unlabeled_sets(seeds, task)
    if unlabeled:
        return new_cell(
            error=f"the set {unlabeled[0]} has no labels, so it has no score. Remove it from the task's sets."
        )

    baselines = [results["baseline"][of_set][task.metric] for of_set in task.entry.sets if results["baseline"]]
    hours = sum(seed["seconds"] for seed in seeds) / 3600
    return new_cell(values_of(seeds, task), hours, fmean(baselines) if baselines else None)


def new_cell(values: Sequence[float] = (), hours: float = 0.0, baseline: Any = None, error: Any = None) -> Cell:
    """Return a cell with the values, or with the error."""
    found = spread(values) if values else None
    return {"values": list(values), "spread": found, "baseline": baseline, "hours": hours, "error": error}


def count_without_score(content: Mapping[str, Any]) -> int:
    return sum(cell["error"] is not None for cells in content["scores"].values() for cell in cells.values())


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
    return new_cell(values, sum(cell["hours"] for cell in of_rows))


def phenomena_of(plan: Plan, encoder: Encoder, errors: Errors) -> dict[str, Any]:
    """Return the accuracies on minimal pairs by phenomenon, for each set of minimal pairs that has a score."""
    scored = [name for name in plan.suite.minimal_pairs if job_name(encoder.label, name) not in errors]
    return {name: plan.results(encoder, name)["phenomena"] for name in scored}


def probe_of(plan: Plan, encoder: Encoder, errors: Errors) -> dict[str, Any]:
    error = errors.get(job_name(encoder.label, PROBE))
    if error is not None:
        return {"error": error, "layers": []}

    results = plan.results(encoder, PROBE)
    return {"error": None} | {key: results[key] for key in ("task", "metric", "layers", "baseline", "examples")}
