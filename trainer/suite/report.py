"""Writes report.html of a suite: all tables on one page, in the style of the data card.

This module computes the values; templates/suite.html lays them out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from schemas.pages import render
from trainer.metrics.charts import COLORS, Chart, Line, chart
from trainer.metrics.number_text import duration
from trainer.suite.table import (
    DETAIL_COLUMNS,
    detail_rows,
    error_lines,
    labels_of,
    legend,
    notes,
    phenomenon_rows,
    probe_rows,
    probe_title,
    score_rows,
    text_of,
)

REPORT_FILE = "report.html"


def report(content: dict[str, Any]) -> str:
    """Return the page as HTML. content: that of results.json."""
    return render(
        "trainer.suite",
        "suite.html",
        title=content["suite"] or "Probe",
        encoders=content["encoders"],
        labels=labels_of(content),
        figures=figures(content),
        legend=legend(content),
        scores=score_rows(content),
        notes=notes(content),
        detail_columns=DETAIL_COLUMNS,
        details=detail_rows(content),
        phenomena=phenomenon_rows(content),
        probe_title=probe_title(content),
        probes=probe_rows(content),
        charts=probe_charts(content),
        errors=error_lines(content),
    )


def figures(content: dict[str, Any]) -> dict[str, str]:
    """Return the headline numbers for the top of the page as text, by name."""
    shown = {}
    for label in labels_of(content):
        average = content["averages"][label]
        if average is not None:
            shown[f"average, {label}"] = text_of(average)

    cells = [cell for by_row in content["scores"].values() for cell in by_row.values()]
    if cells:
        shown["seeds"] = str(content["seeds"])
        shown["training time"] = duration(3600 * sum(cell["hours"] for cell in cells))
    return shown


def probe_charts(content: dict[str, Any]) -> list[Chart]:
    """Return the chart of probe scores by layer, with a line for each encoder whose probe has more than one layer.

    Returns an empty list if there is no such encoder.
    """
    lines = []
    for (label, probe), color in zip(content["probes"].items(), COLORS, strict=False):
        if len(probe["layers"]) > 1:
            lines.append(Line(label, color, list(enumerate(probe["layers"]))))
    if not lines:
        return []

    last_layer = max(len(line.points) for line in lines) - 1
    drawn = chart(probe_title(content), lines, last_layer, [], "{:.4f}".format)
    return [replace(drawn, unit="layer")]
