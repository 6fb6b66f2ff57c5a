"""From a clean document to its sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation) or with one paragraph a line (the web, Wikipedia).
A line break is taken for a wrap when the next word would not have fitted: the wrapped lines of a paragraph are as full
as its longest line allows, and none is longer than WRAP_WIDTH. Any other line break ends a sentence, as a heading's
does. `newline` trusts the corpus: every line is one sentence.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Literal

import sentencex

Splitter = Literal["sentencex", "newline"]
WRAP_WIDTH = 120  # characters; text meant to be wrapped is wrapped below this
_IDEOGRAPHIC_END = re.compile("[!?…]*[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")


def split_sentences(text: str, language: str, splitter: Splitter) -> list[str]:
    """The sentences of a clean document, in order, never empty.

    Example: `split_sentences("One. Two\\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`
    """
    if splitter == "newline":
        found: list[str] = text.split("\n")
    else:
        # A blank line between paragraphs ends a sentence for sentencex in every language.
        found = sentencex.segment(language, "\n\n".join(paragraphs(text)))  # type: ignore[attr-defined]
        if _IDEOGRAPHIC_END.search(text):
            found = [part for sentence in found for part in split_ideographic(sentence)]
    return [sentence for sentence in (" ".join(part.split()) for part in found) if sentence]


def split_ideographic(sentence: str) -> Iterator[str]:
    """Cut after every Chinese or Japanese full stop with its closing quotes, unless a comma goes on.

    These marks end a sentence in any language and before any character; sentencex goes on before a digit or a Latin
    letter. Example: `"到医院。108路"` -> `"到医院。"`, `"108路"`
    """
    place = 0
    for mark in _IDEOGRAPHIC_END.finditer(sentence):
        yield sentence[place : mark.end()]
        place = mark.end()
    yield sentence[place:]


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a text, wrapped lines joined with a space."""
    for block in text.split("\n\n"):
        lines = block.split("\n")
        width = max(map(len, lines))
        if len(lines) == 1 or width > WRAP_WIDTH:
            yield from filter(None, lines)
        else:
            yield from _unwrap(lines, width)


def _unwrap(lines: list[str], width: int) -> Iterator[str]:
    joined = lines[0]
    for before, line in itertools.pairwise(lines):
        if is_wrap(before, line, width):
            joined = f"{joined} {line.strip()}"
        else:
            yield joined
            joined = line
    yield joined


def is_wrap(before: str, line: str, width: int) -> bool:
    """True when `line` goes on with `before`: its first word would not have fitted into `width` characters."""
    first_word = line.lstrip().partition(" ")[0]
    if not first_word or " " not in before.strip():
        return False
    return len(before.rstrip()) + 1 + len(first_word) > width or first_word[0].islower()
