from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.corpus import EncodedCorpus, PairOptions
from pipeline.pairs.full_sentences import CUT_SENTENCE, SentenceRows, fill_rows
from schemas.manifest import Objective
from schemas.randomness import key, permutation
from tests.pipeline.pairs.encoded_corpus import corpus_of


class Part(NamedTuple):
    """The tokens of one document in a row."""

    document: int
    start: int
    end: int


def parts_of_rows(filled: SentenceRows) -> list[list[Part]]:
    """Each row as its parts, one for each document in it."""
    ends_N = filled.starts_N + filled.lengths_N
    parts = [
        Part(*part) for part in zip(filled.documents_N.tolist(), filled.starts_N.tolist(), ends_N.tolist(), strict=True)
    ]
    return [parts[start:end] for start, end in pairwise(filled.range_offsets_R1.tolist())]


DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=25), min_size=1, max_size=12)


PlainRow = list[tuple[int, list[int]]]
"""(document, tokens) of each document in a row."""


def plain_pieces(corpus: EncodedCorpus, document: int, room: int) -> list[list[int]]:
    """A document's sentences as lists of tokens, each cut at `room` tokens."""
    pieces = []
    for i in range(corpus.document_offsets_D1[document], corpus.document_offsets_D1[document + 1]):
        tokens = list(range(corpus.sentence_offsets_N1[i], corpus.sentence_offsets_N1[i + 1]))
        while tokens:
            pieces.append(tokens[:room])
            tokens = tokens[room:]

    return pieces


def plain_append(row: PlainRow, document: int, tokens: list[int]) -> PlainRow:
    if row and row[-1][0] == document:
        return [*row[:-1], (document, row[-1][1] + tokens)]

    return [*row, (document, tokens)]


def plain_rows(corpus: EncodedCorpus, options: PairOptions, pass_number: int) -> list[PlainRow]:
    """Rows made one sentence at a time: try the longer row, and begin another where it does not fit."""
    room = options.max_length - 2
    order_key = key(
        options.seed, "document order", options.objective, pass_number, *sorted(corpus.document_ids_D.tolist())
    )
    rows: list[PlainRow] = []
    row: PlainRow = []
    for document in permutation(len(corpus.document_ids_D), order_key).tolist():
        if options.objective == "doc_sentences" and row:
            rows.append(row)
            row = []

        for tokens in plain_pieces(corpus, document, room):
            longer = plain_append(row, document, tokens)
            separators = len(longer) - 1
            if sum(len(part) for _, part in longer) + separators <= room:
                row = longer
            else:
                rows.append(row)
                row = [(document, tokens)]

    rows.append(row)
    return rows


@pytest.mark.parametrize("objective", ["full_sentences", "doc_sentences"])
@given(
    documents=DOCUMENTS,
    max_length=st.integers(4, 140),
    seed=st.integers(0, 99),
    ids=st.lists(st.integers(0, 10**6), min_size=12, max_size=12),
)
@settings(max_examples=100)
def test_rows_equal_the_plain_algorithm(
    objective: Objective, documents: list[list[int]], max_length: int, seed: int, ids: list[int]
) -> None:
    made = corpus_of(documents, ids[: len(documents)])
    options = PairOptions(objective, max_length, 0.0, seed)

    filled = fill_rows(made, options, seed % 3)

    rows = [[(part.document, list(range(part.start, part.end))) for part in row] for row in parts_of_rows(filled)]
    assert rows == plain_rows(made, options, seed % 3)
    cuts = {
        (CUT_SENTENCE, j): sum(length > max_length - 2 for length in document) for j, document in enumerate(documents)
    }
    assert filled.ledger == Counter(cuts)
