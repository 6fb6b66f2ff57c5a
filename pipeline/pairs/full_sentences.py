"""Rows of whole sentences without pairs: RoBERTa's FULL-SENTENCES and DOC-SENTENCES (arXiv:1907.11692, section 4.2).

    full_sentences   sentences in order until the row is full. A row may continue into the next document, with an
                     extra separator token between the two documents
    doc_sentences    the same, but a row ends with its document, so the last row of a document may be short

A sentence longer than a row is cut into several parts, and counted. Each pass reads the documents in a different order.
Everything works on offsets; no token is read. Where a row ends depends only on where it begins, so the end of a row is
computed at once for every sentence that might begin one; then one step per row follows the ends.

Shape suffixes: P sentences or parts of long ones, in reading order; R rows; N ranges of all rows. P1, R1 and N1 have
one element more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.pairs.corpus import DocumentLedger, EncodedCorpus, PairOptions
from schemas.ragged import Ints, offsets_of, places_of_ranges
from schemas.randomness import key, permutation

CUT_SENTENCE = "sentence longer than a row, cut into several"
EDGES = 2  # special tokens of every row: one before the text and one after it


@dataclass(frozen=True)
class SentenceRows:
    """R rows: row r is the ranges range_offsets_R1[r] : range_offsets_R1[r + 1], one for each document in it.

    Range n is the tokens starts_N[n] : starts_N[n] + lengths_N[n] of the document with number documents_N[n] in the
    shard.
    ledger: counts of what had to be cut.
    """

    documents_N: Ints
    starts_N: Ints
    lengths_N: Ints
    range_offsets_R1: Ints
    ledger: DocumentLedger


class SentenceParts(NamedTuple):
    """What rows are made of: sentences in reading order, those that are longer than a row in several parts.

    rank_P: the 0-based rank of each part's document in the reading order.
    starts_P, lengths_P: the part's tokens.
    """

    rank_P: Ints
    starts_P: Ints
    lengths_P: Ints


def fill_rows(corpus: EncodedCorpus, options: PairOptions, pass_number: int) -> SentenceRows:
    """Return all rows of a shard."""
    # The order depends on which documents the shard holds, not on the order in which it holds them.
    ids = np.sort(corpus.document_ids_D).tolist()
    order_key = key(options.seed, "document order", options.objective, pass_number, *ids)
    order_D = permutation(len(ids), order_key)

    room = options.max_length - EDGES
    ledger: DocumentLedger = Counter()
    parts = sentence_parts(corpus, order_D, room, ledger)

    end_P = ends_of_rows(parts, room)
    if options.objective == "doc_sentences":
        end_P = np.minimum(end_P, np.searchsorted(parts.rank_P, parts.rank_P, side="right"))
    return _rows(parts, _begins_of_rows(end_P), order_D, ledger)


def sentence_parts(corpus: EncodedCorpus, order_D: Ints, max_tokens: int, ledger: DocumentLedger) -> SentenceParts:
    """Return the sentences of all documents in this order, those of more than `max_tokens` in several parts."""
    first_D = corpus.document_offsets_D1[order_D]
    counts_D = corpus.document_offsets_D1[order_D + 1] - first_D
    sentences = places_of_ranges(first_D, counts_D)
    rank = np.repeat(np.arange(len(order_D)), counts_D)

    starts = corpus.sentence_offsets_N1[sentences]
    lengths = corpus.sentence_offsets_N1[sentences + 1] - starts
    ledger.update((CUT_SENTENCE, j) for j in order_D[rank[lengths > max_tokens]].tolist())

    parts_of_sentence = -(-lengths // max_tokens)
    tokens_before_P = max_tokens * places_of_ranges(np.zeros_like(parts_of_sentence), parts_of_sentence)
    left_P = np.repeat(lengths, parts_of_sentence) - tokens_before_P
    return SentenceParts(
        rank_P=np.repeat(rank, parts_of_sentence),
        starts_P=np.repeat(starts, parts_of_sentence) + tokens_before_P,
        lengths_P=np.minimum(left_P, max_tokens),
    )


def ends_of_rows(parts: SentenceParts, room: int) -> Ints:
    """Return (P,) for each part the end, as a part number, of the longest row that begins with it.

    A row has at most `room` tokens, including a separator between two documents.
    """
    tokens_before_P1 = offsets_of(parts.lengths_P)

    # The row of parts s to e - 1 has tokens_before[e] - tokens_before[s] tokens and rank[e - 1] - rank[s] separators,
    # because every document has a sentence. So it fits if a value that depends on e alone is at most one that depends
    # on s alone, and because the former ascend, a binary search finds the last e.
    of_end_P = tokens_before_P1[1:] + parts.rank_P
    most_P = tokens_before_P1[:-1] + parts.rank_P + room
    return np.searchsorted(of_end_P, most_P, side="right")


def _begins_of_rows(end_P: Ints) -> Ints:
    """Return (R + 1,) the first part of each row, and finally the number of parts."""
    end_of = np.ascontiguousarray(end_P).data  # gives plain integers
    begins = [0]
    while begins[-1] < len(end_P):
        begins.append(end_of[begins[-1]])
    return np.array(begins, dtype=np.int64)


def _rows(parts: SentenceParts, begins_R1: Ints, order_D: Ints, ledger: DocumentLedger) -> SentenceRows:
    """Return the rows that begin with these parts. A range begins wherever a row or a document begins."""
    begins_range_P = np.zeros(len(parts.rank_P), dtype=bool)
    begins_range_P[begins_R1[:-1]] = True
    begins_range_P[1:] |= np.diff(parts.rank_P) > 0

    first_N = np.flatnonzero(begins_range_P)
    first_N1 = np.append(first_N, len(parts.rank_P))
    return SentenceRows(
        documents_N=order_D[parts.rank_P[first_N]],
        starts_N=parts.starts_P[first_N],
        lengths_N=np.diff(offsets_of(parts.lengths_P)[first_N1]),
        range_offsets_R1=np.searchsorted(first_N, begins_R1),
        ledger=ledger,
    )
