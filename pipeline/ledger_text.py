"""Formats a manifest's ledger for people: what a job left out or cut, and why, with the sources that had most of it."""

from __future__ import annotations

from collections import Counter

from schemas.manifest import Manifest

LISTED_SOURCES = 3


def ledger_lines(manifest: Manifest) -> list[str]:
    """Return a line for each reason in the ledger, however many sources there are.

    Example: `"1,234 x empty document (wiki 1,000, web 200, news 30 and 8 further sources)"`.
    """
    lines = []
    for reason, count_by_source in counts_by_reason(manifest).items():
        lines.append(f"{sum(count_by_source.values()):,} x {reason} ({list_sources(count_by_source)})")
    return lines


def counts_by_reason(manifest: Manifest) -> dict[str, Counter[str]]:
    """Return the ledger as {reason: counts by source}."""
    reasons: dict[str, Counter[str]] = {}
    for entry in manifest.ledger:
        reasons.setdefault(entry.reason, Counter())[entry.source] += entry.count
    return reasons


def list_sources(count_by_source: Counter[str]) -> str:
    """Return the largest sources with their counts, or a single source without its count.

    Example: `"wiki 12, web 3, news 2 and 8 further sources"`.
    """
    largest_first = sorted(count_by_source.items(), key=lambda item: (-item[1], item[0]))
    if len(largest_first) == 1:
        return largest_first[0][0]

    listed = ", ".join(f"{source} {count:,}" for source, count in largest_first[:LISTED_SOURCES])
    further = len(largest_first) - LISTED_SOURCES
    if further <= 0:
        return listed
    return f"{listed} and {further:,} further sources"
