"""Rows of whole sentences without pairs: RoBERTa's FULL-SENTENCES and DOC-SENTENCES (arXiv:1907.11692, section 4.2).

    full_sentences   sentences one after the other until the row is full. A row may continue into the next document,
                     with an extra separator token between the two documents
    doc_sentences    the same, but a row ends with its document, so the last row of a document may be short

A sentence longer than a row is cut into several parts, and counted. Each pass reads the documents in another order.
Everything works on offsets; no token is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.pairs.nsp_sop import DocumentLedger, EncodedCorpus, PairingOptions
from schemas.randomness import key, permutation

CUT_SENTENCE = "sentence longer than a row, cut into several"
EDGES = 2  # special tokens of every row: one before the text and one after it


@dataclass
class SentenceRange:
    """Contiguous tokens of one document, `start` to `end` - 1; `document` is its number in the shard."""

    document: int
    start: int
    end: int


@dataclass
class SentenceRows:
    """Each row as its ranges, one for each document in it, in reading order; and what had to be cut."""

    rows: list[list[SentenceRange]] = field(default_factory=list)
    ledger: DocumentLedger = field(default_factory=Counter)


def fill_rows(corpus: EncodedCorpus, pairing: PairingOptions, pass_number: int) -> SentenceRows:
    """Return all rows of a shard."""
    # The order depends on which documents the shard holds, not on the order in which it holds them.
    ids = sorted(corpus.document_ids)
    order_key = key(pairing.seed, "document order", pairing.objective, pass_number, *ids)
    order = permutation(len(ids), order_key).tolist()

    filled = SentenceRows()
    if pairing.objective == "full_sentences":
        filled.rows += rows_of(corpus, order, pairing.max_length, filled.ledger)
    else:
        for document in order:
            filled.rows += rows_of(corpus, [document], pairing.max_length, filled.ledger)
    return filled


def rows_of(
    corpus: EncodedCorpus, documents: list[int], max_length: int, ledger: DocumentLedger
) -> Iterator[list[SentenceRange]]:
    """Yield the rows that these documents fill. The last one may be short."""
    room = max_length - EDGES
    row: list[SentenceRange] = []
    tokens = 0

    for document in documents:
        for start, end in sentence_parts(corpus, document, room, ledger):
            continues_document = len(row) > 0 and row[-1].document == document
            separators = 1 if row and not continues_document else 0

            is_full = tokens + separators + end - start > room
            if row and is_full:
                yield row
                row = []
                tokens = 0
                continues_document = False
                separators = 0

            tokens += separators + end - start
            if continues_document:
                row[-1].end = end
            else:
                row.append(SentenceRange(document, start, end))

    if row:
        yield row


def sentence_parts(
    corpus: EncodedCorpus, document: int, max_tokens: int, ledger: DocumentLedger
) -> Iterator[tuple[int, int]]:
    """Yield the token ranges of a document's sentences, a sentence of more than `max_tokens` in several parts."""
    for i in range(corpus.document_offsets[document], corpus.document_offsets[document + 1]):
        start = corpus.sentence_offsets[i]
        end = corpus.sentence_offsets[i + 1]
        if end - start > max_tokens:
            ledger[CUT_SENTENCE, document] += 1

        for part_start in range(start, end, max_tokens):
            yield part_start, min(part_start + max_tokens, end)
