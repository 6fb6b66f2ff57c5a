"""Makes the pairs of a shard for many documents at once, by the rules of nsp_sop.py.

Documents do not depend on each other, and the n-th random number of a document is a function of its key and n
(schemas/randomness.py). So all documents make their first row in one set of array operations, then their second, and so
on. Once few documents are left, array operations take longer than making their rows one by one, and nsp_sop.py finishes
them. Rows are equal either way.

A method with the name of a function in nsp_sop.py does the same for all documents; the reasons for the rules are there.
Each document must draw its random numbers in the same order as there.

Shape suffixes: D documents of the shard, A documents that are not finished, R rows. D1 has one element more than D. R7
has the columns of PairRow; so has A7, with one row per unfinished document.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.pairs.nsp_sop import (
    ALONE,
    CUT,
    EXCHANGED,
    IN_ORDER,
    RANDOM,
    TOO_SHORT,
    DocumentLedger,
    DocumentState,
    EncodedCorpus,
    PairingOptions,
    PairRow,
    document_key,
    rows_of_document,
)
from schemas.randomness import U64, Draws, numbers

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Which = Ints | Bools | slice
ALL = slice(None)

FEWEST_IN_STEP = 24
"""With fewer documents than this, making rows one by one is faster."""

_HALF = np.uint64(1 << 63)
"""A random number shows heads if it is at least this: `uniform() >= 0.5` for one document."""

_COLUMNS = len(PairRow._fields)
_A_START, _A_END, _B_START, _B_END, _LABEL, _DOCUMENT_A, _DOCUMENT_B = range(_COLUMNS)
_SEGMENTS = [_A_START, _A_END, _B_START, _B_END]
_SEGMENTS_EXCHANGED = [_B_START, _B_END, _A_START, _A_END]


@dataclass
class Pairs:
    """The rows of a shard in reading order, (R, 7) int64 with the columns of PairRow, and what was left out."""

    rows_R7: Ints = field(default_factory=lambda: np.zeros((0, _COLUMNS), dtype=np.int64))
    ledger: DocumentLedger = field(default_factory=Counter)


def pair_sentences(corpus: EncodedCorpus, pairing: PairingOptions, special_tokens: int, pass_number: int) -> Pairs:
    """Return the rows of a shard.

    `special_tokens`: how many special tokens the layout adds to a row (3 for BERT, 4 for RoBERTa). Each `pass_number`
    gives different rows.
    """
    pairs = Pairs()
    documents = len(corpus.document_ids_D)
    if pairing.objective == "nsp" and len(np.unique(corpus.document_ids_D)) < 2:
        pairs.ledger.update((ALONE, j) for j in range(documents))
        return pairs

    is_long_D = np.diff(corpus.document_offsets_D1) >= 2
    pairs.ledger.update((TOO_SHORT, j) for j in np.flatnonzero(~is_long_D).tolist())

    max_tokens = pairing.max_length - special_tokens
    made = _PairsInStep(corpus, pairing, max_tokens, pass_number)
    made.begin(np.flatnonzero(is_long_D))
    while len(made.document_A) >= FEWEST_IN_STEP:
        made.make_next_rows()
    made.finish_one_by_one()

    pairs.rows_R7 = made.rows_in_reading_order()
    pairs.ledger.update({(CUT, j): int(made.cut_D[j]) for j in np.flatnonzero(made.cut_D).tolist()})
    return pairs


class _PairsInStep:
    """The state of all documents that are not finished, and the rows made so far.

    document_A: their numbers in the shard. _position_A: the next sentence of each, which begins a chunk.
    _last_A: where the document's sentences end. _target_A: how many tokens its rows aim for.
    cut_D: tokens cut so far from the rows of each document of the shard.
    """

    def __init__(self, corpus: EncodedCorpus, pairing: PairingOptions, max_tokens: int, pass_number: int):
        self._corpus = corpus
        self._tokens = corpus.sentence_offsets_N1
        self._pairing = pairing
        self._max_tokens = max_tokens
        self._pass_number = pass_number

        self._rows: list[Ints] = []
        self.cut_D = np.zeros(len(corpus.document_ids_D), dtype=np.int64)

    def begin(self, documents: Ints) -> None:
        """Start with these documents, which have at least two sentences each: draw the targets of their rows."""
        corpus = self._corpus
        ids = corpus.document_ids_D[documents].tolist()
        keys = [document_key(self._pairing, self._pass_number, document_id) for document_id in ids]

        self.document_A = documents
        self._draws = DrawsInStep(np.array(keys, dtype=np.uint64))
        self._position_A = corpus.document_offsets_D1[documents]
        self._last_A = corpus.document_offsets_D1[documents + 1]
        self._target_A = np.full(len(documents), self._max_tokens, dtype=np.int64)

        # Short rows reduce the mismatch with fine-tuning, where texts are often shorter (comment in Google's code).
        uniform_A = (self._draws.numbers() >> np.uint64(11)).astype(np.float64) * 2.0**-53
        is_short_A = uniform_A < self._pairing.short_seq_prob
        self._target_A[is_short_A] = 2 + self._draws.below(self._max_tokens - 1, is_short_A)

    def make_next_rows(self) -> None:
        """Make the next row of each document, then drop the documents that are finished."""
        start_A, end_A = self._chunks()
        middle_A = start_A + 1 + self._draws.below(end_A - start_A - 1)
        in_order_A = self._draws.numbers() >= _HALF

        if self._pairing.objective == "nsp":
            rows_A7 = self._nsp_rows(start_A, middle_A, end_A, in_order_A)
        else:
            rows_A7 = self._sop_rows(start_A, middle_A, end_A, in_order_A)

        self._truncate(rows_A7)
        self._rows.append(rows_A7)
        self._keep(self._position_A < self._last_A)

    def finish_one_by_one(self) -> None:
        """Make the remaining rows of all unfinished documents, one document at a time."""
        for a, j in enumerate(self.document_A.tolist()):
            state = DocumentState(int(self._position_A[a]), int(self._target_A[a]), self._draws.of_one(a))

            rows = []
            for row, cut in rows_of_document(self._corpus, j, self._pairing, self._max_tokens, state):
                rows.append(row)
                self.cut_D[j] += cut
            self._rows.append(np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS))

    def rows_in_reading_order(self) -> Ints:
        """Return (R, 7) all rows, document by document."""
        rows_R7 = np.concatenate([np.zeros((0, _COLUMNS), dtype=np.int64), *self._rows])

        # A document's rows are already in order among themselves, and a stable sort keeps that order.
        return rows_R7[np.argsort(rows_R7[:, _DOCUMENT_A], kind="stable")]

    def _chunks(self) -> tuple[Ints, Ints]:
        """Return (start_A, end_A): the sentences of each document's next chunk, as `nsp_sop.chunk` does."""
        start_A = self._position_A
        end_A = self._sentences_until(start_A, self._last_A, self._target_A)

        # A chunk of one sentence borrows the next one or, at the document's end, the one before.
        is_single_A = end_A - start_A == 1
        has_next_A = end_A < self._last_A
        borrows_next_A = is_single_A & has_next_A
        borrows_previous_A = is_single_A & ~has_next_A
        return start_A - borrows_previous_A, end_A + borrows_next_A

    def _sentences_until(self, start_A: Ints, last_A: Ints, target_A: Ints) -> Ints:
        """Return (A,) the ends of runs of sentences, as `nsp_sop.sentences_until` does."""
        end_A = np.searchsorted(self._tokens, self._tokens[start_A] + target_A)
        return np.clip(end_A, start_A + 1, last_A)

    def _nsp_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and advance. `in_order_A` is false where B must be random."""
        rows_A7 = self._rows_of(start_A, middle_A, end_A)
        position_before_A = self._position_A
        self._position_A = end_A.copy()

        # Only documents whose B is random from here on; arrays without a suffix have one element for each.
        random = np.flatnonzero(~in_order_A)
        position = position_before_A[random]

        # As in `nsp_rows`: a sentence borrowed from before the chunk is given back.
        has_borrowed = start_A[random] < position
        start = np.where(has_borrowed, position, start_A[random])
        middle = np.where(has_borrowed, end_A[random], middle_A[random])

        other = self._other_documents(random)
        length_a = self._tokens[middle] - self._tokens[start]
        b_start, b_end = self._random_sentences(other, self._target_A[random] - length_a, random)

        rows_A7[random, _A_START] = self._tokens[start]
        rows_A7[random, _A_END] = self._tokens[middle]
        rows_A7[random, _B_START] = self._tokens[b_start]
        rows_A7[random, _B_END] = self._tokens[b_end]
        rows_A7[random, _LABEL] = RANDOM
        rows_A7[random, _DOCUMENT_B] = other

        # The sentences after A are put back: the next chunk begins with them.
        self._position_A[random] = middle
        return rows_A7

    def _random_sentences(self, documents: Ints, target: Ints, which: Ints) -> tuple[Ints, Ints]:
        """Draw sentences (start, end) of these documents, as `nsp_sop.random_sentences` does.

        which: the documents whose random streams are used.
        """
        first = self._corpus.document_offsets_D1[documents]
        last = self._corpus.document_offsets_D1[documents + 1]
        start = first + self._draws.below(last - first, which)
        return start, self._sentences_until(start, last, target)

    def _sop_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and advance."""
        rows_A7 = self._rows_of(start_A, middle_A, end_A)

        exchanged = rows_A7[~in_order_A]
        exchanged[:, _SEGMENTS] = exchanged[:, _SEGMENTS_EXCHANGED]
        exchanged[:, _LABEL] = EXCHANGED
        rows_A7[~in_order_A] = exchanged

        self._position_A = end_A
        return rows_A7

    def _rows_of(self, start_A: Ints, middle_A: Ints, end_A: Ints) -> Ints:
        """Return (A, 7) rows whose segments are the two parts of a chunk, in order."""
        middles = self._tokens[middle_A]
        in_order = np.full(len(start_A), IN_ORDER)
        columns = [self._tokens[start_A], middles, middles, self._tokens[end_A], in_order]
        return np.stack([*columns, self.document_A, self.document_A], axis=1)

    def _other_documents(self, which: Ints) -> Ints:
        """Draw another document for each of these documents, until its id differs."""
        ids_D = self._corpus.document_ids_D
        own = ids_D[self.document_A[which]]
        other = self._draws.below(len(ids_D), which)

        again = np.flatnonzero(ids_D[other] == own)
        while len(again) > 0:
            other[again] = self._draws.below(len(ids_D), which[again])
            again = again[ids_D[other[again]] == own[again]]
        return other

    def _truncate(self, rows_A7: Ints) -> None:
        """Cut rows that are too long, in place. See `nsp_sop.truncate` for the reasons."""
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

        until_equal = np.minimum(excess, np.abs(length_a - length_b))
        in_turns = excess - until_equal
        from_b = (in_turns + 1) // 2
        from_b[length_b >= length_a] += until_equal[length_b >= length_a]
        from_a = excess - from_b

        front_b = self._draws.fair_coins(from_b, long)
        front_a = self._draws.fair_coins(from_a, long)
        rows_A7[long, _A_START] += front_a
        rows_A7[long, _A_END] -= from_a - front_a
        rows_A7[long, _B_START] += front_b
        rows_A7[long, _B_END] -= from_b - front_b

    def _keep(self, is_kept_A: Bools) -> None:
        """Drop the documents that are finished."""
        if is_kept_A.all():
            return
        self.document_A = self.document_A[is_kept_A]
        self._draws = self._draws.only(is_kept_A)
        self._position_A = self._position_A[is_kept_A]
        self._last_A = self._last_A[is_kept_A]
        self._target_A = self._target_A[is_kept_A]


