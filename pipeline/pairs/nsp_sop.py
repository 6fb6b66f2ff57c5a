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

Documents do not depend on each other, so all of them advance in step: the first row of each is made by one set of array
operations, then the second of each, and so on until the longest document ends. Everything works on offsets; no token is
read. All random numbers of a document come from one stream, and the order in which they are drawn decides the rows: do
not change it. tests/pipeline/pairs/test_nsp_sop_reference.py states the same rules for one document, with lists.

Shape suffixes: D documents of the shard, A documents that are not finished, R rows. D1 has one element more than D. R7
has the columns of PairRow; so has A7, with one row per unfinished document.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from pipeline.pairs.corpus import DocumentLedger, EncodedCorpus, PairOptions
from schemas.ragged import Bools, Ints
from schemas.randomness import U64, key, numbers, scaled

Which = Ints | Bools | slice
ALL = slice(None)

ALONE = "the shard's only document: no other to draw from"
TOO_SHORT = "document of fewer than two sentences"
CUT = "tokens cut from segments too long for a row"

IN_ORDER = 0  # B follows A
RANDOM = 1  # NSP: B is from another document
EXCHANGED = 1  # SOP: A follows B

MOST_DRAWS = 64
"""Draws of another document, each among all of a shard. Only if nearly all are copies of one do as many fail."""

_HALF = np.uint64(1 << 63)
"""A random number shows heads if it is at least this."""


