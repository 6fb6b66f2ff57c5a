"""Reads the scores of suites on a run's checkpoints (RUN/suite_scores.json), and charts them over training hours.

`clozeline suite RUN --checkpoints all` writes the file: for each suite a list of {step, hours, scores by task}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from trainer.metrics.charts import COLORS, Chart, Line, chart_over_hours
from trainer.metrics.number_text import short

SCORES_FILE = "suite_scores.json"

HELD_OUT_LOSS = "eval_mlm_loss"


def read_scores(run: str) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of a run's checkpoints by suite; empty if there are none or the file is damaged."""
    try:
        content = json.loads((Path(run) / SCORES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def charts_over_hours(run: str, lines: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return the chart of the held-out loss and those of the suites' scores; an empty list if no suite was run.

    lines: of metrics.jsonl.
    """
    suites = read_scores(run)
    if not suites:
        return []

    losses = [
        (line["seconds"] / 3600, line[HELD_OUT_LOSS])
        for line in lines
        if is_number(line.get("seconds")) and is_number(line.get(HELD_OUT_LOSS))
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
