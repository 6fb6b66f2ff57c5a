"""The closing lines of `shard`: why records are missing from the output, and what cleaning changed."""

from __future__ import annotations

from pipeline.ledger_text import ledger_lines
from pipeline.shard.record import place_in_words
from pipeline.shard.sentences import LINES_JOINED
from schemas.manifest import Manifest

MANY_PARAGRAPHS = 100  # documents of each file, of fewer than PARAGRAPH_BYTES on average, may be those of a book
PARAGRAPH_BYTES = 500

_HINTS = {LINES_JOINED: " (they looked wrapped; --sentence_splitter newline keeps lines apart)"}
"""What is said behind the number of changes by a rule."""


def summary_lines(manifest: Manifest) -> list[str]:
    """Return lines about a text folder's ledger and cleaning; none if everything was kept unchanged."""
    lines = [f"  left out: {line}" for line in ledger_lines(manifest)]

    cleaning = manifest.statistics["cleaning"]
    if cleaning:
        changes = ", ".join(f"{rule} {count:,}{_HINTS.get(rule, '')}" for rule, count in cleaning.items())
        lines.append(f"  cleaned: {changes}")
    return lines


def warning_lines(manifest: Manifest, text_layout: str) -> list[str]:
    """Return one line for each sign that the text may not be what the user believes."""
    warnings = []

    documents, files = manifest.totals["documents"], len(manifest.inputs)
    mean_bytes = manifest.totals["text_bytes"] / max(documents, 1)
    is_plain_text = set(manifest.statistics["documents_by_source"]) == {"text"}
    are_small = mean_bytes < PARAGRAPH_BYTES and documents > MANY_PARAGRAPHS * files > 0
    if text_layout == "blank_line" and is_plain_text and are_small:
        warnings.append(
            f"the input files hold {documents:,} documents of {mean_bytes:,.0f} bytes on average, because a blank line "
            "ends a document. If these are paragraphs, give --text_layout file, which makes each file a document."
        )

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
