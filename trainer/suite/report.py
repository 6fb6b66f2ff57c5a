"""Writes report.html of a suite: all tables on one page, in the style of the data card.

This module computes the values; templates/suite.html lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.charts import COLORS, Chart, Line, chart
from schemas.pages import render
from trainer.metrics.presentation import duration, shown_path
from trainer.suite.links import Link
from trainer.suite.plan import PROBE, job_name
from trainer.suite.table import (
    DETAIL_COLUMNS,
    detail_rows,
    error_lines,
    labels_of,
    legend,
    notes,
    phenomenon_rows,
    probe_notes,
    probe_rows,
    probe_title,
    score_rows,
    text_of,
)

REPORT_FILE = "report.html"


LINK_COLUMN = "files"

Links = Mapping[str, Sequence[Link]]
"""The links to the files of each job, by its name."""


@dataclass(frozen=True)
class DetailRow:
    """A row of the second table."""

    cells: list[str]
    links: Sequence[Link]


def report(content: dict[str, Any], links: Links) -> str:
    """Return the page as HTML. content: that of results.json."""
    return render(
        "trainer.suite",
        "suite.html",
        title=content["suite"] or "Probe",
        encoders=[encoder | {"folder": shown_path(encoder["folder"])} for encoder in content["encoders"]],
        labels=labels_of(content),
        figures=figures(content),
        legend=legend(content),
        scores=score_rows(content),
        notes=notes(content),
        detail_columns=[*DETAIL_COLUMNS, LINK_COLUMN],
        details=linked_rows(content, links),
        phenomena=phenomenon_rows(content),
        probe_title=probe_title(content),
        probes=probe_rows(content),
        probe_notes=probe_notes(content),
        probe_logs=probe_logs(content, links),
        charts=probe_charts(content),
        errors=error_lines(content),
    )


def linked_rows(content: dict[str, Any], links: Links) -> list[DetailRow]:
    """Return the second table with the links of each row. Its first two columns name the task and the encoder."""
    return [DetailRow(row, links.get(job_name(row[1], row[0]), [])) for row in detail_rows(content)]


def probe_logs(content: dict[str, Any], links: Links) -> list[Link]:
    """Return a link to the probe's log for each encoder that has one."""
    logs = []
    for label in content["probes"]:
        logs += [Link(label, link.path) for link in links.get(job_name(label, PROBE), [])]
    return logs


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
