"""The closing lines of `shard`: why records are missing from the output, and what cleaning changed."""

from __future__ import annotations

from pipeline.ledger_text import ledger_lines
from pipeline.shard.record import place_in_words
from schemas.manifest import Manifest


def summary_lines(manifest: Manifest) -> list[str]:
    """Return lines about a text folder's ledger and cleaning; none if everything was kept unchanged."""
    lines = [f"  left out: {line}" for line in ledger_lines(manifest)]

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
        place = place_in_words(first["first_place"], first)
        warning = f"{undecodable['count']:,} undecodable bytes were removed, the first at {place} of {first['path']}."
        if "unit" not in first:  # Parquet has no other encoding
            warning += " If it is in another encoding, name it with --encoding."
        warnings.append(warning)

    unbroken = manifest.statistics.get("unbroken_documents")
    if unbroken:
        first = unbroken["first"]
        place = place_in_words(first["place"], first)
        warnings.append(
            f"{unbroken['count']:,} documents have many lines and no blank line, the first with "
            f"{first['lines']:,} lines at {place} of {first['path']}. If every line is a document, "
            "give --text_layout line."
        )
    return warnings
