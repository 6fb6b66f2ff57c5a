"""Adds up the reports of workers on their shards.

All numbers are integers, so the sums do not depend on the order in which reports arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from schemas.manifest import LedgerEntry

Report = dict[str, Any]
"""A worker's report on one piece of work: small, JSON-serializable, and the same in every attempt."""

Ledger = tuple[tuple[str, str, int], ...]
"""(reason, source, count) entries for what was left out."""


def total(reports: list[Report], name: str) -> int:
    return sum(report[name] for report in reports)


def add_counts(reports: Iterable[Report]) -> Report:
    """Add up reports that hold only numbers, or such sums, in any order and grouping."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report)
    return dict(counts)


def add_ledgers(ledgers: Iterable[Iterable[tuple[str, str, int]]]) -> Ledger:
    """Add up the counts of equal reasons and sources. The result is sorted by both."""
    counts: Counter[tuple[str, str]] = Counter()
    for ledger in ledgers:
        for reason, source, count in ledger:
            counts[reason, source] += count

    in_order = sorted(counts.items())
    return tuple((reason, source, count) for (reason, source), count in in_order)


def ledger_entries(ledgers: Iterable[Iterable[tuple[str, str, int]]]) -> list[LedgerEntry]:
    """Add up ledgers into the manifest's entries: one for each reason and source, sorted."""
    return [LedgerEntry(reason=reason, source=source, count=count) for reason, source, count in add_ledgers(ledgers)]


def add_by_name(reports: list[Report], name: str) -> dict[str, int]:
    """Add up the {name: count} tables of the reports. The result is sorted by name."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report[name])
    return dict(sorted(counts.items()))


def add_histograms(reports: list[Report], name: str) -> list[int]:
    """Add up the histograms of the reports bin by bin. The result is as long as the longest."""
    return [sum(counts) for counts in zip_longest(*(report[name] for report in reports), fillvalue=0)]
