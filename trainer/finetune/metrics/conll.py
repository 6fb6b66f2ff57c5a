"""F1 of chunks (names, phrases), as conlleval counts them.

A tag is a prefix and a type: B-PER begins a person's name, I-PER continues it, E-PER ends it, S-PER is a name of one
word, and O is outside any chunk. A predicted chunk is correct if a labeled chunk has the same type, first word and last
word.

conlleval does not require one tagging scheme. Two rules decide from the tags of a word and of the previous word where
chunks begin and end. They cover IOB1, IOB2, IOE1, IOE2 and IOBES, and define inconsistent tags too: I-PER after O
begins a chunk; I-PER after I-LOC ends one chunk and begins the next.

Sources: conlleval of the shared task of CoNLL-2000 (Tjong Kim Sang and Buchholz; www.cnts.ua.ac.be/conll2000/chunking),
extended by S and by an E that always ends its chunk, as in seqeval (github.com/chakki-works/seqeval). Results equal
those of seqeval's default mode for any tags. Two rules come from seqeval, because conlleval differs or defines nothing:
a tag without a dash is split after its first letter ("LOC" is prefix L and type OC), and a single letter has the type
"_".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.finetune.metrics.classification import f1_of_counts

TaggedSentences = Sequence[Sequence[str]]

OUTSIDE = "O"

UNTYPED = "_"
"""The type of a tag without one, such as O or B."""


@dataclass(frozen=True)
class Tag:
    """A tag split into its parts: B-PER has the prefix B and the type PER."""

    prefix: str
    type: str


@dataclass(frozen=True)
class Chunk:
    """A run of words of one type.

    first, last: inclusive positions. They count the words of all sentences, plus one separator after each sentence.
    """

    type: str
    first: int
    last: int


@dataclass(frozen=True)
class ChunkScores:
    """Numbers of chunks: in the references (labeled), predicted, and correctly predicted."""

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
    """Return the F1 of chunks of all types together, 0.0 if there are no chunks. Raises the errors of chunk_scores."""
    return chunk_scores(predictions, references).f1


def chunk_scores(predictions: TaggedSentences, references: TaggedSentences) -> ChunkScores:
    """Return the counts of chunks of all types together.

    Raises ValueError if there are no sentences, if a sentence has more or fewer predicted tags than words, and for an
    empty tag.
    """
    by_type = chunk_scores_by_type(predictions, references).values()
    return ChunkScores(
        correct=sum(scores.correct for scores in by_type),
        predicted=sum(scores.predicted for scores in by_type),
        labeled=sum(scores.labeled for scores in by_type),
    )


def chunk_scores_by_type(predictions: TaggedSentences, references: TaggedSentences) -> dict[str, ChunkScores]:
    """Return the counts of chunks by type, in alphabetical order. Raises the errors of chunk_scores."""
    check_lengths(predictions, references)
    predicted = set(chunks(predictions))
    labeled = set(chunks(references))

    correct_of = Counter(chunk.type for chunk in predicted & labeled)
    predicted_of = Counter(chunk.type for chunk in predicted)
    labeled_of = Counter(chunk.type for chunk in labeled)

    types = sorted(predicted_of.keys() | labeled_of.keys())
    return {name: ChunkScores(correct_of[name], predicted_of[name], labeled_of[name]) for name in types}


def chunks(sentences: Iterable[Sequence[str]]) -> list[Chunk]:
    """Return the chunks of tagged sentences, in order."""
    # An O after each sentence ends its last chunk.
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
    """Return whether a chunk ended with the previous word, whose tag is `before`."""
    if before.prefix in ("E", "S"):
        return True
    if before.prefix in ("B", "I") and tag.prefix in ("B", "S", "O"):
        return True

    return is_inside(before) and before.type != tag.type


def begins_chunk(before: Tag, tag: Tag) -> bool:
    """Return whether a chunk begins with this word, whose tag is `tag`."""
    if tag.prefix in ("B", "S"):
        return True
    if tag.prefix in ("E", "I") and before.prefix in ("E", "S", "O"):
        return True

    return is_inside(tag) and before.type != tag.type


def is_inside(tag: Tag) -> bool:
    """Return whether a word belongs to a chunk."""
    # conlleval also reads an older scheme with brackets, in which "." marks a word outside any chunk.
    return tag.prefix not in (OUTSIDE, ".")


def check_lengths(predictions: TaggedSentences, references: TaggedSentences) -> None:
    """Raise ValueError if there are no sentences, or if a sentence has more or fewer predicted tags than words."""
    if len(predictions) != len(references) or len(references) == 0:
        raise ValueError(
            f"{len(predictions)} predicted sentences and {len(references)} labeled ones cannot be compared: expected "
            "as many, and at least one"
        )

    for number, (predicted, labeled) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(labeled):
            raise ValueError(f"sentence {number} has {len(labeled)} words, but {len(predicted)} predicted tags")
