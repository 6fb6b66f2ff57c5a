"""What separates documents in plain text: guessed from samples of files, and judged from what a job has read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Literal

from pipeline.commit.reports import Report
from pipeline.readers.inputs import FileRange
from pipeline.readers.open import DECOMPRESSION_ERRORS
from pipeline.readers.ranges import HEAD_BYTES, open_range
from pipeline.readers.record import Record, TextLayout
from pipeline.text_keys import head_lines
from schemas.errors import DataError

PARAGRAPH_BYTES = 500
LONG_PARAGRAPH_BYTES = 2000
"""Blank lines that divide plain text into smaller pieces than this, on average, divide paragraphs, not documents; those
of several small files below the larger number. Between the two, the user is warned."""

MANY_PIECES = 100  # of all files, and SEVERAL_PIECES of each on average, may be paragraphs; fewer are no sign
SEVERAL_PIECES = 5

MAX_BOOK_BYTES = 8 << 20  # of a text file that is one document
LINE_BYTES = 200
"""Lines without a blank one between them that are longer than this, on average, are documents, not paragraphs."""
WRAPPED = 0.9
"""Share of the width that most lines of a wrapped text have, or those that end no sentence."""

LARGE_PIECE = 200_000  # bytes of a file whose lines or blocks of lines are hardly one document

BLANK_LINE_PLACES = 32  # of a file without blank lines at its beginning that are looked at
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")

SEVERAL_FILES = 10  # small ones, may be an article each, and those of lines a book each
FEW_FILES = 30
LARGE_FILE = 2 << 20
"""Up to this many text files, or above this mean size in bytes, a file is probably not one document."""

_SENTENCE_ENDS = tuple(".!?…:。！？।॥؟۔።")
_CLOSING = "'\"”’»)]」』"


def ends_sentence(line: str) -> bool:
    """Return whether a line, without spaces around it, ends with a sentence."""
    return line.rstrip(_CLOSING).endswith(_SENTENCE_ENDS)


def guessed_layout(texts: list[FileRange], pieces: Callable[[], tuple[int, int]]) -> TextLayout:
    """Return what separates documents in files of plain text: "file" if they are books, articles and the like.

    pieces: returns the number of documents in a sample, if blank lines separate them, and of their bytes.
    """
    if not texts:
        return "blank_line"
    seen = [_layout_seen(one) for one in texts[:: max(1, len(texts) // FEW_FILES)]]
    mean_bytes = sum(one.size for one in texts) / len(texts)
    are_parts = len(texts) <= FEW_FILES or mean_bytes > LARGE_FILE
    if are_parts and (set(seen) == {"line"} or (len(texts) < SEVERAL_FILES and all(map(_is_of_lines, texts)))):
        return "line"
    if max(one.size for one in texts) > MAX_BOOK_BYTES or (are_parts and have_sentence_lines(texts)):
        return "blank_line"
    are_small = mean_bytes <= LARGE_PIECE
    are_blocks = seen.count("blank_line") > len(seen) / 2
    if not are_parts:
        return "blank_line" if are_blocks and not are_small else "file"
    documents, text_bytes = pieces()
    are_articles = len(texts) >= SEVERAL_FILES and are_small and not are_blocks
    is_divided = text_bytes < (LONG_PARAGRAPH_BYTES if are_articles else PARAGRAPH_BYTES) * documents
    return "file" if is_divided and documents > len(texts) else "blank_line"


def _layout_seen(text: FileRange) -> TextLayout | Literal["lines"] | None:
    """Return what the beginning of a file shows.

    "line" for lines without a blank one that are long or of a large file, "lines" for many others that are sentences or
    as long as they like, and "blank_line" for blocks of lines that are sentences or paragraphs. None for other text, as
    of one paragraph, or of lines that are wrapped at some width.
    """
    with suppress(DataError, *DECOMPRESSION_ERRORS):
        lines = [line.strip() for line in head_lines(text)]
        if all(lines):
            are_long = len("".join(lines).encode()) > LINE_BYTES * len(lines)
            if len(lines) > 1 and (are_long or (text.weight > MAX_BOOK_BYTES and not _has_blank_line(text))):
                return "line"
            return "lines" if len(lines) > MANY_PIECES and not _are_wrapped(lines) else None
        followed = [line for line, after in pairwise(lines) if line and after]
        blocks = sum(map(bool, lines)) - len(followed)
        ended = sum(map(ends_sentence, followed))
        return "blank_line" if len(followed) > blocks and 2 * ended > len(followed) else None
    return None


def have_sentence_lines(texts: list[FileRange]) -> bool:
    """Return whether most files begin with blocks of lines of a sentence each, as BERT's format has them."""
    seen = texts[:: max(1, len(texts) // FEW_FILES)]
    return 2 * sum(map(_begins_with_sentences, seen)) > len(seen)


def _begins_with_sentences(text: FileRange) -> bool:
    with suppress(DataError, *DECOMPRESSION_ERRORS):
        lines = [line.strip() for line in head_lines(text)]
        blocks = [block.split("\n") for block in "\n".join(lines).split("\n\n")]
        followed = [line for block in blocks for line in block[:-1]]
        lengths = sorted(map(len, filter(None, lines)))
        are_short = sum(lengths) <= LINE_BYTES * len(lengths) and len(lengths) >= SEVERAL_PIECES * 2
        if len(blocks) < SEVERAL_PIECES or 2 * sum(len(block) > 1 for block in blocks) <= len(blocks) or not are_short:
            return False
        ended = sum(map(ends_sentence, followed))
        clauses = sum(line.endswith(";") for line in followed)
        differ = 2 * lengths[len(lengths) // 4] < lengths[len(lengths) * 3 // 4]
        return differ and ended + clauses >= WRAPPED * len(followed) and 3 * ended >= len(followed)
    return False


def _is_of_lines(text: FileRange) -> bool:
    """Return whether a file is too large for one document, and has lines alone that are not wrapped."""
    return text.weight > LARGE_PIECE and _layout_seen(text) in ("line", "lines") and not _has_blank_line(text)


def _are_wrapped(lines: list[str]) -> bool:
    """Return whether most lines are about as long as the longest ones, but for the very longest, and end no sentence.

    Of a wrapped dialog fewer are so long, and nearly all others end a sentence.
    """
    lengths = sorted(map(len, lines))
    least = WRAPPED * lengths[len(lengths) * 9 // 10]
    full = [line for line in lines if len(line) > least]
    short = [line for line in lines if len(line) <= least]
    are_ended = sum(map(ends_sentence, short)) > WRAPPED * len(short)
    return 2 * sum(map(ends_sentence, full)) < len(full) and (2 * len(full) > len(lines) or are_ended)


def _has_blank_line(text: FileRange) -> bool:
    """Return whether a large file has a blank line in one of some places, which long documents have between them."""
    if text.compression is not None:
        return False  # that is, none was seen
    for place in range(BLANK_LINE_PLACES):
        start = text.size * place // BLANK_LINE_PLACES
        with open_range(text.file, start, start + HEAD_BYTES) as opened:
            if _BLANK_LINE.search(opened.read(HEAD_BYTES)):
                return True
    return False


def doubt(texts: list[FileRange], layout: TextLayout, pieces: Callable[[], tuple[int, int]]) -> str:
    """Return a sentence on what this layout may do wrong: join documents, or take paragraphs for documents.

    pieces: as that of `guessed_layout`.
    """
    if layout == "line" or not texts:
        return ""
    seen = [_layout_seen(one) for one in texts[:FEW_FILES]]
    if layout == "blank_line" and max(one.size for one in texts) <= MAX_BOOK_BYTES:
        documents, text_bytes = pieces()
        may_be_divided = SEVERAL_PIECES * len(texts) < documents and text_bytes < LONG_PARAGRAPH_BYTES * documents
        if may_be_divided and "blank_line" not in seen:
            return (
                f"Blank lines end documents of {text_bytes / documents:,.0f} bytes on average. If these are "
                "paragraphs, text_layout = file makes each file a document."
            )
    if layout == "file" and seen.count("blank_line") > len(seen) / 2:
        return (
            "Each file is one document, and blank lines divide it into blocks of lines. If each block is a document, "
            "text_layout = blank_line."
        )
    large = sorted((one for one in texts if one.size > LARGE_PIECE), key=lambda one: -one.size)[:FEW_FILES]
    few = texts if len(texts) <= FEW_FILES else large
    whole = [one for one in large if _layout_seen(one) == "line"] + [one for one in few if _layout_seen(one) == "lines"]
    if not whole:
        return ""
    advice = "make JSON lines of it: jq -cR '{text: .}' FILE > FILE.jsonl"
    if len(whole) == len(texts):
        advice = "text_layout = line makes it one."
    return (
        f"{whole[0].display_path}{f' and {len(whole) - 1:,} others' if len(whole) > 1 else ''}: many or long lines and "
        f"none blank, so all of it is one document with text_layout = {layout}. If each line is one, {advice}"
    )


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
    # The pieces are short, or each of many small files may be one document.
    are_articles = files > FEW_FILES and counts["bytes"] < LARGE_PIECE * files
    if not are_many or (counts["bytes"] >= LONG_PARAGRAPH_BYTES * documents and not are_articles):
        return None
    if 2 * counts.get("of_sentence_lines", 0) > documents:  # documents with a sentence or a paragraph in each line
        return None
    return {"files": files, "documents": documents, "bytes": counts["bytes"]}
