"""Split a clean document into sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation) or with one paragraph per line (the web, Wikipedia).
`sentencex` first joins wrapped lines: a line break counts as a wrap if the next word would not have fitted on the line.
The width of a paragraph is the length of its longest line, at most WRAP_WIDTH. Any other line break ends a sentence, as
after a heading. `newline` trusts the corpus: every line is one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import sentencex

Splitter = Literal["sentencex", "newline"]
WRAP_WIDTH = 120  # characters; longer lines are paragraphs, not wrapped lines

_SPACES = re.compile(" {2,}")

# A Chinese or Japanese full stop among any other end marks ("？！", "……。"), then closing quotes and brackets; but not
# where a comma or colon follows, because the sentence continues there.
_IDEOGRAPHIC_END = re.compile("[!?…]*[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")
_IDEOGRAPHIC_FULL_STOPS = "。！？"


def split_sentences(text: str, language: str, splitter: Splitter) -> list[str]:
    """Return the sentences of a clean document, in order, without empty ones, their words separated by single spaces.

    Example: `split_sentences("One. Two\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`.
    """
    if splitter == "newline":
        lines = [" ".join(line.split()) for line in text.split("\n")]
        return [line for line in lines if line]

    # sentencex ends a sentence at a blank line in every language, so paragraphs are separated by one.
    joined = "\n\n".join(paragraphs(text))
    if "  " in joined:
        joined = _SPACES.sub(" ", joined)
    found: list[str] = sentencex.segment(language, joined)  # type: ignore[attr-defined]

    if not joined.isascii() and any(mark in joined for mark in _IDEOGRAPHIC_FULL_STOPS):
        found = [part for sentence in found for part in split_ideographic(sentence)]
    return [sentence for sentence in map(str.strip, found) if sentence]


def split_ideographic(sentence: str) -> Iterator[str]:
    """Cut after every Chinese or Japanese full stop with its closing quotes, unless a comma follows.

    These marks end a sentence in any language, whatever comes next; sentencex alone would not cut before a digit or a
    Latin letter. Example: `"到医院。108路"` -> `"到医院。"`, `"108路"`.
    """
    start = 0
    for match in _IDEOGRAPHIC_END.finditer(sentence):
        yield sentence[start : match.end()]
        start = match.end()
    yield sentence[start:]


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, with wrapped lines joined by a space."""
    found: list[str] = []
    for block in text.split("\n\n"):
        lines = block.split("\n")
        width = max(map(len, lines))
        if len(lines) == 1 or width > WRAP_WIDTH:
            found += lines
        else:
            found += unwrap(lines, width)
    return found


def unwrap(lines: list[str], width: int) -> list[str]:
    """Join the wrapped lines of a block whose longest line has `width` characters.

    A line continues the previous one if it begins in lower case, or if its first word would not have fitted there.
    The previous line must contain a space, because scripts without spaces are not wrapped at words.
    """
    texts = list(map(str.strip, lines))
    free_widths = [width - len(line.rstrip()) for line in lines]  # left on each line for a space and a word

    joined = []
    start = 0
    for i in range(1, len(texts)):
        text = texts[i]
        continues = False
        if text and " " in texts[i - 1]:
            # A word fits if it is shorter than the free width. The cheap test of the whole line spares most short
            # lines the search for their first word.
            free_width = free_widths[i - 1]
            begins_in_lower_case = text[0].islower()
            continues = begins_in_lower_case or (len(text) >= free_width and len(text.partition(" ")[0]) >= free_width)

        if not continues:
            joined.append(" ".join(texts[start:i]))
            start = i

    joined.append(" ".join(texts[start:]))
    return joined
