"""Rows of whole sentences without pairs, RoBERTa's FULL-SENTENCES and DOC-SENTENCES (arXiv:1907.11692, section 4.2).

    full_sentences   sentences one after the other until the row is full, over the ends of documents, with one more
                     separator between two documents
    doc_sentences    the same, but a row ends with its document

A sentence longer than a row is cut into rows and counted. Every pass goes over the shard's documents in another order.
Everything works on lengths and places: no token is touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.pairs.nsp_sop import EncodedCorpus, Ledger, PairingOptions
from schemas.randomness import key, permutation

CUT_SENTENCE = "sentence longer than a row, cut into several"
EDGES = 2  # tokens of every row that are not text: one before it and one after


@dataclass
class SentenceRange:
    """Contiguous tokens of one document, `start` to `end` - 1; `document` is its number in the shard."""

    document: int
    start: int
    end: int


@dataclass
class SentenceRows:
    """Each row's stretches, one for each document in it, in reading order, and what had to be cut."""

    rows: list[list[SentenceRange]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Counter)


def fill_rows(corpus: EncodedCorpus, pairing: PairingOptions, pass_number: int) -> SentenceRows:
    """All rows of a shard."""
    order_key = key(pairing.seed, "document order", pairing.objective, pass_number, *sorted(corpus.ids))
    order = permutation(len(corpus.ids), order_key).tolist()
    made = SentenceRows()
    if pairing.objective == "full_sentences":
        made.rows += filled(corpus, order, pairing.max_length, made.ledger)
    else:
        for document in order:
            made.rows += filled(corpus, [document], pairing.max_length, made.ledger)
    return made


def filled(
    corpus: EncodedCorpus, documents: list[int], max_length: int, ledger: Ledger
) -> Iterator[list[SentenceRange]]:
    """The rows that these documents fill, the last one as long as it comes."""
    row: list[SentenceRange] = []
    room = max_length - EDGES
    for document in documents:
        for start, end in sentences(corpus, document, max_length - EDGES, ledger):
            goes_on = bool(row) and row[-1].document == document
            separator = 1 if row and not goes_on else 0
            if row and end - start + separator > room:
                yield row
                row, room, goes_on, separator = [], max_length - EDGES, False, 0
            room -= end - start + separator
            if goes_on:
                row[-1].end = end
            else:
                row.append(SentenceRange(document, start, end))
    if row:
        yield row


def sentences(corpus: EncodedCorpus, document: int, longest: int, ledger: Ledger) -> Iterator[tuple[int, int]]:
    """Token ranges of a document's sentences; one of more than `longest` tokens in several parts."""
    for i in range(corpus.documents[document], corpus.documents[document + 1]):
        start, end = corpus.sentences[i], corpus.sentences[i + 1]
        ledger[CUT_SENTENCE, document] += end - start > longest
        for begin in range(start, end, longest):
            yield begin, min(begin + longest, end)
