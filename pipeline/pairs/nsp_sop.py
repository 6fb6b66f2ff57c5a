"""Sentence pairs for next sentence prediction (NSP) and sentence order prediction (SOP).

This module chooses the sentences of segments A and B of each row, and the row's label. The rules are those of
google-research/bert's create_pretraining_data.py (BERT: arXiv:1810.04805, appendix A.2), and for SOP those of ALBERT
(arXiv:1909.11942, section 3.1):

    target    as many tokens as fit into a row; with probability `short_seq_prob`, drawn per document, a random length
              of at least 2 instead
    chunk     whole sentences of a document until the target is reached or the document ends
    A         the first 1 to n - 1 of the chunk's n sentences, uniformly
    B, NSP    a fair coin. Label 0: the rest of the chunk. Label 1: sentences from a random place of another document;
              the rest of the chunk is put back
    B, SOP    the rest of the chunk, and a fair coin. Label 0: in order. Label 1: A and B swapped
    too long  tokens are dropped from the longer segment (from B if equal), each from its front or back by a fair coin
              (`truncate_seq_pair` in Google's code)

Google's code gives two kinds of rows a label that is false or that no coin decided. This code differs:

 1. A chunk of one sentence leaves nothing for B. Google then takes a random B whatever the coin says, so that on short
    documents 64 % of the labels are 1. Here the chunk borrows a sentence before the label is drawn: the one after it
    or, at the document's end, the one before it. If the label is then 1, a sentence borrowed from before the chunk is
    removed from A again.
 2. Google's random document can be the same one (it stops drawing after ten attempts), and the same text can be in the
    corpus twice. Here B with label 1 always comes from a document with a different id.
 3. A document of one sentence makes no row. It is counted in the ledger.

Everything works on offsets; no token is read. All random numbers of a document come from one stream, and the order in
which they are drawn decides the rows: do not change it.

This file states the rules for one document at a time. Documents do not depend on each other, so pairs_in_step.py
applies the same rules to many at once, and returns here to finish the few longest documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.randomness import Draws, key

Objective = Literal["nsp", "sop", "full_sentences", "doc_sentences"]

DocumentLedger = Counter[tuple[str, int]]
"""Counts of what was left out or cut: (reason, number of the document in the shard) -> count."""
ALONE = "the shard's only document: no other to draw from"
TOO_SHORT = "document of fewer than two sentences"
EMPTY = "document without a token of the vocabulary"
CUT = "tokens cut from segments too long for a row"

IN_ORDER = 0  # B follows A
RANDOM = 1  # NSP: B is from another document
EXCHANGED = 1  # SOP: A follows B


@dataclass(frozen=True)
class PairingOptions:
    """The options of a job that decide how sentences become rows. `max_length` counts special tokens."""

    objective: Objective
    max_length: int
    short_seq_prob: float
    seed: int


@dataclass(frozen=True)
class EncodedCorpus:
    """The offsets of a text shard's sentences and documents in its token array.

    Sentence i is tokens sentence_offsets_N1[i] : sentence_offsets_N1[i + 1], and document j is sentences
    document_offsets_D1[j] : document_offsets_D1[j + 1]. Every document has at least one sentence, and every sentence at
    least one token.
    """

    sentence_offsets_N1: NDArray[np.int64]
    document_offsets_D1: NDArray[np.int64]
    document_ids_D: NDArray[np.uint64]

    @classmethod
    def of(cls, sentence_offsets: Any, document_offsets: Any, document_ids: Any) -> EncodedCorpus:
        """Make a corpus from any sequences of integers."""
        return cls(
            np.asarray(sentence_offsets, dtype=np.int64),
            np.asarray(document_offsets, dtype=np.int64),
            np.asarray(document_ids, dtype=np.uint64),
        )

    # Reading one element of a memoryview gives a plain int, and takes a third of the time that a numpy array takes.

    @cached_property
    def sentence_offsets(self) -> Sequence[int]:
        """sentence_offsets_N1 for code that reads one element at a time."""
        return self.sentence_offsets_N1.data

    @cached_property
    def document_offsets(self) -> Sequence[int]:
        """document_offsets_D1 for code that reads one element at a time."""
        return self.document_offsets_D1.data

    @cached_property
    def document_ids(self) -> Sequence[int]:
        """document_ids_D for code that reads one element at a time."""
        return self.document_ids_D.data


@dataclass
class DocumentState:
    """The progress of pairing one document.

    position: the next sentence, which begins a chunk. target: how many tokens its rows aim for.
    """

    position: int
    target: int
    draws: Draws


class PairRow(NamedTuple):
    """Two segments as token ranges (end not included), the label, and the numbers of their documents in the shard."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int
    document_a: int
    document_b: int


def rows_of_document(
    corpus: EncodedCorpus, j: int, pairing: PairingOptions, max_tokens: int, state: DocumentState
) -> Iterator[tuple[PairRow, int]]:
    """Yield (row, number of tokens cut from it) for document j, continuing from `state`."""
    make_rows = nsp_rows if pairing.objective == "nsp" else sop_rows

    # The generator is read row by row: truncation draws from the same stream before the next row does.
    for row in make_rows(corpus, j, state):
        length = row.a_end - row.a_start + row.b_end - row.b_start
        excess = max(0, length - max_tokens)
        yield (truncate(row, excess, state.draws) if excess > 0 else row), excess


