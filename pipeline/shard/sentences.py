"""Splits a clean document into sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation) or with one paragraph per line (the web, Wikipedia).
`sentencex` first joins wrapped lines: a line break counts as a wrap if the next word would not have fit on the line.
The width of a paragraph is the length of its longest line, at most WRAP_WIDTH. Any other line break ends a sentence, as
after a heading. `newline` trusts the corpus: every line is one sentence.
"""

from __future__ import annotations

import itertools
import re
from typing import Literal

import sentencex

Splitter = Literal["sentencex", "newline"]
WRAP_WIDTH = 120  # characters; longer lines are paragraphs, not wrapped lines

_SPACES = re.compile("  +")  # four times as fast as " {2,}": Python searches for two spaces, not for one

# A Chinese or Japanese full stop, then other end marks ("？！", "。……"), then closing quotes and brackets; but not
# where a comma or colon follows, because the sentence continues there.
_IDEOGRAPHIC_END = re.compile("[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")
_IDEOGRAPHIC_FULL_STOPS = "。！？"


def split_sentences(text: str, language: str, splitter: Splitter) -> list[str]:
    """Return the sentences of a clean document, in order, without empty ones, their words separated by single spaces.

    Example: `split_sentences("One. Two\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`.
    """
    if splitter == "newline":
        lines = [" ".join(line.split()) for line in text.split("\n")]
        return [line for line in lines if line]

    # sentencex ends a sentence at a blank line in every language, so paragraphs are separated by one.
    joined = _SPACES.sub(" ", "\n\n".join(paragraphs(text)))
    found: list[str] = sentencex.segment(language, joined)  # type: ignore[attr-defined]

    if not joined.isascii() and any(mark in joined for mark in _IDEOGRAPHIC_FULL_STOPS):
        found = split_ideographic(found)
    return list(filter(None, map(str.strip, found)))


def split_ideographic(sentences: list[str]) -> list[str]:
    """Cut after every Chinese or Japanese full stop with its closing quotes, unless a comma follows.

    These marks end a sentence in any language, whatever comes next; sentencex alone would not cut before a digit or a
    Latin letter. Parts may be empty. Example: `["到医院。108路"]` -> `["到医院。", "108路"]`.
    """
    # One search covers all sentences. They are single lines joined by newlines, so no match crosses the end of a
    # sentence.
    lines = "\n".join(sentences)
    ends = [match.end() for match in _IDEOGRAPHIC_END.finditer(lines)]
    parts = [lines[start:end] for start, end in itertools.pairwise([0, *ends, len(lines)])]
    return "\n".join(parts).split("\n")


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, with wrapped lines joined by a space."""
    found: list[str] = []
    for block in text.split("\n\n"):
        if "\n" not in block:
            found.append(block)
            continue

        lines = block.split("\n")
        width = max(map(len, lines))
        found += lines if width > WRAP_WIDTH else unwrap(lines, width)
    return found


def unwrap(lines: list[str], width: int) -> list[str]:
    """Join the wrapped lines of a block whose longest line has `width` characters.

    A line continues the previous one if it begins in lower case, or if its first word would not have fit there. The
    previous line must contain a space, because scripts without spaces are not wrapped at words.
    """
    texts = list(map(str.strip, lines))

    parts = [texts[0]]
    for line, previous, text in zip(lines, texts, texts[1:], strict=False):  # `line` is `previous` with its spaces
        continues = False
        if text and " " in previous:
            continues = text[0].islower() or not _first_word_fits(text, width - len(line.rstrip()))

        parts.append(" " if continues else "\n")
        parts.append(text)
    return "".join(parts).split("\n")


def _first_word_fits(text: str, free_width: int) -> bool:
    """Return whether the first word of a text, with a space before it, fits into a line's free characters."""
    return len(text) < free_width or " " in text[:free_width]
