"""Defines the charts of a run's report: which metrics each of them shows, and how their values are formatted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from schemas.masking import KINDS
from trainer.metrics.charts import COLORS, Chart, Line, TextOf, chart
from trainer.metrics.number_text import percent, short
from trainer.metrics.read import Metrics


@dataclass(frozen=True)
class ChartOfMetrics:
    """Which metrics a chart shows. metrics: the chart's name for each metric, by its name in metrics.jsonl."""

    title: str
    metrics: dict[str, str]
    text_of: TextOf


CHARTS = (
    ChartOfMetrics(
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
    ChartOfMetrics(
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
    ChartOfMetrics(
        "Loss of replaced-token detection",
        {"rtd_loss": "all tokens", "eval_rtd_loss": "all tokens, held out"},
        short,
    ),
    ChartOfMetrics(
        "Loss on held-out pairs, by kind of mask",
        {f"eval_{kind}_mlm_loss": kind.replace("_", " ") for kind in KINDS},
        short,
    ),
    ChartOfMetrics("Learning rate", {"lr": "of each update"}, short),
    ChartOfMetrics("Gradient norm", {"grad_norm": "before clipping"}, short),
    ChartOfMetrics("Tokens per second", {"tokens_per_second": "all ranks, without padding"}, short),
    ChartOfMetrics(
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
    ChartOfMetrics(
        "Accuracy of replaced-token detection",
        {
            "rtd_accuracy": "right",
            "eval_rtd_accuracy": "right, held out",
            "replaced_fraction": "replaced tokens",
            "eval_replaced_fraction": "replaced tokens, held out",
        },
        percent,
    ),
    ChartOfMetrics("Padding", {"padding_fraction": "share of all computed tokens"}, percent),
    ChartOfMetrics("Waiting for data", {"loader_stall_fraction": "share of the time"}, percent),
    ChartOfMetrics("Utilization of the devices", {"mfu": "by the model (MFU)", "hfu": "by work done (HFU)"}, percent),
    ChartOfMetrics("Seconds a step", {"step_seconds": "without evaluations and checkpoints"}, short),
    ChartOfMetrics("Slowest rank", {"slowest_ratio": "its own seconds over the median rank's"}, short),
    ChartOfMetrics("Peak memory", {"peak_memory_bytes": "bytes, of the rank with the most"}, short),
)


def run_charts(lines: Metrics, resumed_at: Sequence[int]) -> list[Chart]:
    """Return the charts of CHARTS that have something to show. resumed_at: as in `chart`."""
    charts = [_chart(definition, lines, resumed_at) for definition in CHARTS]
    return [drawn for drawn in charts if drawn is not None]


def _chart(definition: ChartOfMetrics, lines: Metrics, resumed_at: Sequence[int]) -> Chart | None:
    """Return a chart, None if there is nothing to show. Values that are missing or not finite are left out."""
    drawn = []
    # Each metric has a fixed color, so that a metric without values does not change the colors of the others.
    for (metric, name), color in zip(definition.metrics.items(), COLORS, strict=False):
        points = [(line["step"], line[metric]) for line in lines if _is_finite(line.get(metric))]
        if points:
            drawn.append(Line(name, color, points))

    if not drawn:
        return None
    return chart(definition.title, drawn, lines[-1]["step"], resumed_at, definition.text_of)


def _is_finite(value: float | None) -> bool:
    return value is not None and isfinite(value)
