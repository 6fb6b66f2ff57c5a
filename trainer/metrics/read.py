"""Reads a run's metrics.jsonl, and skips text that is not a line of metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"

Metrics = list[dict[str, Any]]
"""The lines of metrics.jsonl."""

CAUSE = "loss_doctor"
"""The one metric that is text: why the loss is stuck at that of word frequencies (trainer/metrics/plateau.py)."""


def read_metrics(run: str) -> Metrics:
    """Return the lines of a run's metrics, as `read_lines` does."""
    lines, _ = read_lines(run)
    return lines


def read_lines(run: str) -> tuple[Metrics, int]:
    """Return the lines of a run's metrics, and how many lines of the file were skipped because they are not metrics.

    A line is a JSON object with an integer step, whose other values are numbers or null, except for CAUSE. A killed run
    may leave a last line without a line feed. It is returned if it is complete, and otherwise not counted as skipped.
    """
    path = Path(run) / METRICS_FILE
    if not path.exists():
        return [], 0

    *ended, unfinished = path.read_text(errors="replace").split("\n")
    parsed = [_parse(text) for text in ended]
    lines = [line for line in parsed if line is not None]
    skipped = len(parsed) - len(lines)

    last_line = _parse(unfinished)
    if last_line is not None:
        lines.append(last_line)
    return lines, skipped


def skipped_note(run: str, skipped: int) -> str:
    """Return a sentence about the lines that `read_lines` skipped."""
    return f"{Path(run) / METRICS_FILE}: {skipped:,} lines that are not metrics were skipped."


def _parse(text: str) -> dict[str, Any] | None:
    """Return a line of metrics, or None if the text is not one."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None

    # In Python, a bool is also an int, but in a line of metrics it is neither a step nor a number.
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    if all(_is_metric(name, value) for name, value in line.items()):
        return line
    return None


def _is_metric(name: str, value: Any) -> bool:
    if name == CAUSE:
        return value is None or isinstance(value, str)
    return value is None or type(value) in (int, float)
