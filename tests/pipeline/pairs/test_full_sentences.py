from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.full_sentences import CUT_SENTENCE, EDGES, SentenceRows, fill_rows
from pipeline.pairs.nsp_sop import EncodedCorpus, Objective, PairingOptions
from schemas.randomness import key, permutation
from tests.pipeline.pairs.test_nsp_sop import corpus


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


@pytest.mark.parametrize("objective", ["full_sentences", "doc_sentences"])
@given(documents=DOCUMENTS, max_length=st.integers(8, 140), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_every_token_is_in_one_row_and_rows_are_full(objective: Objective, documents, max_length, seed) -> None:
    made = corpus(documents)
    filled = fill_rows(made, PairingOptions(objective, max_length, 0.0, seed), 0)
    rows = parts_of_rows(filled)
    used = Counter(token for row in rows for s in row for token in range(s.start, s.end))
    assert used == Counter(range(made.sentence_offsets[-1]))  # each token once: nothing lost, nothing twice
    ends = set(made.sentence_offsets)
    for row in rows:
        assert sum(s.end - s.start for s in row) + len(row) - 1 + EDGES <= max_length
        assert objective == "full_sentences" or len(row) == 1
        assert all(a.document != b.document for a, b in pairwise(row))
        for stretch in row:
            first, last = (made.sentence_offsets[made.document_offsets[stretch.document + i]] for i in (0, 1))
            assert first <= stretch.start < stretch.end <= last
    longest = max_length - EDGES
    cut = sum(n > longest for document in documents for n in document)
    assert sum(filled.ledger.values()) == cut
    if cut == 0:
        assert all({s.start, s.end} <= ends for row in rows for s in row)  # whole sentences only
    if objective == "full_sentences":  # the next sentence would not have fitted
        for row, after in pairwise(rows):
            separator = int(after[0].document != row[-1].document)
            next_end = min(end for end in [*ends, after[0].start + longest] if end > after[0].start)
            room = max_length - EDGES - sum(s.end - s.start for s in row) - len(row) + 1
            assert next_end - after[0].start + separator > room


def test_passes_go_over_the_documents_in_other_orders() -> None:
    made = corpus([[5, 5]] * 30)
    orders = [
        fill_rows(made, PairingOptions("full_sentences", 64, 0.0, 0), number).documents_N.tolist()
        for number in (0, 1, 0)
    ]
    assert orders[0] == orders[2] != orders[1]


PlainRow = list[tuple[int, list[int]]]
"""(document, tokens) of each document in a row."""


def plain_pieces(corpus: EncodedCorpus, document: int, room: int) -> list[list[int]]:
    """A document's sentences as lists of tokens, each cut at `room` tokens."""
    pieces = []
    for i in range(corpus.document_offsets[document], corpus.document_offsets[document + 1]):
        tokens = list(range(corpus.sentence_offsets[i], corpus.sentence_offsets[i + 1]))
        while tokens:
            pieces.append(tokens[:room])
            tokens = tokens[room:]

    return pieces


def plain_append(row: PlainRow, document: int, tokens: list[int]) -> PlainRow:
    if row and row[-1][0] == document:
        return [*row[:-1], (document, row[-1][1] + tokens)]

    return [*row, (document, tokens)]


def plain_rows(corpus: EncodedCorpus, pairing: PairingOptions, pass_number: int) -> list[PlainRow]:
    """Rows made one sentence at a time: try the longer row, and begin another where it does not fit."""
    room = pairing.max_length - 2
    order_key = key(
        pairing.seed, "document order", pairing.objective, pass_number, *sorted(corpus.document_ids_D.tolist())
    )
    rows: list[PlainRow] = []
    row: PlainRow = []
    for document in permutation(len(corpus.document_ids_D), order_key).tolist():
        if pairing.objective == "doc_sentences" and row:
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
@settings(max_examples=100, deadline=None)
def test_rows_equal_the_plain_algorithm(
    objective: Objective, documents: list[list[int]], max_length: int, seed: int, ids: list[int]
) -> None:
    made = corpus(documents)
    made.document_ids_D[:] = ids[: len(documents)]
    pairing = PairingOptions(objective, max_length, 0.0, seed)

    filled = fill_rows(made, pairing, seed % 3)

    rows = [[(part.document, list(range(part.start, part.end))) for part in row] for row in parts_of_rows(filled)]
    assert rows == plain_rows(made, pairing, seed % 3)
    cuts = {
        (CUT_SENTENCE, j): sum(length > max_length - 2 for length in document) for j, document in enumerate(documents)
    }
    assert filled.ledger == Counter(cuts)
