"""Splits a clean document into sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation), with one paragraph per line (the web, Wikipedia), or
with one sentence per line (subtitles, poems, lists). `sentencex` first joins wrapped lines: those that are as long as
their paragraph allows, whose width is its longest line, at most WRAP_WIDTH. Any other line break ends a sentence, as
after a heading. `newline` trusts the corpus: every line is one sentence.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

from pipeline.shard.sentence_ends import cut_into_sentences

Splitter = Literal["sentencex", "newline"]
WRAP_WIDTH = 120  # characters; longer lines are paragraphs, not wrapped lines
MIN_WRAP_WIDTH = 40  # characters; shorter lines are those of poems, lists and subtitles
LINES_JOINED = "lines joined"

# What stands between a line and the next one that begins in lower case, by its last character; a space after any other.
_BREAK_AFTER = {"-": "", **dict.fromkeys(";{}:", "\n")}  # a hyphenated word; code

_SPACES = re.compile("  +")  # four times as fast as " {2,}": Python searches for two spaces, not for one


def split_sentences(text: str, language: str, splitter: Splitter, counts: Counter[str] | None = None) -> list[str]:
    """Return the sentences of a clean document, in order, without empty ones, their words separated by single spaces.

    counts: gets the number of lines that were joined to the line before.
    Example: `split_sentences("One. Two\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`.
    """
    if splitter == "newline":
        lines = [" ".join(line.split()) for line in text.split("\n")]
        return [line for line in lines if line]

    # A blank line ends a sentence in every language.
    joined = "\n\n".join(paragraphs(text, counts))
    if "  " in joined:
        joined = _SPACES.sub(" ", joined)
    return list(filter(None, map(str.strip, cut_into_sentences(joined, language))))


def paragraphs(text: str, counts: Counter[str] | None = None) -> list[str]:
    """Return the paragraphs of a text, with wrapped lines joined by a space."""
    found: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        if "\n" not in block:
            found.append(block)
            continue

        lines = block.split("\n")
        width = max(map(len, lines))
        joined = lines if width > WRAP_WIDTH else unwrap(lines, width, not block.islower())
        found += joined
        if counts is not None and len(joined) < len(lines):
            counts[LINES_JOINED] += len(lines) - len(joined)
    return found


def unwrap(lines: list[str], width: int, has_capitals: bool) -> list[str]:
    """Join the wrapped lines of a block whose longest line has `width` characters.

    A line is full if the first word of the next one would not have fit there. If most lines of a block are full, it is
    wrapped, and full lines are joined to their next ones. In any block with capital letters, so are lines before one
    that begins in lower case. A line without a space is joined to none, because scripts without spaces are not wrapped
    at words.
    """
    texts = list(map(str.strip, lines))
    following = texts[1:]
    breaks = ["\n"] * len(following)
    if has_capitals:
        breaks = [
            _BREAK_AFTER.get(previous[-1], " ") if text[:1].islower() and " " in previous else "\n"
            for previous, text in zip(texts, following, strict=False)
        ]

    if width >= MIN_WRAP_WIDTH and "\n" in breaks:
        # `lines` still have the spaces at their beginning. A first word fits if it ends within the free characters.
        full = [
            len(text) >= (free := width - len(line.rstrip()))
            and " " not in text[:free]
            and " " in previous
            and text != ""
            for line, previous, text in zip(lines, texts, following, strict=False)
        ]
        if 2 * full.count(True) >= len(full):
            breaks = [" " if is_full and end == "\n" else end for is_full, end in zip(full, breaks, strict=True)]

    # Most blocks have breaks of one kind.
    if breaks.count("\n") == len(breaks):
        return texts
    if breaks.count(" ") == len(breaks):
        return [" ".join(texts)]
    parts = [""] * (2 * len(texts) - 1)
    parts[::2] = texts
    parts[1::2] = breaks
    return "".join(parts).split("\n")
