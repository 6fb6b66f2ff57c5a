"""The results of a fine-tuning: the scores of each seed, and their summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas import storage
from trainer.finetune.metrics.summary import mean_with_interval, quartiles

RESULT_FILE = "result.json"
RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class SeedResult:
    """One seed. epoch: the best one, from 1. epochs: the loss and the dev scores of each.

    scores: by set, then by metric, of the best epoch's weights. threshold: the null score above which questions get no
    answer; None for other kinds, and where all have one. seconds: of training.
    """

    seed: int
    epoch: int
    epochs: list[dict[str, float]]
    scores: dict[str, dict[str, float]]
    threshold: float | None
    seconds: float


def write_seed_result(folder: Path, result: SeedResult) -> None:
    """Write a seed's result. It is finished once the file is there."""
    storage.publish(str(folder / RESULT_FILE), (json.dumps(asdict(result), indent=1) + "\n").encode())


def read_seed_result(folder: Path) -> SeedResult | None:
    """Return a seed's result, None if it is not finished."""
    try:
        return SeedResult(**json.loads((folder / RESULT_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def results_in(output: Path) -> list[SeedResult]:
    """Return the results of all seeds that are finished in a folder, by their numbers."""
    found = [read_seed_result(folder) for folder in output.glob("seed-*")]
    return sorted((result for result in found if result is not None), key=lambda result: result.seed)


def best_of(results: list[SeedResult], metric: str) -> SeedResult:
    """Return the seed with the best dev score, of equal ones the first."""
    return max(results, key=lambda result: (result.scores["dev"][metric], -result.seed))


def summary_of(results: list[SeedResult]) -> dict[str, dict[str, dict[str, float]]]:
    """Return by set and metric: mean, half of its 95% interval, median and quartiles over the seeds."""
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for name, scores in results[0].scores.items():
        summary[name] = {metric: spread([result.scores[name][metric] for result in results]) for metric in scores}
    return summary


def spread(values: list[float]) -> dict[str, float]:
    """Return what a table shows of some values. interval: half of the 95% interval of the mean, 0 for one value."""
    mean = mean_with_interval(values)
    middle = quartiles(values)
    return {
        "mean": mean.mean,
        "interval": 0.0 if mean.high is None else mean.high - mean.mean,
        "lower_quartile": middle.lower,
        "median": middle.median,
        "upper_quartile": middle.upper,
    }
