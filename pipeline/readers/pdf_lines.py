"""Makes paragraphs of a PDF's pages, which hold lines alone.

running lines   at the top or bottom of most pages, equal up to their numbers: removed
paragraphs      end with a line that is clearly shorter than the document's lines, also across pages
words           that a hyphen broke at a line's end are joined
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pipeline.readers.record import PARAGRAPH_BREAK

MIN_REPEATS = 3  # of a running line, in pages with even or with odd numbers
RUNNING_LINES = 2
"""Maximum running lines at each end of a page."""

SHORT_LINE = 0.75
"""A line with less than this share of the usual width ends its paragraph: in justified text only its last line does."""

_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b", re.IGNORECASE)
_BROKEN_WORD = re.compile(r"[^\W\d_]-$|\u00ad$")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff00-\uffef\u3000-\u303f]")


def text_of_pages(pages: Sequence[str]) -> str:
    """Return the text of a document from the texts of its pages, with a blank line between its paragraphs."""
    lines = [[line for line in map(_one_space, page.splitlines()) if line] for page in pages]
    for _ in range(RUNNING_LINES):
        lines = _without_running_lines(lines, 0)
        lines = _without_running_lines(lines, -1)
    return PARAGRAPH_BREAK.join(_paragraphs([line for page in lines for line in page]))


def _one_space(line: str) -> str:
    return " ".join(line.split())


def _without_running_lines(pages: list[list[str]], place: int) -> list[list[str]]:
    """Return the pages without the line at this place, if most of the pages with even or odd numbers have it."""
    shapes = [_NUMBER.sub("#", page[place]) if page else "" for page in pages]
    counts = Counter((number % 2, shape) for number, shape in enumerate(shapes))
    sides = Counter(number % 2 for number in range(len(pages)))

    kept: list[list[str]] = []
    for number, (page, shape) in enumerate(zip(pages, shapes, strict=True)):
        repeats = counts[number % 2, shape]
        is_running = repeats >= MIN_REPEATS and 2 * repeats > sides[number % 2]
        kept.append((page[1:] if place == 0 else page[:-1]) if is_running else page)
    return kept


def _paragraphs(lines: list[str]) -> list[str]:
    if not lines:
        return []
    usual = sorted(map(len, lines))[len(lines) * 9 // 10]  # all but the longest tenth

    paragraphs: list[str] = []
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        if len(line) < SHORT_LINE * usual and not _BROKEN_WORD.search(line):
            paragraphs.append(_joined(pending))
            pending = []
    return [*paragraphs, _joined(pending)] if pending else paragraphs


def _joined(lines: list[str]) -> str:
    parts = [lines[0]]
    for line in lines[1:]:
        before = parts[-1]
        if _BROKEN_WORD.search(before) and line[0].islower():
            parts[-1] = before[:-1]
        elif not (_WITHOUT_SPACES.match(before[-1]) and _WITHOUT_SPACES.match(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)
