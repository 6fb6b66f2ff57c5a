"""Tells corpora with a word and its tags in each line (CoNLL, IOB, BMES, parts of speech) from prose and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pipeline.readers.ranges import fills_head

_MOST = 0.9  # share of rows that must be as those of such corpora; comments and titles are not
_MAX_COLUMNS = 12
_MIN_ROWS = 3
_MANY_LINES = 200  # sentences are shorter, so a blank line comes sooner

# Tags of named entities and of phrases in the schemes IOB, BIOES, BILOU and BMES; O^S-GPE is of a word of two parts.
_ENTITY = re.compile(r"(?:(?:O|[BIELMSU]-[^\s^]+)(?:\^|$))+")
_TAG = re.compile(r"[^\W\d][^\s]{0,30}")


def has_tagged_words(text: str) -> bool:
    """Return whether nearly all lines at the beginning of a file have a word and as many tags.

    Tags of entities suffice. Others, such as parts of speech, must follow a tab and be few, and words must come again,
    in sentences with blank lines between them: a list or a dictionary has each of its words once.
    """
    lines = [line.strip() for line in text.split("\n")]
    filled = [line for line in (lines[:-1] if fills_head(text) else lines) if line]
    for separator in ("\t", ",", None):
        split = [line.split(separator) for line in filled]
        width, count = Counter(map(len, split)).most_common(1)[0] if split else (0, 0)
        if not 2 <= width <= _MAX_COLUMNS or count < max(_MIN_ROWS, _MOST * len(split)):
            continue

        words, *columns = zip(*(fields for fields in split if len(fields) == width), strict=True)
        if sum(len(word.split()) == 1 for word in words) < _MOST * count:
            continue
        if any(_share(_ENTITY, column) >= _MOST for column in columns):
            return True
        blank = len(lines) - len(filled)
        if separator == "\t" and blank * _MANY_LINES >= count and _are_few_tags(words, columns[-1]):
            return True
    return False


def _are_few_tags(words: Sequence[str], tags: Sequence[str]) -> bool:
    # A short text has many of the usual tags, which are in capitals: DT, NN, VBZ.
    lines_of_tag = 2 if sum(map(str.isupper, tags)) >= _MOST / 2 * len(tags) else 10
    return (
        _share(_TAG, tags) >= 0.7  # the tag of a comma may be a comma
        and len(set(tags)) * lines_of_tag <= len(tags)
        and len(set(map(str.lower, words))) <= _MOST * len(words)
        and sum(any(map(str.isalpha, word)) for word in words) >= len(words) / 2
    )


def _share(pattern: re.Pattern[str], values: Sequence[str]) -> float:
    return sum(pattern.fullmatch(value) is not None for value in values) / len(values)
