"""What `shard` prints at its end: what became of the records that are not in the output, and what cleaning changed."""

from __future__ import annotations

from collections import Counter

from schemas.manifest import Manifest

SHOWN_SOURCES = 3


def summary_lines(manifest: Manifest) -> list[str]:
    """Return a few lines from a text folder's ledger and statistics; none when everything was kept as it was."""
    lines = []
    for reason, by_source in _by_reason(manifest).items():
        lines.append(f"  left out: {sum(by_source.values()):,} x {reason} ({_sources(by_source)})")

    cleaning = manifest.statistics["cleaning"]
    if cleaning:
        lines.append("  cleaned: " + ", ".join(f"{rule} {count:,}" for rule, count in cleaning.items()))
    return lines


def warning_lines(manifest: Manifest) -> list[str]:
    """Return one line for each sign that the text is not what the user takes it for."""
    warnings = []
    undecodable = manifest.statistics.get("undecodable")
    if undecodable:
        first = undecodable["most"][0]
        place = f"byte {first['first_place']:,} of {first['path']}"
        warnings.append(
            f"{undecodable['count']:,} undecodable bytes were removed, the first at {place}. "
            "If it is in another encoding, name it with --encoding."
        )

    unbroken = manifest.statistics.get("unbroken_documents")
    if unbroken:
        first = unbroken["first"]
        warnings.append(
            f"{unbroken['count']:,} documents have many lines and no blank line, the first with "
            f"{first['lines']:,} lines at byte {first['place']:,} of {first['path']}. If every line is a document, "
            "give --text_layout line."
        )
    return warnings


def _by_reason(manifest: Manifest) -> dict[str, Counter[str]]:
    reasons: dict[str, Counter[str]] = {}
    for entry in manifest.ledger:
        reasons.setdefault(entry.reason, Counter())[entry.source] += entry.count
    return reasons


def _sources(by_source: Counter[str]) -> str:
    """Example: `"wiki 12, web 3 and 8 further sources"`; of a single source its name alone."""
    largest = sorted(by_source.items(), key=lambda item: (-item[1], item[0]))
    if len(largest) == 1:
        return largest[0][0]
    named = ", ".join(f"{source} {count:,}" for source, count in largest[:SHOWN_SOURCES])
    further = len(largest) - SHOWN_SOURCES
    return named if further <= 0 else f"{named} and {further:,} further sources"