def document_key(pairing: PairingOptions, pass_number: int, document_id: int) -> int:
    """Return the key of the random numbers that decide a document's rows."""
    return key(pairing.seed, "pairs", pairing.objective, pass_number, document_id)


def nsp_rows(corpus: EncodedCorpus, j: int, state: DocumentState) -> Iterator[PairRow]:
    """Yield document j's rows before truncation: B follows A (label 0) or comes from another document (label 1)."""
    tokens = corpus.sentence_offsets
    position = state.position
    target = state.target
    draws = state.draws
    last = corpus.document_offsets[j + 1]

    while position < last:
        start, end = chunk(tokens, position, last, target)
        middle = start + 1 + draws.below(end - start - 1)

        if draws.uniform() >= 0.5:
            yield PairRow(tokens[start], tokens[middle], tokens[middle], tokens[end], IN_ORDER, j, j)
            position = end
            continue

        # A sentence borrowed from before the chunk is in an earlier row already, and was needed only for a B in order.
        # Without it the chunk is one sentence, which becomes A.
        if start < position:
            start = position
            middle = end

        other = other_document(corpus.document_ids, j, draws)
        b_target = target - (tokens[middle] - tokens[start])
        b_start, b_end = random_sentences(corpus, other, b_target, draws)
        yield PairRow(tokens[start], tokens[middle], tokens[b_start], tokens[b_end], RANDOM, j, other)

        # The sentences after A are put back: the next chunk begins with them.
        position = middle


def sop_rows(corpus: EncodedCorpus, j: int, state: DocumentState) -> Iterator[PairRow]:
    """Yield document j's rows before truncation: two runs of sentences, in order (label 0) or swapped (label 1)."""
    tokens = corpus.sentence_offsets
    position = state.position
    target = state.target
    draws = state.draws
    last = corpus.document_offsets[j + 1]

    while position < last:
        start, end = chunk(tokens, position, last, target)
        middle = start + 1 + draws.below(end - start - 1)

        if draws.uniform() < 0.5:
            yield PairRow(tokens[middle], tokens[end], tokens[start], tokens[middle], EXCHANGED, j, j)
        else:
            yield PairRow(tokens[start], tokens[middle], tokens[middle], tokens[end], IN_ORDER, j, j)

        position = end


def other_document(document_ids: Sequence[int], j: int, draws: Draws) -> int:
    """Draw a document whose id differs from document j's. The caller ensures that one exists."""
    other = draws.below(len(document_ids))
    while document_ids[other] == document_ids[j]:
        other = draws.below(len(document_ids))
    return other


def random_sentences(corpus: EncodedCorpus, document: int, target: int, draws: Draws) -> tuple[int, int]:
    """Draw sentences (start, end) of a document, from a random one until `target` tokens or the document's end."""
    first = corpus.document_offsets[document]
    last = corpus.document_offsets[document + 1]
    start = first + draws.below(last - first)
    return start, sentences_until(corpus.sentence_offsets, start, last, target)


def chunk(tokens: Sequence[int], position: int, last: int, target: int) -> tuple[int, int]:
    """Return sentences (start, end), at least two, from `position` until `target` tokens or `last`.

    If the target leaves only one sentence, the chunk borrows the next one or, at the document's end, the one before.
    """
    end = sentences_until(tokens, position, last, target)
    if end - position > 1:
        return position, end
    if end < last:
        return position, end + 1
    return position - 1, end


def sentences_until(tokens: Sequence[int], start: int, last: int, target: int) -> int:
    """Return the end of the shortest run of sentences from `start` that has `target` tokens, at most `last`.

    The run has at least one sentence. `tokens` are sentence offsets, in tokens.
    """
    end = start + 1
    while end < last and tokens[end] - tokens[start] < target:
        end += 1
    return end


def truncate(row: PairRow, excess: int, draws: Draws) -> PairRow:
    """Drop `excess` tokens as Google's truncate_seq_pair does, one at a time from the longer segment."""
    length_a = row.a_end - row.a_start
    length_b = row.b_end - row.b_start

    # First the longer segment shrinks to the length of the other. Then both take turns, beginning with B.
    until_equal = min(excess, abs(length_a - length_b))
    in_turns = excess - until_equal
    from_b = (in_turns + 1) // 2
    if length_b >= length_a:
        from_b += until_equal
    from_a = excess - from_b

    # A fair coin decides for each token whether it is cut from the front or the back, so only the number of heads
    # matters.
    front_b = fair_coins(from_b, draws)
    front_a = fair_coins(from_a, draws)
    return row._replace(
        a_start=row.a_start + front_a,
        a_end=row.a_end - (from_a - front_a),
        b_start=row.b_start + front_b,
        b_end=row.b_end - (from_b - front_b),
    )


def fair_coins(n: int, draws: Draws) -> int:
    """Return how many of n fair coins show heads: the number of set bits among n random bits."""
    heads = 0
    while n > 0:
        coins = min(n, 64)
        heads += (draws.number() & ((1 << coins) - 1)).bit_count()
        n -= coins
    return heads
