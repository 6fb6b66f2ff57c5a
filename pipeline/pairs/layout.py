"""Lays rows out as Arrow columns: puts special tokens in place, and copies a batch of rows in one operation.

A row is a list of ranges of one long token array. The special tokens are at the end of that array, so that they are
ranges like any other:

    nsp, sop (BERT)      [CLS] A [SEP] B [SEP]
    nsp, sop (RoBERTa)   <s> A </s></s> B </s>
    without pairs        [CLS] text of one document [SEP] text of the next document [SEP]

Shape suffixes: R rows, N ranges of all rows, T tokens. R1 has one element more than R; R2 and R4 are two-dimensional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.corpus import EncodedCorpus
from pipeline.pairs.full_sentences import SentenceRows
from schemas.ragged import Ints, offsets_of, places_of_ranges, take_ranges
from schemas.vocabulary import Vocabulary

NO_PAIR_LABEL = -1  # null in the shard


@dataclass(frozen=True)
class EncodedDocuments:
    """A text shard as token ids.

    ids_T, word_starts_T: all tokens of the shard followed by those of `special_ids_of_row`. ids_T has the type that
    a pair shard stores.
    tokens: the number of the shard's own tokens.
    corpus: where sentences and documents are.
    sources: of the corpus's documents.
    empty_sources: of the documents without a token, which are not in the corpus.
    """

    ids_T: NDArray[np.unsignedinteger]
    word_starts_T: NDArray[np.bool_]
    tokens: int
    corpus: EncodedCorpus
    sources: list[str]
    empty_sources: list[str]


class RowBatch(NamedTuple):
    """Some consecutive rows of a shard: row r of the batch is tokens offsets_R1[r] : offsets_R1[r + 1].

    first_row: the number in the shard of the batch's first row.
    """

    ids_T: NDArray[np.unsignedinteger]
    word_starts_T: NDArray[np.bool_]
    offsets_R1: Ints
    first_row: int


@dataclass(frozen=True)
class RowLayout:
    """R rows: row r is the ranges range_offsets_R1[r] : range_offsets_R1[r + 1], end to end.

    label_R: 0, 1 or NO_PAIR_LABEL.
    documents_R2: the numbers of the row's first and last document in the shard.
    segments_R4: start and end of A, then of B, in the shard's tokens; None for rows without pairs.

    Fields other than the ranges have one value per row.
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
        """Return the rows in the order `order_R`."""
        first_range_R = self.range_offsets_R1[order_R]
        ranges_R = np.diff(self.range_offsets_R1)[order_R]
        ranges = {
            "range_starts_N": take_ranges(self.range_starts_N, first_range_R, ranges_R),
            "range_lengths_N": take_ranges(self.range_lengths_N, first_range_R, ranges_R),
            "range_offsets_R1": offsets_of(ranges_R),
        }
        per_row = {name: values for name, values in vars(self).items() if name not in ranges and values is not None}
        return RowLayout(**ranges, **{name: values[order_R] for name, values in per_row.items()})


def lengths_of_rows(range_lengths_N: Ints, range_offsets_R1: Ints) -> Ints:
    """Return (R,) the number of tokens of each row."""
    tokens_before_N1 = offsets_of(range_lengths_N)
    return np.diff(tokens_before_N1[range_offsets_R1])


def special_ids_of_row(vocabulary: Vocabulary) -> list[int]:
    """Return the special tokens of a row with pairs, in its order: before A, between A and B, and after B.

    That is also their order at the end of the token array.
    """
    sep_id = vocabulary.special_id("sep")
    return [vocabulary.special_id("cls"), *[sep_id] * vocabulary.separators, sep_id]


def lay_pairs(rows_R7: Ints, tokens: int, between: int) -> RowLayout:
    """Lay out rows of two segments, (R, 7) with the columns of PairRow.

    The special tokens come after the shard's own `tokens` tokens; `between` of them separate A and B.
    """
    a_start_R, a_end_R, b_start_R, b_end_R, label_R, document_a_R, document_b_R = rows_R7.T

    # [CLS] is the first token after the shard's own, and the separators follow it. The row's last token is a separator
    # too, so it is read from the same place.
    one_R = np.ones_like(a_start_R)
    cls_R = tokens * one_R
    sep_R = (tokens + 1) * one_R

    # Five ranges in each row: [CLS], A, separators, B, separator.
    starts = [cls_R, a_start_R, sep_R, b_start_R, sep_R]
    lengths = [one_R, a_end_R - a_start_R, between * one_R, b_end_R - b_start_R, one_R]
    return RowLayout(
        range_starts_N=np.stack(starts, axis=1).ravel(),
        range_lengths_N=np.stack(lengths, axis=1).ravel(),
        range_offsets_R1=np.arange(len(rows_R7) + 1) * len(starts),
        segment_b_start_R=lengths[0] + lengths[1] + lengths[2],
        label_R=label_R,
        documents_R2=np.stack([document_a_R, document_b_R], axis=1),
        segments_R4=rows_R7[:, :4],
    )


