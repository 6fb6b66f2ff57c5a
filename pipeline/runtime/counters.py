"""Adding up what workers report of their shards. Everything is an integer, so the order of arrival leaves no trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Report = dict[str, Any]
Ledger = tuple[tuple[str, str, int], ...]


def total(reports: list[Report], name: str) -> int:
    return sum(report[name] for report in reports)


def add_ledgers(ledgers: Iterable[Iterable[tuple[str, str, int]]]) -> Ledger:
    """(reason, source, count) with the counts of equal reasons and sources added, sorted."""
    counts: Counter[tuple[str, str]] = Counter()
    for ledger in ledgers:
        for reason, source, count in ledger:
            counts[reason, source] += count
    return tuple((*entry, count) for entry, count in sorted(counts.items()))


def add_by_name(reports: list[Report], name: str) -> dict[str, int]:
    """The sum of the reports' {name: count} tables, sorted by name."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report[name])
    return dict(sorted(counts.items()))


def add_histograms(reports: list[Report], name: str) -> list[int]:
    """The sum of the reports' histograms, which may differ in length."""
    width = max((len(report[name]) for report in reports), default=0)
    return [sum(report[name][i] for report in reports if i < len(report[name])) for i in range(width)]
