"""Adding up what workers report of their shards.

Everything is an integer, so the sums do not depend on the order in which reports arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Report = dict[str, Any]
"""What a worker reports of a piece of its work: small, JSON-serializable, and the same at every attempt."""

Ledger = tuple[tuple[str, str, int], ...]
"""Entries of (reason, source, count) for what was left out."""


def total(reports: list[Report], name: str) -> int:
    """The sum of one number over all reports."""
    return sum(report[name] for report in reports)


def add_ledgers(ledgers: Iterable[Iterable[tuple[str, str, int]]]) -> Ledger:
    """Add up the counts of equal reasons and sources. The result is sorted by both."""
    counts: Counter[tuple[str, str]] = Counter()
    for ledger in ledgers:
        for reason, source, count in ledger:
            counts[reason, source] += count
    return tuple((reason, source, count) for (reason, source), count in sorted(counts.items()))


def add_by_name(reports: list[Report], name: str) -> dict[str, int]:
    """Add up the {name: count} tables of the reports. The result is sorted by name."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report[name])
    return dict(sorted(counts.items()))


def add_histograms(reports: list[Report], name: str) -> list[int]:
    """Add up the histograms of the reports bin by bin. The result is as long as the longest."""
    histograms = [report[name] for report in reports]
    bins = max(map(len, histograms), default=0)

    added = [0] * bins
    for histogram in histograms:
        for place, count in enumerate(histogram):
            added[place] += count
    return added
