"""Writes report.html: a run on one page, drawn from its metrics, with marks where it was resumed.

This module computes the content of the page; templates/report.html has its form. The scores of suites on the run's
checkpoints are drawn over training hours. `clozeline suite RUN --checkpoints all` writes them to RUN/suite_scores.json:
for each suite a list of {step, hours, scores by task}.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tomli_w

from schemas import storage
from schemas.charts import COLORS, Chart, Line, TextOf, chart, chart_over_hours, percent, short
from schemas.masking import KINDS
from schemas.pages import render
from trainer.checkpoint.format import best_step
from trainer.config.record import RecipeChange, shown_value
from trainer.metrics.log import CAUSE, Metrics, is_evaluation, read_metrics
from trainer.metrics.plateau import ADVICE
from trainer.metrics.presentation import duration, or_dash
from trainer.metrics.ranks import RankReport, ratio_to_median, read_ranks

REPORT_FILE = "report.html"

RANK_ROWS = 8
"""The most ranks in the table, the slowest first."""

CHARTS: tuple[tuple[str, dict[str, str], TextOf], ...] = (
    (
        "Loss",
        {
            "mlm_loss": "masked LM",
            "pair_loss": "pairs",
            "eval_mlm_loss": "masked LM, held out",
            "eval_pair_loss": "pairs, held out",
            "unigram_loss": "word frequencies alone",
        },
        short,
    ),
    (
        "Loss by what the model sees at a masked place",
        {
            "mlm_loss_masked": "[MASK]",
            "mlm_loss_kept": "the token itself",
            "mlm_loss_random": "another token",
            "eval_mlm_loss_masked": "[MASK], held out",
            "unigram_loss": "word frequencies alone",
            "eval_unigram_loss": "word frequencies alone, held out",
        },
        short,
    ),
    (
        "Loss of replaced-token detection",
        {"rtd_loss": "all tokens", "eval_rtd_loss": "all tokens, held out"},
        short,
    ),
    (
        "Loss on held-out pairs, by kind of mask",
        {f"eval_{kind}_mlm_loss": kind.replace("_", " ") for kind in KINDS},
        short,
    ),
    ("Learning rate", {"lr": "of each update"}, short),
    ("Gradient norm", {"grad_norm": "before clipping"}, short),
    ("Tokens per second", {"tokens_per_second": "all ranks, without padding"}, short),
    (
        "Accuracy",
        {
            "mlm_accuracy": "masked LM",
            "pair_accuracy": "pairs",
            "eval_mlm_accuracy": "masked LM, held out",
            "eval_pair_accuracy": "pairs, held out",
            "mlm_accuracy_masked": "masked LM, at [MASK]",
        },
        percent,
    ),
    (
        "Accuracy of replaced-token detection",
        {
            "rtd_accuracy": "right",
            "eval_rtd_accuracy": "right, held out",
            "replaced_fraction": "replaced tokens",
            "eval_replaced_fraction": "replaced tokens, held out",
        },
        percent,
    ),
    ("Padding", {"padding_fraction": "share of all computed tokens"}, percent),
    ("Waiting for data", {"loader_stall_fraction": "share of the time"}, percent),
    ("Utilization of the devices", {"mfu": "by the model (MFU)"}, percent),
    ("Seconds a step", {"step_seconds": "without evaluations and checkpoints"}, short),
    ("Slowest rank", {"slowest_ratio": "its own seconds over the median rank's"}, short),
    ("Peak memory", {"peak_memory_bytes": "bytes, of the rank with the most"}, short),
)
"""The charts: a title, what each metric is called there, and how its values are formatted."""

SCORES_FILE = "suite_scores.json"


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
        changes=[[f"{one.step + 1:,}", one.key, shown_value(one.before), shown_value(one.now)] for one in changes],
        recipe=tomli_w.dumps(recipe),
        charts_over_hours=charts_over_hours(run, lines),
    )


def _figures(run: str, lines: Metrics) -> dict[str, str]:
    """Return the key figures of the run, as texts by name."""
    last = next((line for line in reversed(lines) if not is_evaluation(line)), lines[-1])
    rates = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second") is not None]
    figures = {
        "steps": f"{last['step']:,}",
        "tokens": or_dash(last.get("tokens"), short),
        "time": or_dash(last.get("seconds"), duration),
        "tokens per second": or_dash(median(rates) if rates else None, short),
        "masked LM loss": or_dash(last.get("mlm_loss"), "{:.4f}".format),
        "accuracy": or_dash(last.get("mlm_accuracy"), "{:.1%}".format),
    }

    evaluation = next(filter(is_evaluation, reversed(lines)), {})
    losses = {
        "loss at [MASK]": last.get("mlm_loss_masked"),
        "word frequencies alone": last.get("unigram_loss"),
        "held-out loss": evaluation.get("eval_mlm_loss"),
        "held-out loss at [MASK]": evaluation.get("eval_mlm_loss_masked"),
    }
    figures |= {name: f"{loss:.4f}" for name, loss in losses.items() if loss is not None}

    step_of_best = best_step(run)
    if step_of_best is not None:
        figures["best checkpoint"] = f"step {step_of_best:,}"
    return figures


class EvaluationTable(NamedTuple):
    """The figures of an evaluation after `step`, with the run's own masks, and with each kind that was measured."""

    step: int
    rows: list[list[str]]


