"""Writes report.html: a run on one page, drawn from its metrics, with marks where it was resumed.

This module computes the content of the page; templates/report.html has its form. `clozeline report` (trainer/report.py)
writes the page at any time, and the one of several runs (comparison.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from schemas import storage
from schemas.masking import KINDS
from schemas.pages import render
from trainer.config.record import shown_value
from trainer.metrics.curves import charts_over_hours, run_charts
from trainer.metrics.figures import facts, known_figures, verdict
from trainer.metrics.log import ADVICE, CAUSE, METRICS_FILE, Metrics, is_evaluation
from trainer.metrics.presentation import masks_note, or_dash, shown_name
from trainer.metrics.ranks import RankReport, ratio_to_median
from trainer.metrics.run_record import RunRecord, read_record

REPORT_FILE = "report.html"

RANK_ROWS = 8
"""The most ranks in the table, the slowest first."""


def write_report(run: str) -> None:
    """Write RUN/report.html from the metrics and the recipe of RUN. Does nothing if there are no metrics yet."""
    if not Path(run, METRICS_FILE).exists():
        return
    record = read_record(run)
    if record.lines:
        page = report(record, run)
        storage.publish(str(Path(run) / REPORT_FILE), page.encode(), durable=False)


def report(record: RunRecord, page_folder: str, refresh: int | None = None) -> str:
    """Return the page, which depends on the arguments and on where data cards are.

    page_folder: where the page will be. refresh: seconds after which a browser reads it again.
    """
    lines = record.lines
    return render(
        "trainer.metrics",
        "report.html",
        title=shown_name(record.run),
        refresh=refresh,
        resumed_at=record.resumed_at,
        figures=known_figures(record),
        verdict=verdict(record),
        facts=facts(record, page_folder),
        charts=run_charts(lines, record.resumed_at),
        masks=masks_note(record.recipe) if any(map(is_evaluation, lines)) else "",
        evaluation=_last_evaluation(lines),
        note=_last_note(lines),
        blanks=record.blanks,
        ranks=_rows_of_ranks(record.ranks),
        changes=shown_changes(record),
        recipe=tomli_w.dumps(record.recipe),
        charts_over_hours=charts_over_hours(record.folder, lines),
    )


def shown_changes(record: RunRecord) -> list[list[str]]:
    """Return how the recipe changed at resumes: from which step, the key, and its values before and after."""
    return [[f"{one.step + 1:,}", one.key, shown_value(one.before), shown_value(one.now)] for one in record.changes]


def _last_evaluation(lines: Metrics) -> dict[str, Any] | None:
    """Return the step of the newest evaluation and its figures, by the kind of masks; None if there is none yet."""
    line = next(filter(is_evaluation, reversed(lines)), None)
    if line is None:
        return None

    prefixes = {"the run's own kind": "eval_"} | {kind.replace("_", " "): f"eval_{kind}_" for kind in KINDS}
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
    return {"step": line["step"], "rows": rows}


def _last_note(lines: Metrics) -> dict[str, Any] | None:
    """Return why the loss was last found at that of word frequencies alone, and after which step; None if never."""
    line = next((line for line in reversed(lines) if line.get(CAUSE) is not None), None)
    if line is None:
        return None
    return {"step": line["step"], "cause": line[CAUSE].replace("_", " "), "advice": ADVICE.get(line[CAUSE], "")}


def _rows_of_ranks(reports: Sequence[RankReport]) -> list[list[str]]:
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
