"""Writes report.html: a run on one page, drawn from its metrics, with marks where it was resumed.

This module computes the content of the page; templates/report.html has its form.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tomli_w

from schemas import storage
from schemas.masking import KINDS
from schemas.pages import render
from trainer.checkpoint.layout import best_step
from trainer.config.record import RecipeChange, shown_value
from trainer.loss_doctor.causes import advice
from trainer.metrics.number_text import duration, or_dash, short
from trainer.metrics.ranks import RankReport, ratio_to_median, read_ranks
from trainer.metrics.read import CAUSE, Metrics, read_metrics
from trainer.metrics.run_charts import run_charts
from trainer.metrics.suite_scores import charts_over_hours

REPORT_FILE = "report.html"

RANK_ROWS = 8
"""The most ranks in the table, the slowest first."""


def write_report(run: str, resumed_at: list[int], changes: Sequence[RecipeChange] = ()) -> None:
    """Write RUN/report.html from the metrics and the recipe of RUN. Does nothing if there are no metrics yet.

    resumed_at: the steps after which the run was resumed. changes: how its recipe changed there.
    """
    lines = read_metrics(run)
    if lines:
        page = report(run, lines, resumed_at, changes)
        storage.publish(str(Path(run) / REPORT_FILE), page.encode(), durable=False)


def report(run: str, lines: Metrics, resumed_at: list[int], changes: Sequence[RecipeChange] = ()) -> str:
    """Return the page. It depends on the arguments, on the run's recipe and on which checkpoints exist."""
    recipe = tomllib.loads((Path(run) / "recipe.toml").read_text(encoding="utf-8"))

    return render(
        "trainer.metrics",
        "report.html",
        title=Path(run).name,
        resumed_at=resumed_at,
        figures=_figures(run, lines),
        charts=run_charts(lines, resumed_at),
        evaluation=_last_evaluation(lines),
        note=_last_note(lines),
        ranks=_rows_of_ranks(read_ranks(run)),
        changes=_rows_of_changes(changes),
        recipe=tomli_w.dumps(recipe),
        charts_over_hours=charts_over_hours(run, lines),
    )


def _figures(run: str, lines: Metrics) -> dict[str, str]:
    """Return the key figures of the run, as texts by name."""
    last = lines[-1]
    rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second") is not None]
    figures = {
        "steps": f"{last['step']:,}",
        "tokens": or_dash(last.get("tokens"), short),
        "time": or_dash(last.get("seconds"), duration),
        "tokens per second": or_dash(median(rates) if rates else None, short),
        "masked LM loss": or_dash(last.get("mlm_loss"), "{:.4f}".format),
        "accuracy": or_dash(last.get("mlm_accuracy"), "{:.1%}".format),
    }

    if last.get("mlm_loss_masked") is not None:
        figures["loss at [MASK]"] = f"{last['mlm_loss_masked']:.4f}"
    if last.get("unigram_loss") is not None:
        figures["word frequencies alone"] = f"{last['unigram_loss']:.4f}"

    evaluations = _evaluations(lines)
    if evaluations:
        figures["held-out loss"] = or_dash(evaluations[-1]["eval_mlm_loss"], "{:.4f}".format)
        if evaluations[-1].get("eval_mlm_loss_masked") is not None:
            figures["held-out loss at [MASK]"] = f"{evaluations[-1]['eval_mlm_loss_masked']:.4f}"

    step_of_best = best_step(run)
    if step_of_best is not None:
        figures["best checkpoint"] = f"step {step_of_best:,}"
    return figures


@dataclass(frozen=True)
class EvaluationTable:
    """The figures of an evaluation after `step`, with the run's own masks, and with each kind that was measured."""

    step: int
    rows: list[list[str]]


def _last_evaluation(lines: Metrics) -> EvaluationTable | None:
    """Return the newest evaluation, None if there is none yet."""
    evaluations = _evaluations(lines)
    if not evaluations:
        return None

    line = evaluations[-1]
    prefixes = {"the run's own": "eval_"} | {kind.replace("_", " "): f"eval_{kind}_" for kind in KINDS}
    rows = []
    for masks, prefix in prefixes.items():
        if f"{prefix}mlm_loss" not in line:
            continue

        row = [
            masks,
            or_dash(line[f"{prefix}mlm_loss"], "{:.4f}".format),
            or_dash(line.get(f"{prefix}perplexity"), "{:,.2f}".format),
            or_dash(line.get(f"{prefix}mlm_accuracy"), "{:.2%}".format),
        ]
        rows.append(row)
    return EvaluationTable(line["step"], rows)


@dataclass(frozen=True)
class Note:
    """The loss doctor's result after `step`: the likely cause of a loss at the baseline of word frequencies."""

    step: int
    cause: str
    advice: str


def _last_note(lines: Metrics) -> Note | None:
    """Return the loss doctor's newest result, None if it found nothing."""
    told = [line for line in lines if line.get(CAUSE) is not None]
    if not told:
        return None
    cause = told[-1][CAUSE]
    return Note(told[-1]["step"], cause.replace("_", " "), advice(cause))


def _rows_of_ranks(reports: list[RankReport]) -> list[list[str]]:
    """Return the slowest ranks: number, host, own seconds, ratio to the median, seconds per step, memory in GB.

    Empty for a run of one rank, whose figures are in the charts.
    """
    if len(reports) < 2:
        return []

    rows = []
    for report in sorted(reports, key=lambda report: -report.own_seconds)[:RANK_ROWS]:
        row = [
            f"{report.rank:,}",
            report.host,
            f"{report.own_seconds:.4f}",
            or_dash(ratio_to_median(report, reports), "{:.2f}".format),
            f"{report.step_seconds:.4f}",
            f"{report.peak_memory_bytes / 1e9:.2f}",
        ]
        rows.append(row)
    return rows


def _evaluations(lines: Metrics) -> Metrics:
    return [line for line in lines if "eval_mlm_loss" in line]


def _rows_of_changes(changes: Sequence[RecipeChange]) -> list[list[str]]:
    """Return for each change the first step with the new value, the key, and both values."""
    return [
        [f"{change.step + 1:,}", change.key, shown_value(change.before), shown_value(change.now)] for change in changes
    ]
