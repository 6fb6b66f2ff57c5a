"""The pairs of a shard, many documents at once, by the rules of nsp_sop.py.

Documents do not depend on each other, and the n-th random number of a document is a function of its key and n
(schemas/randomness.py). So all documents make their first row in one set of array operations, then their second, and so
on. When few documents are left, a set of array operations takes longer than making their rows one by one, and
nsp_sop.py finishes them. Rows are equal either way.

Shape suffixes: D documents of the shard, A documents that are not finished, R rows. D1 has one element more than D.
R7 has the columns of PairRow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.pairs.draws_in_step import DrawsInStep
from pipeline.pairs.encoded_corpus import EncodedCorpus
from pipeline.pairs.nsp_sop import (
    ALONE,
    CUT,
    EXCHANGED,
    IN_ORDER,
    RANDOM,
    TOO_SHORT,
    DocumentLedger,
    DocumentState,
    PairingOptions,
    PairRow,
    document_key,
    rows_of_document,
)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEWEST_IN_STEP = 24
"""With fewer documents, making rows one by one is faster."""

_HALF = np.uint64(1 << 63)
_COLUMNS = len(PairRow._fields)


@dataclass
class Pairs:
    """The rows of a shard in reading order, (R, 7) int64 with the columns of PairRow, and what was left out of them."""

    rows_R7: Ints = field(default_factory=lambda: np.zeros((0, _COLUMNS), dtype=np.int64))
    ledger: DocumentLedger = field(default_factory=Counter)


def pair_sentences(corpus: EncodedCorpus, pairing: PairingOptions, special_tokens: int, pass_number: int) -> Pairs:
    """Return the rows of a shard.

    `special_tokens` is how many the layout adds to a row (3 for BERT, 4 for RoBERTa). Passes give different rows.
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
    """The state of all documents that are not finished, and the rows made so far."""

    def __init__(self, corpus: EncodedCorpus, pairing: PairingOptions, max_tokens: int, pass_number: int):
        self._corpus = corpus
        self._tokens = corpus.sentence_offsets_N1
        self._pairing = pairing
        self._max_tokens = max_tokens
        self._pass_number = pass_number

        self._rows: list[Ints] = []
        self.cut_D = np.zeros(len(corpus.document_ids_D), dtype=np.int64)

    def begin(self, documents: Ints) -> None:
        """Start documents, all with at least two sentences: draw the targets of their rows."""
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
        """Make the next row of each document, and drop the documents that this finishes."""
        start_A, end_A = self._chunks()
        middle_A = start_A + 1 + self._draws.below(end_A - start_A - 1)
        is_high_A = self._draws.numbers() >= _HALF

        if self._pairing.objective == "nsp":
            rows = self._nsp_rows(start_A, middle_A, end_A, is_high_A)
        else:
            rows = self._sop_rows(start_A, middle_A, end_A, is_high_A)

        self._truncate(rows)
        self._rows.append(rows)
        self._keep(self._position_A < self._last_A)

    def finish_one_by_one(self) -> None:
        """Make the remaining rows of all documents that are not finished."""
        for a, j in enumerate(self.document_A.tolist()):
            state = DocumentState(int(self._position_A[a]), int(self._target_A[a]), self._draws.of_one(a))

            rows = []
            for row, cut in rows_of_document(self._corpus, j, self._pairing, self._max_tokens, state):
                rows.append(row)
                self.cut_D[j] += cut
            self._rows.append(np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS))

    def rows_in_reading_order(self) -> Ints:
        """Return (R, 7) all rows, document after document."""
        rows_R7 = np.concatenate([np.zeros((0, _COLUMNS), dtype=np.int64), *self._rows])
        document_of_a = PairRow._fields.index("document_a")
        return rows_R7[np.argsort(rows_R7[:, document_of_a], kind="stable")]

    def _chunks(self) -> tuple[Ints, Ints]:
        """Return the sentences (start, end) of each document's next chunk, as `nsp_sop.chunk` does."""
        start_A = self._position_A
        end_A = self._sentences_until(start_A, self._last_A, self._target_A)

        is_single_A = end_A - start_A == 1
        has_next_A = end_A < self._last_A
        end_A = end_A + (is_single_A & has_next_A)
        start_A = start_A - (is_single_A & ~has_next_A)
        return start_A, end_A

    def _sentences_until(self, start_A: Ints, last_A: Ints, target_A: Ints) -> Ints:
        """Return the end of runs of sentences, as `nsp_sop.sentences_until` does."""
        end_A = np.searchsorted(self._tokens, self._tokens[start_A] + target_A)
        return np.clip(end_A, start_A + 1, last_A)

    def _nsp_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and move on."""
        rows = self._rows_of(start_A, middle_A, end_A)
        random = np.flatnonzero(~in_order_A)

        # As in `nsp_rows`: a sentence borrowed from before the chunk is given back.
        has_borrowed = start_A[random] < self._position_A[random]
        start = np.where(has_borrowed, self._position_A[random], start_A[random])
        middle = np.where(has_borrowed, end_A[random], middle_A[random])

        other = self._other_documents(random)
        first = self._corpus.document_offsets_D1[other]
        last = self._corpus.document_offsets_D1[other + 1]
        b_start = first + self._draws.below(last - first, random)
        length_a = self._tokens[middle] - self._tokens[start]
        b_end = self._sentences_until(b_start, last, self._target_A[random] - length_a)

        bounds = [self._tokens[places] for places in (start, middle, b_start, b_end)]
        label = np.full(len(random), RANDOM)
        rows[random] = np.stack([*bounds, label, self.document_A[random], other], axis=1)

        self._position_A = end_A.copy()
        self._position_A[random] = middle
        return rows

    def _sop_rows(self, start_A: Ints, middle_A: Ints, end_A: Ints, in_order_A: Bools) -> Ints:
        """Return (A, 7) rows before truncation, and move on."""
        rows = self._rows_of(start_A, middle_A, end_A)
        exchanged = np.flatnonzero(~in_order_A)
        segments = rows[exchanged, :4]
        rows[exchanged, :4] = segments[:, [2, 3, 0, 1]]
        rows[exchanged, 4] = EXCHANGED

        self._position_A = end_A
        return rows

    def _rows_of(self, start_A: Ints, middle_A: Ints, end_A: Ints) -> Ints:
        """Return (A, 7) rows whose segments are the two parts of a chunk, in order."""
        middles = self._tokens[middle_A]
        in_order = np.full(len(start_A), IN_ORDER)
        columns = [self._tokens[start_A], middles, middles, self._tokens[end_A], in_order]
        return np.stack([*columns, self.document_A, self.document_A], axis=1)

    def _other_documents(self, which: Ints) -> Ints:
        """Draw for each of these documents another one, until its id differs."""
        ids_D = self._corpus.document_ids_D
        own = ids_D[self.document_A[which]]
        other = self._draws.below(len(ids_D), which)

        again = np.flatnonzero(ids_D[other] == own)
        while len(again) > 0:
            other[again] = self._draws.below(len(ids_D), which[again])
            again = again[ids_D[other[again]] == own[again]]
        return other

    def _truncate(self, rows: Ints) -> None:
        """Cut rows that are too long, as `nsp_sop.truncate` does; the comments are there."""
        length_a = rows[:, 1] - rows[:, 0]
        length_b = rows[:, 3] - rows[:, 2]
        excess = np.maximum(0, length_a + length_b - self._max_tokens)
        long = np.flatnonzero(excess)
        if len(long) == 0:
            return

        excess = excess[long]
        length_a = length_a[long]
        length_b = length_b[long]
        self.cut_D[self.document_A[long]] += excess  # a document is in `long` once at most

        until_equal = np.minimum(excess, np.abs(length_a - length_b))
        in_turns = excess - until_equal
        from_b = (in_turns + 1) // 2 + np.where(length_b >= length_a, until_equal, 0)
        from_a = excess - from_b

        front_b = self._draws.fair_coins(from_b, long)
        front_a = self._draws.fair_coins(from_a, long)
        rows[long, 0] += front_a
        rows[long, 1] -= from_a - front_a
        rows[long, 2] += front_b
        rows[long, 3] -= from_b - front_b

    def _keep(self, is_kept_A: Bools) -> None:
        """Drop the documents that are finished."""
        if is_kept_A.all():
            return
        self.document_A = self.document_A[is_kept_A]
        self._draws = self._draws.only(is_kept_A)
        self._position_A = self._position_A[is_kept_A]
        self._last_A = self._last_A[is_kept_A]
        self._target_A = self._target_A[is_kept_A]