def _last_evaluation(lines: Metrics) -> EvaluationTable | None:
    """Return the newest evaluation, None if there is none yet."""
    line = next(filter(is_evaluation, reversed(lines)), None)
    if line is None:
        return None

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


class Note(NamedTuple):
    """Why the loss after `step` was no better than that of word frequencies alone."""

    step: int
    cause: str
    advice: str


def _last_note(lines: Metrics) -> Note | None:
    """Return the newest one, None if the loss was never found at that of word frequencies."""
    line = next((line for line in reversed(lines) if line.get(CAUSE) is not None), None)
    if line is None:
        return None
    return Note(line["step"], line[CAUSE].replace("_", " "), ADVICE.get(line[CAUSE], ""))


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


def run_charts(lines: Metrics, resumed_at: Sequence[int]) -> list[Chart]:
    """Return the charts of CHARTS that have something to show. Values that are missing or not finite are left out."""
    charts = []
    for title, metrics, text_of in CHARTS:
        # Each metric has a fixed color, so that a metric without values does not change the colors of the others.
        drawn = []
        for (metric, name), color in zip(metrics.items(), COLORS, strict=False):
            points = [(line["step"], line[metric]) for line in lines if is_number(line.get(metric))]
            if points:
                drawn.append(Line(name, color, points))
        if drawn:
            charts.append(chart(title, drawn, lines[-1]["step"], resumed_at, text_of))
    return charts


def read_scores(run: str) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of a run's checkpoints by suite; empty if there are none or the file is damaged."""
    try:
        content = json.loads((Path(run) / SCORES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def charts_over_hours(run: str, lines: Metrics) -> list[Chart]:
    """Return the chart of the held-out loss and those of the suites' scores; an empty list if no suite was run."""
    suites = read_scores(run)
    if not suites:
        return []

    losses = [
        (line["seconds"] / 3600, line["eval_mlm_loss"])
        for line in lines
        if is_number(line.get("seconds")) and is_number(line.get("eval_mlm_loss"))
    ]
    drawn = [chart_over_hours("Held-out loss over hours", [Line("masked LM", "blue", losses)], short)] if losses else []

    for suite, scored in suites.items():
        lines_of_suite = score_lines(scored)
        # No more lines in a chart than there are colors.
        for start in range(0, len(lines_of_suite), len(COLORS)):
            part = lines_of_suite[start : start + len(COLORS)]
            drawn.append(chart_over_hours(f"Scores of {suite} over hours", part, "{:.4f}".format))
    return drawn


def score_lines(scored: Sequence[dict[str, Any]]) -> list[Line]:
    """Return a line for each task over the hours of the checkpoints."""
    known = [line for line in scored if is_number(line.get("hours"))]
    names = list(dict.fromkeys(name for line in known for name in line["scores"]))
    lines = []
    for number, name in enumerate(names):
        points = [(line["hours"], line["scores"][name]) for line in known if name in line["scores"]]
        lines.append(Line(name, COLORS[number % len(COLORS)], points))
    return lines


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and isfinite(value)
