"""The charts of a run's report: its metrics over steps, and its suites' scores over hours.

`clozeline suite RUN --checkpoints all` writes the scores to RUN/suite_scores.json: for each suite a list of {step,
hours, scores by task}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeGuard

from schemas.charts import COLORS, Chart, Line, TextOf, chart, chart_over_hours, extremes, percent, short
from schemas.masking import KINDS
from trainer.metrics.log import Metrics

BY_PLACE = "Loss by what the model sees at a masked place"

LEVEL = 1e-3
"""The largest difference of a chart's values, as a share of the highest, that counts as none: such a chart is left out,
and so is one whose values differ by less, if they are shares of one."""

LOOKED_AT = 200
"""How many points of two lines are compared, at least."""

CHARTS: tuple[tuple[str, dict[str, str], TextOf], ...] = (
    (
        "Loss",
        {
            "mlm_loss": "masked LM",
            "pair_loss": "pairs",
            "eval_mlm_loss": "masked LM, held out",
            "eval_pair_loss": "pairs, held out",
            "unigram_loss": "word frequencies alone",
            "eval_unigram_loss": "word frequencies alone, held out",
        },
        short,
    ),
    (
        BY_PLACE,
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
            "eval_mlm_accuracy_masked": "masked LM, at [MASK], held out",
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


def run_charts(lines: Metrics, resumed_at: Sequence[int]) -> list[Chart]:
    """Return the charts of CHARTS whose values differ. Values that are missing or not finite are left out."""
    return [
        chart(title, drawn, lines[-1]["step"], resumed_at, text_of)
        for title, drawn, text_of in _all_lines(lines)
        if not _is_level(drawn, LEVEL if text_of is percent else 0)
    ]


def _all_lines(lines: Metrics) -> Iterator[tuple[str, list[Line], TextOf]]:
    """Yield the title of each chart that has values, its lines, and how its values are formatted.

    A line that looks like another one of its chart is left out, and so are the losses by place if all are [MASK].
    """
    seen: set[str] = set()
    for title, metrics, text_of in CHARTS:
        # Each metric has a fixed color, so that a metric without values does not change the colors of the others.
        drawn: dict[str, Line] = {}
        for (metric, name), color in zip(metrics.items(), COLORS, strict=False):
            points = points_of(lines, metric)
            if points:
                drawn.setdefault(_look(points), Line(name, color, points))
        if drawn and (title != BY_PLACE or not seen.issuperset(drawn)):
            yield title, list(drawn.values()), text_of
        seen |= set(drawn)


def _look(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g}:{value:.4g}" for x, value in points[:: max(1, len(points) // LOOKED_AT)])


def points_of(lines: Metrics, metric: str, scale: str = "step") -> list[tuple[float, float]]:
    """Return the finite values of a metric with their steps. scale: "hours" for hours of training in their place."""
    if scale == "step":
        return [(line["step"], value) for line in lines if is_number(value := line.get(metric))]
    return [
        (line["seconds"] / 3600, value)
        for line in lines
        if is_number(value := line.get(metric)) and is_number(line.get("seconds"))
    ]


def _is_level(drawn: Sequence[Line], least: float) -> bool:
    """Return whether values are so nearly the same that all labels of the axis would be.

    least: the difference that counts as none, if it is above LEVEL.
    """
    low, high = extremes([line.points for line in drawn])
    return high - low <= max(LEVEL * max(abs(low), abs(high)), least)


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

    losses = points_of(lines, "eval_mlm_loss", "hours")
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


def is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and isfinite(value)
