"""Writes report.html of a fine-tuning: the scores over all seeds, and the curves of each seed.

This module computes the values; templates/finetune.html lays them out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas import storage
from schemas.charts import COLORS, Chart, Line, chart, short
from schemas.pages import render
from trainer.finetune.data_facts import shown_labels
from trainer.finetune.results import Spread, with_interval
from trainer.finetune.task import DEV, TEST
from trainer.metrics.presentation import duration, shown_path

REPORT_FILE = "report.html"

SPREAD_COLUMNS = ("mean", "interval", "lower_quartile", "median", "upper_quartile")
"""The columns of the table of scores, by the names that results.json has for them."""


def write_report(output: Path, results: dict[str, Any]) -> None:
    """Write OUTPUT/report.html from the content of results.json."""
    task = (output / "task.toml").read_text(encoding="utf-8")
    storage.publish(str(output / REPORT_FILE), report(results, task).encode(), durable=False)


def report(results: dict[str, Any], task: str) -> str:
    """Return the page. task: the task file's text."""
    drawn = [chart for chart in charts(results) if chart is not None]

    return render(
        "trainer.finetune",
        "finetune.html",
        title=results["task"],
        kind=results["kind"],
        encoder=shown_path(results["encoder"]),
        random_weights=results["random_weights"],
        figures=figures(results),
        scores=rows_of_scores(results["summary"]),
        baseline=rows_of_baseline(results["baseline"]),
        sets=rows_of_sets(results["data"]),
        labels=shown_labels(results["data"]["labels"]),
        charts=drawn,
        seeds=rows_of_seeds(results["seeds"], results["metrics"][0]),
        task=task,
    )


def figures(results: dict[str, Any]) -> dict[str, str]:
    """Return the headline numbers as text, by name."""
    main = results["metrics"][0]
    seeds = results["seeds"]
    seconds = sum(seed["seconds"] for seed in seeds)

    # The dev set has chosen the best epoch, so the score on the test set, if it has labels, says more of new text.
    names = [name for name in (TEST, DEV) if name in results["summary"]]
    scores = {f"{main}, {name}": with_interval(results["summary"][name][main]) for name in names}
    return scores | {"seeds": str(len(seeds)), "time": duration(seconds)}


def rows_of_scores(summary: dict[str, dict[str, Spread]]) -> list[list[str]]:
    """Return a row for each set and metric: set, metric, mean, half-width of its 95% interval, and the quartiles."""
    rows = []
    for name, scores in summary.items():
        for metric, spread in scores.items():
            values = [spread[column] for column in SPREAD_COLUMNS]

            # A single seed has no interval.
            shown = ["-" if value is None else f"{value:.4f}" for value in values]
            rows.append([name, metric, *shown])
    return rows


def rows_of_baseline(baseline: dict[str, dict[str, float]]) -> list[list[str]]:
    """Return a row for each set and metric: set, metric, and the score of always predicting the same label."""
    rows = []
    for name, scores in baseline.items():
        for metric, value in scores.items():
            rows.append([name, metric, f"{value:.4f}"])
    return rows


def rows_of_sets(data: dict[str, Any]) -> list[list[str]]:
    """Return a row for each set: its name, the number of its examples, and its files."""
    rows = []
    for name, size in data["examples"].items():
        files = ", ".join(shown_path(path) for path in data["files"][name])
        rows.append([name, f"{size:,}", files])
    return rows


def rows_of_seeds(seeds: list[dict[str, Any]], main: str) -> list[list[str]]:
    """Return a row for each seed: its number, its best epoch, the dev score, and the training time."""
    rows = []
    for seed in seeds:
        score = seed["scores"][DEV][main]
        rows.append([str(seed["seed"]), str(seed["epoch"]), f"{score:.4f}", duration(seed["seconds"])])
    return rows


def charts(results: dict[str, Any]) -> list[Chart | None]:
    """Return the charts of the training loss and of the main metric, with one line per seed."""
    main = results["metrics"][0]
    return [
        chart_of("Loss on the training set, mean of each epoch", results["seeds"], "loss"),
        chart_of(f"{main} on the dev set, after each epoch", results["seeds"], main),
    ]


def chart_of(title: str, seeds: list[dict[str, Any]], name: str) -> Chart | None:
    """Return a chart of one value per epoch, with one line per seed."""
    lines = []
    for number, seed in enumerate(seeds):
        points = [(int(epoch["step"]), float(epoch[name])) for epoch in seed["epochs"]]
        lines.append(Line(f"seed {seed['seed']}", COLORS[number % len(COLORS)], points))

    last_step = int(seeds[0]["epochs"][-1]["step"])
    return chart(title, lines, last_step, [], short)
