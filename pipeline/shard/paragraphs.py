"""Whether blank lines seem to cut articles into paragraphs: plain text is counted as it is read, before any step."""

from __future__ import annotations

from collections import Counter

from pipeline.commit.reports import Report
from pipeline.readers.record import Record

PARAGRAPH_BYTES = 500
"""Blank lines that divide plain text into smaller pieces than this, on average, divide paragraphs, not documents."""

MANY_PIECES = 100  # of all files, and SEVERAL_PIECES of each on average, may be paragraphs; fewer are no sign
SEVERAL_PIECES = 5

_SENTENCE_ENDS = tuple(".!?…:。！？।॥؟۔።")
_CLOSING = "'\"”’»)]」』"


def ends_sentence(line: str) -> bool:
    """Return whether a line, without spaces around it, ends with a sentence."""
    return line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)


def count_piece(counts: Counter[str], record: Record) -> None:
    """Count what stands between two blank lines, its bytes, and whether its first lines are sentences, not wrapped."""
    counts["documents"] += 1
    counts["bytes"] += record.size
    if record.line_count > 1:
        followed = [line.strip() for line in record.text[:PARAGRAPH_BYTES].splitlines()[:-1]]
        counts["of_sentence_lines"] += 2 * sum(map(ends_sentence, followed)) > len(followed)


def paragraphs_among(counts: dict[str, int]) -> Report | None:
    """Return the number of files, of documents in them and of their bytes if these may be paragraphs, or None.

    counts: the sums of `count_piece`, and the number of `files`.
    """
    files, documents = counts.get("files", 0), counts.get("documents", 0)
    are_many = documents > max(MANY_PIECES, SEVERAL_PIECES * files)
    if not are_many or counts["bytes"] >= PARAGRAPH_BYTES * documents:
        return None
    if 2 * counts.get("of_sentence_lines", 0) > documents:  # documents with a sentence or a paragraph in each line
        return None
    return {"files": files, "documents": documents, "bytes": counts["bytes"]}
