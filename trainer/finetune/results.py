"""The results of a fine-tuning: the scores of each seed, and their summary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from schemas import storage
from trainer.finetune.inputs import read_json, write_json
from trainer.finetune.task import DEV

RESULT_FILE = "result.json"
RESULTS_FILE = "results.json"
METRICS_FILE = "metrics.jsonl"

CONFIDENCE = 0.95
"""The probability that an interval contains the true mean."""

FEWEST_OF_AN_INTERVAL = 3
"""With two values the half-width is 13 standard errors, which are themselves hardly known."""

STATISTICS = {
    "mean": "mean",
    "95% ±": "interval",
    "lower quartile": "lower_quartile",
    "median": "median",
    "upper quartile": "upper_quartile",
}
"""The columns of tables of scores, and their keys in a `Spread`."""

Spread = dict[str, float | None]
"""What a table shows of the values of several seeds, by name. The interval may be None."""


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed.

    epoch: the best epoch, from 1. epochs: for each epoch its number, its last step, the mean loss of its steps, and the
    dev scores.
    scores: of the best epoch's weights, by set and then by metric. threshold: the null score above which a question
    gets no answer; None for kinds without questions, and if every question gets an answer.
    seconds: time spent in training.
    """

    seed: int
    epoch: int
    epochs: list[dict[str, float]]
    scores: dict[str, dict[str, float]]
    threshold: float | None
    seconds: float


def write_metrics(folder: Path, epochs: list[dict[str, float]]) -> None:
    """Write metrics.jsonl of a seed: one line for each finished epoch."""
    lines = "".join(f"{json.dumps(epoch)}\n" for epoch in epochs)
    storage.publish(str(folder / METRICS_FILE), lines.encode(), durable=False)


def write_seed_result(folder: Path, result: SeedResult) -> None:
    """Write a seed's result. The existence of this file marks the seed as finished."""
    write_json(folder / RESULT_FILE, asdict(result))


def read_seed_result(folder: Path) -> SeedResult | None:
    """Return a seed's result, or None if the seed is not finished."""
    content = read_json(folder / RESULT_FILE)
    try:
        return None if content is None else SeedResult(**content)
    except TypeError:
        return None


def results_in(output: Path) -> list[SeedResult]:
    """Return the results of all finished seeds in a folder, sorted by seed."""
    found = [read_seed_result(folder) for folder in output.glob("seed-*")]
    return sorted((result for result in found if result is not None), key=lambda result: result.seed)


def best_of(results: list[SeedResult], metric: str) -> SeedResult:
    """Return the result with the best dev score; of equal scores, the one with the lowest seed."""
    return max(results, key=lambda result: (result.scores[DEV][metric], -result.seed))


def summary_of(results: list[SeedResult]) -> dict[str, dict[str, Spread]]:
    """Return the `spread` over the seeds of each score, by set and then by metric."""
    summary: dict[str, dict[str, Spread]] = {}
    for name, scores in results[0].scores.items():
        summary[name] = {metric: spread([result.scores[name][metric] for result in results]) for metric in scores}
    return summary


def spread(values: Sequence[float]) -> Spread:
    """Return the mean of values, the half-width of its 95% interval, the median and the quartiles.

    The interval is Student's t interval for the mean of independent, roughly normal values ("Student", 1908, The
    probable error of a mean). Its half-width is 4.3 standard errors with three seeds and 2.8 with five. It is None for
    fewer than three values and for equal ones, whose spread is no certainty. It is not clipped to a metric's range.
    Quartiles are linearly interpolated.
    """
    # The same as scipy.stats.t.ppf, but scipy.stats takes a second longer to import.
    from scipy.special import stdtrit

    count = len(values)
    interval = None
    if count >= FEWEST_OF_AN_INTERVAL and len(set(values)) > 1:
        standard_error = float(np.std(values, ddof=1)) / count**0.5
        interval = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * standard_error

    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {
        "mean": float(np.mean(values)),
        "interval": interval,
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
    }


def with_interval(of_values: Spread) -> str:
    mean = f"{of_values['mean']:.4f}"
    return mean if of_values["interval"] is None else f"{mean} ± {of_values['interval']:.4f}"
