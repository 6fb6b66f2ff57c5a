"""Reads the score of each seed from a task's results.json: the mean of the reported metric over the reported sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Seed = Mapping[str, Any]


def seeds_of(results: Mapping[str, Any], count: int) -> list[Seed]:
    """Return the seeds below `count`, sorted. An earlier command may have asked for more."""
    asked = [seed for seed in results["seeds"] if seed["seed"] < count]
    return sorted(asked, key=lambda seed: seed["seed"])


def unlabeled_sets(seeds: Sequence[Seed], sets: Sequence[str]) -> list[str]:
    """Return the sets that have no score, because they have no labels."""
    return [name for name in sets if name not in seeds[0]["scores"]]


def values_of(seeds: Sequence[Seed], sets: Sequence[str], metric: str) -> list[float]:
    """Return for each seed the mean of a metric over sets, all of which have scores."""
    return [fmean(seed["scores"][name][metric] for name in sets) for seed in seeds]


def shown_score(results: Mapping[str, Any], count: int, sets: Sequence[str], metric: str) -> str:
    """Return the mean over the seeds for a log line, such as "accuracy 0.8123", or "" if a set has no labels."""
    seeds = seeds_of(results, count)
    if unlabeled_sets(seeds, sets):
        return ""
    return f"{metric} {fmean(values_of(seeds, sets, metric)):.4f}"