def lay_sentences(rows: SentenceRows, tokens: int) -> RowLayout:
    """Lay out rows of one segment: each document's range, followed by a separator.

    The special tokens come after the shard's own `tokens` tokens.
    """
    text_ranges_R = np.diff(rows.range_offsets_R1)
    text_ranges = len(rows.starts_N)

    # In each row: [CLS], then two ranges per document, its text and [SEP]. All ranges but those of text have length 1.
    range_offsets_R1 = offsets_of(1 + 2 * text_ranges_R)
    range_starts_N = np.full(range_offsets_R1[-1], tokens + 1)
    range_lengths_N = np.ones_like(range_starts_N)
    range_starts_N[range_offsets_R1[:-1]] = tokens

    row_of_range = np.repeat(np.arange(len(text_ranges_R)), text_ranges_R)
    places = 1 + row_of_range + 2 * np.arange(text_ranges)
    range_starts_N[places] = rows.starts_N
    range_lengths_N[places] = rows.lengths_N

    first_documents = rows.documents_N[rows.range_offsets_R1[:-1]]
    last_documents = rows.documents_N[rows.range_offsets_R1[1:] - 1]
    return RowLayout(
        range_starts_N=range_starts_N,
        range_lengths_N=range_lengths_N,
        range_offsets_R1=range_offsets_R1,
        segment_b_start_R=lengths_of_rows(range_lengths_N, range_offsets_R1),  # there is no B
        label_R=np.full(len(text_ranges_R), NO_PAIR_LABEL),
        documents_R2=np.stack([first_documents, last_documents], axis=1),
    )


def copy_rows(layout: RowLayout, documents: EncodedDocuments, first_row: int, end_row: int) -> RowBatch:
    """Return the tokens of rows `first_row` to `end_row` - 1, special tokens in their places."""
    ranges = slice(layout.range_offsets_R1[first_row], layout.range_offsets_R1[end_row])
    range_lengths = layout.range_lengths_N[ranges]
    range_offsets_R1 = layout.range_offsets_R1[first_row : end_row + 1] - ranges.start

    places_T = places_of_ranges(layout.range_starts_N[ranges], range_lengths)
    offsets_R1 = offsets_of(range_lengths)[range_offsets_R1]
    return RowBatch(documents.ids_T.take(places_T), documents.word_starts_T.take(places_T), offsets_R1, first_row)


def to_columns(rows: RowBatch, layout: RowLayout, documents: EncodedDocuments) -> dict[str, pa.Array]:
    """Return a batch of rows as Arrow columns by name, those of `shards.pairs_schema` without static masks."""
    own = slice(rows.first_row, rows.first_row + len(rows.offsets_R1) - 1)
    offsets_R1 = pa.array(rows.offsets_R1.astype(np.int32))
    has_no_label_R = layout.label_R[own] == NO_PAIR_LABEL
    label_R = np.where(has_no_label_R, 0, layout.label_R[own])  # values below nulls are hashed too
    document_a_R, document_b_R = documents.corpus.document_ids_D[layout.documents_R2[own].T]

    return {
        "input_ids": pa.ListArray.from_arrays(offsets_R1, pa.array(rows.ids_T)),
        "segment_b_start": pa.array(layout.segment_b_start_R[own].astype(np.int32)),
        "pair_label": pa.array(label_R.astype(np.int8), mask=has_no_label_R),
        "word_starts": pa.ListArray.from_arrays(offsets_R1, _booleans(rows.word_starts_T)),
        "document_a": pa.array(document_a_R),
        "document_b": pa.array(document_b_R),
    }


def _booleans(values: NDArray[np.bool_]) -> pa.Array:
    """Return an Arrow array of booleans, one bit each. Ten times as fast as `pa.array`."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
