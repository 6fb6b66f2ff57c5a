"""Lay rows out as Arrow columns: special tokens are put in place, and a whole shard is copied in one operation.

A row is a list of ranges of one long token array. The special tokens are at the end of that array, so that they are
ranges like any other and no row needs a copy of its own:

    nsp, sop (BERT)      [CLS] A [SEP] B [SEP]
    nsp, sop (RoBERTa)   <s> A </s></s> B </s>
    without pairs        [CLS] text of one document [SEP] text of the next document [SEP]

Shape suffixes: R rows, N ranges of all rows, T tokens. R1 has one element more than R; R2 and R4 are two-dimensional.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.full_sentences import SentenceRange
from pipeline.pairs.nsp_sop import EncodedCorpus, PairRow
from schemas import shards
from schemas.ragged import offsets_of, take_ranges
from schemas.vocabulary import Vocabulary

Ints = NDArray[np.int64]
NO_PAIR_LABEL = -1  # null in the shard


@dataclass(frozen=True)
class EncodedDocuments:
    """A text shard as token ids."""

    ids_T: NDArray[np.int32]
    word_starts_T: NDArray[np.bool_]
    corpus: EncodedCorpus
    """Where sentences and documents are in `ids_T`."""
    sources: list[str]
    """Of the corpus's documents."""
    empty_sources: list[str]
    """The sources of documents that hold no token, which are not in the corpus."""


@dataclass(frozen=True)
class RowLayout:
    """R rows: row r is the ranges range_offsets_R1[r] : range_offsets_R1[r + 1], end to end.

    label_R is 0, 1 or NO_PAIR_LABEL. documents_R2 are the numbers of the row's first and last document in the shard.
    segments_R4 are start and end of A and of B in the shard's tokens; None for rows without pairs.
    """

    range_starts_N: Ints
    range_lengths_N: Ints
    range_offsets_R1: Ints
    segment_b_start_R: Ints
    label_R: Ints
    documents_R2: Ints
    segments_R4: Ints | None = None

    def lengths(self) -> Ints:
        """Return (R,) the number of tokens of each row."""
        return lengths_of_rows(self.range_lengths_N, self.range_offsets_R1)

    def take(self, order_R: Ints) -> RowLayout:
        """Return the rows in another order."""
        first_range_R = self.range_offsets_R1[order_R]
        ranges_R = np.diff(self.range_offsets_R1)[order_R]
        segments_R4 = None if self.segments_R4 is None else self.segments_R4[order_R]
        return RowLayout(
            range_starts_N=take_ranges(self.range_starts_N, first_range_R, ranges_R),
            range_lengths_N=take_ranges(self.range_lengths_N, first_range_R, ranges_R),
            range_offsets_R1=offsets_of(ranges_R),
            segment_b_start_R=self.segment_b_start_R[order_R],
            label_R=self.label_R[order_R],
            documents_R2=self.documents_R2[order_R],
            segments_R4=segments_R4,
        )


def lengths_of_rows(range_lengths_N: Ints, range_offsets_R1: Ints) -> Ints:
    """Return (R,) the number of tokens of each row."""
    tokens_before_N1 = offsets_of(range_lengths_N)
    return np.diff(tokens_before_N1[range_offsets_R1])


@dataclass(frozen=True)
class SpecialTokens:
    """The ids before A, between A and B, and after B. Example for BERT: `([CLS], [SEP], [SEP])`."""

    before: list[int]
    between: list[int]
    after: list[int]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> SpecialTokens:
        """Return the special tokens of a model's rows."""
        cls_id = vocabulary.special_id("cls")
        sep_id = vocabulary.special_id("sep")
        return cls(before=[cls_id], between=[sep_id] * vocabulary.separators, after=[sep_id])

    def all_ids(self) -> list[int]:
        """Return the ids in the order of a row, which is also their order at the end of the token array."""
        return [*self.before, *self.between, *self.after]


