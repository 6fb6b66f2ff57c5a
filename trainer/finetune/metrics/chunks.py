"""F1 of chunks (names, phrases), as conlleval counts them.

A tag is a prefix and a type: B-PER begins a person's name, I-PER continues it, E-PER ends it, S-PER is a name of one
word, and O is outside any chunk. A predicted chunk is correct if a labeled chunk has the same type, first word and last
word.

conlleval does not require one tagging scheme. Two rules decide from the tags of a word and of the previous word where
chunks begin and end. They cover IOB1, IOB2, IOE1, IOE2 and IOBES, and define inconsistent tags too: I-PER after O
begins a chunk; I-PER after I-LOC ends one chunk and begins the next.

Sources: conlleval of the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz; www.cnts.ua.ac.be/conll2000/chunking),
extended by S and by an E that always ends its chunk, as in seqeval (github.com/chakki-works/seqeval), which also
decides how tags without a dash are split: "LOC" is prefix L and type OC, and "B" has the type "_".

Labels of BILOU, BMES and BMEWO get the letters of IOBES first: L is E, U and W are S, and M is I.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

Tag = tuple[str, str]
"""A tag split into its prefix and its type: B-PER is ("B", "PER")."""

Chunk = tuple[str, int, int]
"""A run of words of one type: the type, and the inclusive positions of its first and its last word.

Positions count the words of all sentences, plus one separator after each sentence.
"""

IN_IOBES = {"L": "E", "U": "S", "W": "S", "M": "I"}
"""The letters of other schemes, and those of IOBES for the same places in a chunk."""


def have_prefixes(labels: Collection[str]) -> bool:
    """Return whether some labels have a prefix such as B-, or all are such letters alone, as for words in Chinese."""
    return any(re.match("[BILUESMW][-_]", label) for label in labels) or set(labels) <= set("BILOUESMW")


def in_iobes(label: str) -> str:
    """Return a label of any scheme with the prefix that IOBES has for the same place in a chunk."""
    has_prefix = label[1:2] in ("", "-", "_")
    return IN_IOBES.get(label[:1], label[:1]) + label[1:] if has_prefix else label


def chunk_f1(predictions: Iterable[Sequence[str]], references: Iterable[Sequence[str]]) -> float:
    """Return the F1 of chunks of all types together, given the tags of sentences; 0.0 if there are no chunks."""
    predicted = set(chunks(predictions))
    labeled = set(chunks(references))
    if not predicted and not labeled:
        return 0.0
    return 2 * len(predicted & labeled) / (len(predicted) + len(labeled))


def chunks(sentences: Iterable[Sequence[str]]) -> list[Chunk]:
    """Return the chunks of tagged sentences, in order."""
    # An O after each sentence ends its last chunk.
    tags = [split_tag(tag) for sentence in sentences for tag in (*sentence, "O")]

    found = []
    first = 0
    before = ("O", "_")
    for position, tag in enumerate(tags):
        if ends_chunk(before, tag):
            found.append((before[1], first, position - 1))
        if begins_chunk(before, tag):
            first = position
        before = tag
    return found


def split_tag(tag: str) -> Tag:
    """Split a tag at its first dash, or after its first letter."""
    _, dash, name = tag.partition("-")
    return tag[:1], (name if dash else tag[1:]) or "_"


def ends_chunk(before: Tag, tag: Tag) -> bool:
    """Return whether a chunk ended with the previous word, whose tag is `before`."""
    ends = before[0] in ("E", "S") or (before[0] in ("B", "I") and tag[0] in ("B", "S", "O"))
    return ends or (is_inside(before) and before[1] != tag[1])


def begins_chunk(before: Tag, tag: Tag) -> bool:
    """Return whether a chunk begins with this word, whose tag is `tag`."""
    begins = tag[0] in ("B", "S") or (tag[0] in ("E", "I") and before[0] in ("E", "S", "O"))
    return begins or (is_inside(tag) and before[1] != tag[1])


def is_inside(tag: Tag) -> bool:
    """Return whether a word belongs to a chunk. In an older scheme with brackets "." is outside, too."""
    return tag[0] not in ("O", ".")
