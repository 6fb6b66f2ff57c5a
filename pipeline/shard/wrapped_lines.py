"""Joins the lines of hard-wrapped text, as in books, mail and documentation, and the words broken at their ends.

A line is full if the first word of the next one would not have fit behind it. The width of a block, which stands
between blank lines, is that of its longest line; above WRAP_WIDTH its lines are paragraphs.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

WRAP_WIDTH = 120  # characters
MIN_WRAP_WIDTH = 40  # characters; shorter lines are those of poems, lists and subtitles

LINES_JOINED = "lines joined"
WORDS_JOINED = "words broken at line ends joined"
HYPHENS_KEPT = "hyphens at line ends kept"

_BREAK_AFTER: dict[str, str] = dict.fromkeys(";{}:", "\n")
"""What stands after a line that ends like code. After any other it is a space, and after half a word nothing."""

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


def paragraphs(text: str, counts: Counter[str] | None = None, document: str = "") -> list[str]:
    """Return the paragraphs of a text, with wrapped lines joined by a space.

    counts: gets the numbers of lines and words that were joined, and of hyphens that were kept. document: the whole
    document, if the text is a part of it.
    """
    found: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        if "\n" not in block:
            found.append(block)
            continue

        lines = block.split("\n")
        width = max(map(len, lines))
        if width > WRAP_WIDTH:
            found += lines
            continue

        texts = list(map(str.strip, lines))
        breaks = _breaks(lines, texts, width, has_capitals=not block.islower())
        if "" in breaks:
            texts = _join_words(texts, breaks, document or text, counts)
        found += _joined(texts, breaks)
        if counts is not None and len(breaks) > breaks.count("\n"):
            counts[LINES_JOINED] += len(breaks) - breaks.count("\n")
    return found


def _breaks(lines: list[str], texts: list[str], width: int, has_capitals: bool) -> list[str]:
    """Return what stands between each line of a block and the next one: a line end, a space, or nothing.

    If most lines of a block are full, it is wrapped, and full lines are joined to their next ones. In any block with
    capital letters, so are lines before one that begins in lower case. A line without a space is joined to none,
    because scripts without spaces are not wrapped at words. texts: the lines without the spaces around them.
    """
    following = texts[1:]
    breaks = [
        _break_after(previous) if has_capitals and text[:1].islower() and " " in previous else "\n"
        for previous, text in zip(texts, following, strict=False)
    ]
    if width < MIN_WRAP_WIDTH or "\n" not in breaks:
        return breaks

    # `lines` still have the spaces at their beginning. A first word fits if it ends within the free characters.
    full = [
        len(text) >= (free := width - len(line.rstrip())) and " " not in text[:free] and " " in previous and text != ""
        for line, previous, text in zip(lines, texts, following, strict=False)
    ]
    if 2 * full.count(True) < len(full):
        return breaks
    return [
        end if end != "\n" or not is_full else "" if text[:1].islower() and _is_hyphenated(previous) else " "
        for is_full, end, previous, text in zip(full, breaks, texts, following, strict=False)
    ]


def _break_after(line: str) -> str:
    """Return what stands between a line and the next one that begins in lower case."""
    return "" if _is_hyphenated(line) else _BREAK_AFTER.get(line[-1], " ")


def _is_hyphenated(line: str) -> bool:
    return line.endswith("-") and not line.endswith(" -")


def _joined(texts: list[str], breaks: list[str]) -> list[str]:
    # Most blocks have breaks of one kind.
    if breaks.count("\n") == len(breaks):
        return texts
    if breaks.count(" ") == len(breaks):
        return [" ".join(texts)]
    parts = [""] * (2 * len(texts) - 1)
    parts[::2] = texts
    parts[1::2] = breaks
    return "".join(parts).split("\n")


def _join_words(texts: list[str], breaks: list[str], document: str, counts: Counter[str] | None) -> list[str]:
    """Return the lines without the hyphens that break a word which the document has whole, and nowhere hyphenated."""
    found = list(texts)
    for place, end in enumerate(breaks):
        first = texts[place][:-1].rpartition(" ")[2]
        if end != "" or not first[-1:].isalpha():
            continue

        head, tail = _WORD.findall(first.lower())[-1], _WORD.match(texts[place + 1].lower())
        words = _words_of(document)
        is_broken = tail is not None and head + tail[0] in words and f"{head}-{tail[0]}" not in words
        if is_broken:
            found[place] = texts[place][:-1]
        if counts is not None:
            counts[WORDS_JOINED if is_broken else HYPHENS_KEPT] += 1
    return found


@lru_cache(1)  # of the document that is being read
def _words_of(document: str) -> frozenset[str]:
    return frozenset(_WORD.findall(document.lower()))