def lay_pairs(rows: list[PairRow], tokens: int, between: int) -> RowLayout:
    """Lay out rows of two segments.

    The special tokens follow the shard's own `tokens` tokens; `between` of them separate A and B.
    """
    table = np.array(rows, dtype=np.int64).reshape(-1, len(PairRow._fields))
    a_start_R, a_end_R, b_start_R, b_end_R, label_R, document_a_R, document_b_R = table.T

    # [CLS] is the first token after the shard's own. The separators follow it, and the last token of a row, which is a
    # separator too, is read from the same place.
    one_R = np.ones_like(a_start_R)
    cls_R = tokens * one_R
    sep_R = (tokens + 1) * one_R

    # Five ranges in each row: [CLS], A, separators, B, separator.
    starts = [cls_R, a_start_R, sep_R, b_start_R, sep_R]
    lengths = [one_R, a_end_R - a_start_R, between * one_R, b_end_R - b_start_R, one_R]
    return RowLayout(
        range_starts_N=np.stack(starts, axis=1).ravel(),
        range_lengths_N=np.stack(lengths, axis=1).ravel(),
        range_offsets_R1=np.arange(len(table) + 1) * len(starts),
        segment_b_start_R=lengths[0] + lengths[1] + lengths[2],
        label_R=label_R,
        documents_R2=np.stack([document_a_R, document_b_R], axis=1),
        segments_R4=table[:, :4],
    )


def lay_sentences(rows: list[list[SentenceRange]], tokens: int) -> RowLayout:
    """Lay out rows of one segment: the range of each document and a separator after it.

    The special tokens follow the shard's own `tokens` tokens.
    """
    cls_range = (tokens, 1)
    sep_range = (tokens + 1, 1)

    ranges = []  # (start, length)
    for row in rows:
        ranges.append(cls_range)
        for part in row:
            ranges.append((part.start, part.end - part.start))
            ranges.append(sep_range)

    ranges_N2 = np.array(ranges, dtype=np.int64).reshape(-1, 2)
    ranges_per_row_R = np.array([1 + 2 * len(row) for row in rows], dtype=np.int64)
    range_offsets_R1 = offsets_of(ranges_per_row_R)
    documents = [(row[0].document, row[-1].document) for row in rows]
    return RowLayout(
        range_starts_N=ranges_N2[:, 0],
        range_lengths_N=ranges_N2[:, 1],
        range_offsets_R1=range_offsets_R1,
        segment_b_start_R=lengths_of_rows(ranges_N2[:, 1], range_offsets_R1),  # there is no B
        label_R=np.full(len(rows), NO_PAIR_LABEL),
        documents_R2=np.array(documents, dtype=np.int64).reshape(-1, 2),
    )


def to_table(layout: RowLayout, documents: EncodedDocuments, vocabulary: Vocabulary) -> pa.Table:
    """Return the rows as Arrow columns (shards.pairs_schema), special tokens in their places."""
    special_ids = np.array(SpecialTokens.of(vocabulary).all_ids(), dtype=np.int32)
    all_ids = np.concatenate([documents.ids_T, special_ids])
    all_word_starts = np.concatenate([documents.word_starts_T, np.zeros(len(special_ids), dtype=bool)])

    ids_T = take_ranges(all_ids, layout.range_starts_N, layout.range_lengths_N)
    word_starts_T = take_ranges(all_word_starts, layout.range_starts_N, layout.range_lengths_N)
    offsets_R1 = pa.array(offsets_of(layout.lengths()).astype(np.int32))
    document_ids_R2 = np.array(documents.corpus.document_ids, dtype=np.uint64)[layout.documents_R2]

    schema = shards.pairs_schema(vocabulary.size)
    id_type = schema.field("input_ids").type.value_type
    columns = {
        "input_ids": pa.ListArray.from_arrays(offsets_R1, pa.array(ids_T, id_type)),
        "segment_b_start": pa.array(layout.segment_b_start_R.astype(np.int32)),
        "pair_label": pa.array(layout.label_R.astype(np.int8), mask=layout.label_R == NO_PAIR_LABEL),
        "word_starts": pa.ListArray.from_arrays(offsets_R1, pa.array(word_starts_T)),
        "document_a": pa.array(document_ids_R2[:, 0]),
        "document_b": pa.array(document_ids_R2[:, 1]),
    }
    return pa.table(columns, schema=schema)