class PairRow(NamedTuple):
    """Two segments as token ranges (end not included), the label, and the numbers of their documents in the shard."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    label: int
    document_a: int
    document_b: int


_A_START, _A_END, _B_START, _B_END = range(4)
_DOCUMENT_A = PairRow._fields.index("document_a")


def pair_sentences(
    corpus: EncodedCorpus, options: PairOptions, special_tokens: int, pass_number: int
) -> tuple[Ints, DocumentLedger]:
    """Return the rows of a shard in reading order, (R, 7) int64, and what was left out or cut.

    `special_tokens`: how many special tokens the layout adds to a row (3 for BERT, 4 for RoBERTa). Each `pass_number`
    gives different rows.
    """
    ledger: DocumentLedger = Counter()
    if options.objective == "nsp" and len(np.unique(corpus.document_ids_D)) < 2:
        ledger.update((ALONE, j) for j in range(len(corpus.document_ids_D)))
        return _no_rows(), ledger

    is_long_D = np.diff(corpus.document_offsets_D1) >= 2
    ledger.update((TOO_SHORT, j) for j in np.flatnonzero(~is_long_D).tolist())

    made = _PairsInStep(corpus, options, options.max_length - special_tokens)
    made.begin(np.flatnonzero(is_long_D), pass_number)
    while len(made.document_A) > 0:
        made.make_next_rows()

    ledger.update({(CUT, j): int(made.cut_D[j]) for j in np.flatnonzero(made.cut_D).tolist()})
    return made.rows_in_reading_order(), ledger


def _no_rows() -> Ints:
    return np.zeros((0, len(PairRow._fields)), dtype=np.int64)


class _PairsInStep:
    """The state of all documents that are not finished, and the rows made so far.

    document_A: their numbers in the shard. _position_A: the next sentence of each, which begins a chunk.
    _last_A: where the document's sentences end. _target_A: how many tokens its rows aim for.
    cut_D: tokens cut so far from the rows of each document of the shard.
    """

    def __init__(self, corpus: EncodedCorpus, options: PairOptions, max_tokens: int):
        self._corpus = corpus
        self._tokens = corpus.sentence_offsets_N1
        self._options = options
        self._max_tokens = max_tokens

        self._rows: list[Ints] = []
        self.cut_D = np.zeros(len(corpus.document_ids_D), dtype=np.int64)

    def begin(self, documents: Ints, pass_number: int) -> None:
        """Start with these documents, which have at least two sentences each: draw the targets of their rows."""
        corpus = self._corpus
        purpose = (self._options.seed, "pairs", self._options.objective, pass_number)
        keys = [key(*purpose, document_id) for document_id in corpus.document_ids_D[documents].tolist()]

        self.document_A = documents
        self._draws = DrawsInStep(np.array(keys, dtype=np.uint64))
        self._position_A = corpus.document_offsets_D1[documents]
        self._last_A = corpus.document_offsets_D1[documents + 1]
        self._target_A = np.full(len(documents), self._max_tokens, dtype=np.int64)

        # Short rows reduce the mismatch with fine-tuning, where texts are often shorter (comment in Google's code).
        uniform_A = (self._draws.numbers() >> np.uint64(11)).astype(np.float64) * 2.0**-53
        is_short_A = uniform_A < self._options.short_seq_prob
        self._target_A[is_short_A] = 2 + self._draws.below(self._max_tokens - 1, is_short_A)

    def make_next_rows(self) -> None:
        """Make the next row of each document, then drop the documents that are finished."""
        start_A, end_A = self._chunks()
        middle_A = start_A + 1 + self._draws.below(end_A - start_A - 1)
        in_order_A = self._draws.numbers() >= _HALF

        if self._options.objective == "nsp":
            rows_A7 = self._nsp_rows(start_A, middle_A, end_A, in_order_A)
        else:
            rows_A7 = self._sop_rows(start_A, middle_A, end_A, in_order_A)

        self._truncate(rows_A7)
        self._rows.append(rows_A7)
        self._keep(self._position_A < self._last_A)

    def rows_in_reading_order(self) -> Ints:
        """Return (R, 7) all rows, document by document."""
        rows_R7 = np.concatenate([_no_rows(), *self._rows])

        # A document's rows are already in order among themselves, and a stable sort keeps that order.
        return rows_R7[np.argsort(rows_R7[:, _DOCUMENT_A], kind="stable")]

    def _chunks(self) -> tuple[Ints, Ints]:
        """Return (start_A, end_A): the sentences of each document's next chunk, at least two."""
        start_A = self._position_A
        end_A = self._sentences_until(start_A, self._last_A, self._target_A)

        # A chunk of one sentence borrows the next one or, at the document's end, the one before.
        is_single_A = end_A - start_A == 1
        has_next_A = end_A < self._last_A
        return start_A - (is_single_A & ~has_next_A), end_A + (is_single_A & has_next_A)

    def _sentences_until(self, start_A: Ints, last_A: Ints, target_A: Ints) -> Ints:
        """Return (A,) the ends of the shortest runs of sentences from `start_A` with `target_A` tokens.

        A run has at least one sentence and ends at `last_A` at most.
        """
        end_A = self._tokens.searchsorted(self._tokens[start_A] + target_A)
        return np.minimum(np.maximum(end_A, start_A + 1), last_A)

    def _nsp_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and advance. `in_order_A` is false where B must be random."""
        label_A = np.full(len(start_A), IN_ORDER)
        halves = self._halves(start_A, middle_A, end_A)
        rows_A7 = np.array([*halves[0], *halves[1], label_A, self.document_A, self.document_A]).T
        position_before_A = self._position_A
        self._position_A = end_A

        # Only documents whose B is random from here on; arrays without a suffix have one element for each.
        random = np.flatnonzero(~in_order_A)
        if len(random) == 0:
            return rows_A7

        # A sentence borrowed from before the chunk is in an earlier row already, and was needed only for a B in order.
        # Without it the chunk is one sentence, which becomes A.
        position = position_before_A[random]
        has_borrowed = start_A[random] < position
        start = np.where(has_borrowed, position, start_A[random])
        middle = np.where(has_borrowed, end_A[random], middle_A[random])

        other = self._other_documents(random)
        length_a = self._tokens[middle] - self._tokens[start]
        b_start, b_end = self._random_sentences(other, self._target_A[random] - length_a, random)

        segments = self._tokens[np.array([start, middle, b_start, b_end])]
        rows_A7[random] = np.array([*segments, np.full(len(random), RANDOM), self.document_A[random], other]).T

        # The sentences after A are put back: the next chunk begins with them.
        self._position_A[random] = middle
        return rows_A7

    def _random_sentences(self, documents: Ints, target: Ints, which: Ints) -> tuple[Ints, Ints]:
        """Draw sentences (start, end) of these documents, from a random one until `target` tokens or the last.

        which: the documents whose random streams are used.
        """
        first = self._corpus.document_offsets_D1[documents]
        last = self._corpus.document_offsets_D1[documents + 1]
        start = first + self._draws.below(last - first, which)
        return start, self._sentences_until(start, last, target)

    def _sop_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and advance."""
        self._position_A = end_A
        first, second = self._halves(start_A, middle_A, end_A)
        segments = [*np.where(in_order_A, first, second), *np.where(in_order_A, second, first)]
        label_A = np.where(in_order_A, IN_ORDER, EXCHANGED)
        return np.array([*segments, label_A, self.document_A, self.document_A]).T

    def _halves(self, start_A: Ints, middle_A: Ints, end_A: Ints) -> tuple[Ints, Ints]:
        """Return the tokens of a chunk's first part and of the rest, each as (2, A) starts and ends."""
        tokens_3A = self._tokens[np.array([start_A, middle_A, end_A])]
        return tokens_3A[:2], tokens_3A[1:]

    def _other_documents(self, which: Ints) -> Ints:
        """Draw another document for each of these documents, until its id differs."""
        ids_D = self._corpus.document_ids_D
        own = ids_D[self.document_A[which]]
        other = self._draws.below(len(ids_D), which)

        again = np.flatnonzero(ids_D[other] == own)
        for _ in range(MOST_DRAWS):
            if len(again) == 0:
                return other
            other[again] = self._draws.below(len(ids_D), which[again])
            again = again[ids_D[other[again]] == own[again]]

        for place in again:  # almost all documents are copies of this one
            others = np.flatnonzero(ids_D != own[place])
            other[place] = others[self._draws.below(len(others), which[[place]])[0]]
        return other

    def _truncate(self, rows_A7: Ints) -> None:
        """Drop tokens of rows that are too long, in place, as Google's truncate_seq_pair does one at a time."""
        length_a_A = rows_A7[:, _A_END] - rows_A7[:, _A_START]
        length_b_A = rows_A7[:, _B_END] - rows_A7[:, _B_START]
        excess_A = length_a_A + length_b_A - self._max_tokens
        long = np.flatnonzero(excess_A > 0)
        if len(long) == 0:
            return

        # Arrays without a suffix have one element for each row that is too long.
        excess = excess_A[long]
        length_a = length_a_A[long]
        length_b = length_b_A[long]
        self.cut_D[self.document_A[long]] += excess  # a document is in `long` once at most

        # First the longer segment shrinks to the length of the other. Then both take turns, beginning with B.
        until_equal = np.minimum(excess, np.abs(length_a - length_b))
        in_turns = excess - until_equal
        from_b = (in_turns + 1) // 2 + until_equal * (length_b >= length_a)
        from_a = excess - from_b

        # A fair coin decides for each token whether it is cut from the front or the back, so only the number of heads
        # matters.
        front_b = self._draws.fair_coins(from_b, long)
        front_a = self._draws.fair_coins(from_a, long)
        rows_A7[long, _A_START] += front_a
        rows_A7[long, _A_END] -= from_a - front_a
        rows_A7[long, _B_START] += front_b
        rows_A7[long, _B_END] -= from_b - front_b

    def _keep(self, is_kept_A: Bools) -> None:
        if is_kept_A.all():
            return
        self.document_A = self.document_A[is_kept_A]
        self._draws = self._draws.only(is_kept_A)
        self._position_A = self._position_A[is_kept_A]
        self._last_A = self._last_A[is_kept_A]
        self._target_A = self._target_A[is_kept_A]


