"""Rows as ranges of one long token array, special tokens at its end, so that a whole shard is copied at once.

    [CLS] A [SEP] B [SEP]     <s> A </s></s> B </s>     [CLS] stretch [SEP] stretch [SEP]

Letters: R rows, N ranges, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.full_sentences import SentenceRange
from pipeline.pairs.nsp_sop import EncodedCorpus, PairRow
from schemas import shards
from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import Vocabulary

Ints = NDArray[np.int64]
NO_LABEL = -1  # null in the shard


@dataclass(frozen=True)
class Tokens:
    """A text shard as token ids: `corpus` says where sentences and documents lie in ids_T.

    sources: of the corpus' documents. empty: the sources of documents that hold no token.
    """

    ids_T: NDArray[np.int32]
    starts_T: NDArray[np.bool_]
    corpus: EncodedCorpus
    sources: list[str]
    empty: list[str]


@dataclass(frozen=True)
class RowLayout:
    """R rows: row r is the ranges bounds_R1[r] : bounds_R1[r + 1], laid end to end. Labels are 0, 1 or NO_LABEL.

    documents_R2 are the numbers of the row's first and last document in the shard. segments_R4 are the token ranges of
    A and B, four numbers a row, where there are two.
    """

    starts_N: Ints
    lengths_N: Ints
    bounds_R1: Ints
    segment_b_R: Ints
    label_R: Ints
    documents_R2: Ints
    segments_R4: Ints | None = None

    def tokens(self) -> Ints:
        """(R,) how long each row is."""
        return np.diff(offsets_of(self.lengths_N)[self.bounds_R1])

    def take(self, order: Ints) -> RowLayout:
        """The rows in another order."""
        first, count = self.bounds_R1[order], np.diff(self.bounds_R1)[order]
        return RowLayout(
            take_ranges(self.starts_N, first, count),
            take_ranges(self.lengths_N, first, count),
            offsets_of(count),
            self.segment_b_R[order],
            self.label_R[order],
            self.documents_R2[order],
            None if self.segments_R4 is None else self.segments_R4[order],
        )


def special_tokens(vocabulary: Vocabulary) -> tuple[list[int], list[int], list[int]]:
    """The ids before A, between A and B, and after B. Example for BERT: `([CLS], [SEP], [SEP])`."""
    cls, sep = vocabulary.special_id("cls"), vocabulary.special_id("sep")
    return [cls], [sep] * vocabulary.separators, [sep]


def lay_pairs(rows: list[PairRow], tokens: int, between: int) -> RowLayout:
    """Two segments a row; the special tokens lie after the shard's own `tokens`, `between` of them between A and B."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 7)
    a_start, a_end, b_start, b_end, label, document_a, document_b = table.T
    one = np.ones_like(a_start)
    starts = [tokens * one, a_start, (tokens + 1) * one, b_start, (tokens + 1) * one]
    lengths = [one, a_end - a_start, between * one, b_end - b_start, one]
    return RowLayout(
        np.stack(starts, axis=1).ravel(),
        np.stack(lengths, axis=1).ravel(),
        np.arange(len(table) + 1) * 5,
        lengths[0] + lengths[1] + lengths[2],
        label,
        np.stack([document_a, document_b], axis=1),
        table[:, :4],
    )


def lay_sentences(rows: list[list[SentenceRange]], tokens: int) -> RowLayout:
    """One segment a row: each stretch and a separator after it; the special tokens lie after the shard's `tokens`."""
    ranges = np.array(
        [part for row in rows for part in chain([(tokens, 1)], *(_with_separator(s, tokens) for s in row))], np.int64
    ).reshape(-1, 2)
    bounds_R1 = offsets_of(np.array([1 + 2 * len(row) for row in rows], dtype=np.int64))
    lengths_R = np.diff(offsets_of(ranges[:, 1])[bounds_R1])
    documents_R2 = np.array([(row[0].document, row[-1].document) for row in rows], np.int64).reshape(-1, 2)
    return RowLayout(ranges[:, 0], ranges[:, 1], bounds_R1, lengths_R, np.full(len(rows), NO_LABEL), documents_R2)


def _with_separator(stretch: SentenceRange, tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (stretch.start, stretch.end - stretch.start), (tokens + 1, 1)


def to_table(laid: RowLayout, tokens: Tokens, vocabulary: Vocabulary) -> pa.Table:
    """The rows as Arrow columns, special tokens in their places."""
    before, between, after = special_tokens(vocabulary)
    specials = np.array([*before, *between, *after], dtype=np.int32)
    ids_T = take_ranges(np.concatenate([tokens.ids_T, specials]), laid.starts_N, laid.lengths_N)
    unstarted = np.zeros(len(specials), dtype=bool)
    starts_T = take_ranges(np.concatenate([tokens.starts_T, unstarted]), laid.starts_N, laid.lengths_N)
    offsets = pa.array(offsets_of(laid.tokens()).astype(np.int32))
    schema = shards.pairs_schema(vocabulary.size)
    documents_R2 = np.array(tokens.corpus.ids, dtype=np.uint64)[laid.documents_R2]
    columns = [
        pa.ListArray.from_arrays(offsets, pa.array(ids_T, schema.types[0].value_type)),
        pa.array(laid.segment_b_R.astype(np.int32)),
        pa.array(laid.label_R.astype(np.int8), mask=laid.label_R == NO_LABEL),
        pa.ListArray.from_arrays(offsets, pa.array(starts_T)),
        pa.array(documents_R2[:, 0]),
        pa.array(documents_R2[:, 1]),
    ]
    return pa.table(columns, schema=schema)
