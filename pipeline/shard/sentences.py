"""From a clean document to its sentences, each on one line with single spaces.

Texts come with hard-wrapped lines (books, mail, documentation) or with one paragraph a line (the web, Wikipedia).
A line break is taken for a wrap when the next word would not have fitted: the wrapped lines of a paragraph are as full
as its longest line allows, and none is longer than WRAP_WIDTH. Any other line break ends a sentence, as a heading's
does. `newline` trusts the corpus: every line is one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import sentencex

Splitter = Literal["sentencex", "newline"]
WRAP_WIDTH = 120  # characters; text meant to be wrapped is wrapped below this
_SPACES = re.compile(" {2,}")
_IDEOGRAPHIC_END = re.compile("[!?…]*[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")


def split_sentences(text: str, language: str, splitter: Splitter) -> list[str]:
    """The sentences of a clean document, in order, never empty, their words apart by single spaces.

    Example: `split_sentences("One. Two\nthree.", "en", "sentencex")` -> `["One.", "Two three."]`
    """
    if splitter == "newline":
        return [" ".join(line.split()) for line in text.split("\n") if not line.isspace() and line]
    # A blank line between paragraphs ends a sentence for sentencex in every language.
    joined = "\n\n".join(paragraphs(text))
    if "  " in joined:
        joined = _SPACES.sub(" ", joined)
    found: list[str] = sentencex.segment(language, joined)  # type: ignore[attr-defined]
    if not joined.isascii() and any(mark in joined for mark in "。！？"):
        found = [part for sentence in found for part in split_ideographic(sentence)]
    return [sentence for sentence in map(str.strip, found) if sentence]


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


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, wrapped lines joined with a space."""
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
    """The lines of a block of `width` characters, those joined that were wrapped.

    A line goes on with the one before when its first word would not have fitted there, or begins in lower case; the
    one before must have a space in it, for a script without them is not wrapped at words.
    """
    texts = list(map(str.strip, lines))
    rooms = [width - len(line.rstrip()) for line in lines]  # for a space and a word
    found, start = [], 0
    for i, (before, text, room) in enumerate(zip(texts, texts[1:], rooms, strict=False), 1):
        wrapped = text and (text[0].islower() or len(text) >= room <= len(text.partition(" ")[0]))
        if not (wrapped and " " in before):
            found.append(" ".join(texts[start:i]))
            start = i
    found.append(" ".join(texts[start:]))
    return found
