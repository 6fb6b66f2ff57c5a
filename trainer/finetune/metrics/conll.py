"""F1 of chunks (names, phrases), as conlleval counts them.

A tag is a prefix and a type: B-PER begins a person's name, I-PER continues it, E-PER ends it, S-PER is a name of one
word, O is outside. A chunk is right if a predicted chunk has the same type, the same first and the same last word.

The script does not insist on one scheme. Two rules say where a chunk begins and ends, given a word's tag and that of
the word before, so that IOB1, IOB2, IOE1, IOE2 and IOBES can be read alike, and contradictions have a meaning: I-PER
after O begins a chunk; I-PER after I-LOC ends one and begins the next.

Sources: conlleval of the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz; www.cnts.ua.ac.be/conll2000/chunking),
extended by S, and by an E that always ends its chunk, as in seqeval (github.com/chakki-works/seqeval), whose default
mode this equals for any tags. Two things follow from seqeval where the script differs or says nothing: a tag without a
prefix is split after its first letter ("LOC" is prefix L and type OC), and one letter alone has the type "_".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.finetune.metrics.classification import f1_of_counts

TaggedSentences = Sequence[Sequence[str]]

OUTSIDE = "O"

UNTYPED = "_"
"""The type of a tag that has none, such as O or B."""


@dataclass(frozen=True)
class Tag:
    """A tag, split: B-PER is the prefix B and the type PER."""

    prefix: str
    type: str


@dataclass(frozen=True)
class Chunk:
    """A run of words. Their numbers count the words of all sentences, and one more between two sentences."""

    type: str
    first: int
    last: int


@dataclass(frozen=True)
class ChunkScores:
    """How many chunks the references have (labeled), how many were predicted, and how many of these are correct."""

    correct: int
    predicted: int
    labeled: int

    @property
    def precision(self) -> float:
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.correct / self.labeled if self.labeled else 0.0

    @property
    def f1(self) -> float:
        return f1_of_counts(self.correct, self.predicted, self.labeled)


def chunk_f1(predictions: TaggedSentences, references: TaggedSentences) -> float:
    """Return the F1 of chunks of all types together, 0.0 if there is none; see chunk_scores."""
    return chunk_scores(predictions, references).f1


def chunk_scores(predictions: TaggedSentences, references: TaggedSentences) -> ChunkScores:
    """Return the counts of chunks of all types.

    Raises ValueError for no sentences, and if a sentence has not as many predicted tags as words.
    """
    by_type = chunk_scores_by_type(predictions, references).values()
    return ChunkScores(
        correct=sum(scores.correct for scores in by_type),
        predicted=sum(scores.predicted for scores in by_type),
        labeled=sum(scores.labeled for scores in by_type),
    )


def chunk_scores_by_type(predictions: TaggedSentences, references: TaggedSentences) -> dict[str, ChunkScores]:
    """Return the counts of chunks by type, in alphabetical order; see chunk_scores."""
    check_lengths(predictions, references)
    predicted = set(chunks(predictions))
    labeled = set(chunks(references))

    correct_of = Counter(chunk.type for chunk in predicted & labeled)
    predicted_of = Counter(chunk.type for chunk in predicted)
    labeled_of = Counter(chunk.type for chunk in labeled)

    types = sorted(predicted_of.keys() | labeled_of.keys())
    return {name: ChunkScores(correct_of[name], predicted_of[name], labeled_of[name]) for name in types}


def chunks(sentences: Iterable[Sequence[str]]) -> list[Chunk]:
    """Return the chunks of tagged sentences, in their order."""
    # A word outside of any chunk between two sentences ends every chunk.
    words = [tag for sentence in sentences for tag in (*sentence, OUTSIDE)]

    found = []
    first = 0
    before = Tag(OUTSIDE, "")
    for position, word in enumerate(words):
        tag = split_tag(word)
        if ends_chunk(before, tag):
            found.append(Chunk(before.type, first, position - 1))
        if begins_chunk(before, tag):
            first = position
        before = tag
    return found


def split_tag(tag: str) -> Tag:
    """Split a tag at its first dash, or after its first letter. Raises ValueError for an empty tag."""
    if not tag:
        raise ValueError("a tag is empty; expected one such as B-PER, I-PER or O")

    _, dash, name = tag.partition("-")
    if not dash:
        name = tag[1:]
    return Tag(tag[0], name or UNTYPED)


def ends_chunk(before: Tag, tag: Tag) -> bool:
    """Return whether a chunk ended with the word before."""
    if before.prefix in ("E", "S"):
        return True
    if before.prefix in ("B", "I") and tag.prefix in ("B", "S", "O"):
        return True

    return is_inside(before) and before.type != tag.type


def begins_chunk(before: Tag, tag: Tag) -> bool:
    """Return whether a chunk begins with this word."""
    if tag.prefix in ("B", "S"):
        return True
    if tag.prefix in ("E", "I") and before.prefix in ("E", "S", "O"):
        return True

    return is_inside(tag) and before.type != tag.type


def is_inside(tag: Tag) -> bool:
    """Return whether a word belongs to a chunk."""
    # The script also reads the brackets of an older scheme, in which "." is a word outside.
    return tag.prefix not in (OUTSIDE, ".")


def check_lengths(predictions: TaggedSentences, references: TaggedSentences) -> None:
    """Raise ValueError for no sentences, and if a sentence has not as many predicted tags as words."""
    if len(predictions) != len(references) or len(references) == 0:
        raise ValueError(
            f"{len(predictions)} predicted sentences and {len(references)} labeled ones cannot be compared: expected "
            "as many, and at least one"
        )

    for number, (predicted, labeled) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(labeled):
            raise ValueError(f"sentence {number} has {len(labeled)} words, but {len(predicted)} predicted tags")
