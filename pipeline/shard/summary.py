"""The closing lines of `shard`: why records are missing from the output, and what cleaning changed."""

from __future__ import annotations

from collections import Counter

from pipeline.shard.record import byte_in_words
from schemas.manifest import Manifest

LISTED_SOURCES = 3


def summary_lines(manifest: Manifest) -> list[str]:
    """Return lines about a text folder's ledger and cleaning; none if everything was kept unchanged."""
    lines = []
    for reason, count_by_source in _counts_by_reason(manifest).items():
        lines.append(f"  left out: {sum(count_by_source.values()):,} x {reason} ({_list_sources(count_by_source)})")

    cleaning = manifest.statistics["cleaning"]
    if cleaning:
        changes = ", ".join(f"{rule} {count:,}" for rule, count in cleaning.items())
        lines.append(f"  cleaned: {changes}")
    return lines


def warning_lines(manifest: Manifest) -> list[str]:
    """Return one line for each sign that the text may not be what the user believes."""
    warnings = []

    undecodable = manifest.statistics.get("undecodable")
    if undecodable:
        first = undecodable["most"][0]
        place = byte_in_words(first["first_place"], first)
        warnings.append(
            f"{undecodable['count']:,} undecodable bytes were removed, the first at {place} of {first['path']}. "
            "If it is in another encoding, name it with --encoding."
        )

    unbroken = manifest.statistics.get("unbroken_documents")
    if unbroken:
        first = unbroken["first"]
        place = byte_in_words(first["place"], first)
        warnings.append(
            f"{unbroken['count']:,} documents have many lines and no blank line, the first with "
            f"{first['lines']:,} lines at {place} of {first['path']}. If every line is a document, "
            "give --text_layout line."
        )
    return warnings


def _counts_by_reason(manifest: Manifest) -> dict[str, Counter[str]]:
    """Return the ledger as {reason: counts by source}."""
    reasons: dict[str, Counter[str]] = {}
    for entry in manifest.ledger:
        reasons.setdefault(entry.reason, Counter())[entry.source] += entry.count
    return reasons


def _list_sources(count_by_source: Counter[str]) -> str:
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