class DrawsInStep:
    """Random numbers for A documents at once, equal in value and order to those of `Draws` with each document's key.

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

    def of_one(self, a: int) -> Draws:
        """Return the stream of one document, at its current position."""
        draws = Draws(int(self._key_A[a]))
        draws.skip(int(self._drawn_A[a]))
        return draws

    def numbers(self, which: Which = ALL) -> U64:
        """Return (A,) uint64: the next random number of each selected document, as `Draws.number` does."""
        drawn = numbers(self._key_A[which], self._drawn_A[which])
        self._drawn_A[which] += 1
        return drawn

    def below(self, limit: Ints | int, which: Which = ALL) -> Ints:
        """Return the next draw of each document as an integer in [0, limit), as `Draws.below` does.

        That is number * limit >> 64. The product has up to 96 bits, so it is computed in two halves. limit < 2**32.
        """
        number = self.numbers(which)
        limits = np.asarray(limit).astype(np.uint64)
        low = (number & np.uint64(0xFFFFFFFF)) * limits >> np.uint64(32)
        high = (number >> np.uint64(32)) * limits
        return ((high + low) >> np.uint64(32)).astype(np.int64)

    def fair_coins(self, coins: Ints, which: Ints) -> Ints:
        """Toss `coins` fair coins for each document, and return how many show heads, as `nsp_sop.fair_coins` does."""
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