class DrawsInStep:
    """Random numbers for A documents at once, from a stream for each: numbers(key, 0), numbers(key, 1), ...

    Each call draws one number, or several, for all documents or for some of them. `which` selects those: an index into
    arrays of A elements, in which each document occurs at most once.
    """

    def __init__(self, key_A: U64, drawn_A: Ints | None = None):
        """Start at the beginning of each key's stream, or after `drawn_A` numbers."""
        self._key_A = key_A
        self._drawn_A = np.zeros(len(key_A), dtype=np.int64) if drawn_A is None else drawn_A

    def only(self, which: Which) -> DrawsInStep:
        """Return the streams of these documents alone, at their current positions."""
        return DrawsInStep(self._key_A[which], self._drawn_A[which])

    def numbers(self, which: Which = ALL) -> U64:
        """Return (A,) uint64: the next random number of each selected document."""
        drawn = numbers(self._key_A[which], self._drawn_A[which])
        self._drawn_A[which] += 1
        return drawn

    def below(self, limit: Ints | int, which: Which = ALL) -> Ints:
        """Return the next draw of each document as an integer in [0, limit)."""
        return scaled(self.numbers(which), limit).astype(np.int64)

    def fair_coins(self, coins: Ints, which: Ints) -> Ints:
        """Toss `coins` fair coins for each document, and return how many show heads.

        Heads are the set bits among the lowest bits of as many random numbers as hold the coins.
        """
        heads = np.zeros(len(coins), dtype=np.int64)
        left = coins.copy()
        tossing = np.flatnonzero(left)

        while len(tossing) > 0:
            tossed = np.minimum(left[tossing], 64)
            unused_bits = (64 - tossed).astype(np.uint64)
            lowest_bits = self.numbers(which[tossing]) << unused_bits
            heads[tossing] += np.bitwise_count(lowest_bits)

            left[tossing] -= tossed
            tossing = tossing[left[tossing] > 0]
        return heads
