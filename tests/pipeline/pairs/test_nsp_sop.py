from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.nsp_sop import (
    ALONE,
    TOO_SHORT,
    EncodedCorpus,
    PairingOptions,
    PairRow,
    fair_coins,
    truncate,
)
from pipeline.pairs.pairs_in_step import Pairs, pair_sentences
from schemas.randomness import Draws

DOCUMENTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=25), min_size=2, max_size=12)


def corpus(documents: list[list[int]]) -> EncodedCorpus:
    """Documents given as lists of sentence lengths."""
    lengths = [n for document in documents for n in document]
    places = [0, *accumulate(len(document) for document in documents)]
    return EncodedCorpus.of([0, *accumulate(lengths)], places, [100 + i for i in range(len(documents))])


def rows_of(pairs: Pairs) -> list[PairRow]:
    return [PairRow(*row) for row in pairs.rows_R7.tolist()]


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@given(documents=DOCUMENTS, max_length=st.integers(8, 140), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_every_label_is_true_and_every_row_fits(objective, documents, max_length: int, seed: int) -> None:
    made = corpus(documents)
    pairs = pair_sentences(made, PairingOptions(objective, max_length, 0.1, seed), 3, 0)
    ends = [made.sentence_offsets[place] for place in made.document_offsets]
    for row in rows_of(pairs):
        assert row.a_end > row.a_start and row.b_end > row.b_start
        assert row.a_end - row.a_start + row.b_end - row.b_start + 3 <= max_length
        assert ends[row.document_a] <= row.a_start and row.a_end <= ends[row.document_a + 1]
        assert ends[row.document_b] <= row.b_start and row.b_end <= ends[row.document_b + 1]
        if objective == "nsp":
            assert (row.document_a != row.document_b) == (row.label == 1)
            assert row.label == 1 or row.b_start >= row.a_end
        else:
            assert row.document_a == row.document_b
            assert (row.b_start < row.a_start) == (row.label == 1)
    short = sum(len(document) < 2 for document in documents)
    assert sum(n for (why, _), n in pairs.ledger.items() if why == TOO_SHORT) == short


@given(documents=DOCUMENTS)
@settings(max_examples=50, deadline=None)
def test_sop_uses_every_sentence(documents) -> None:
    """With room enough nothing is cut, so every sentence of a usable document is in a row."""
    made = corpus(documents)
    pairs = pair_sentences(made, PairingOptions("sop", 4000, 0.0, 0), 3, 0)
    used = {t for row in rows_of(pairs) for t in (*range(row.a_start, row.a_end), *range(row.b_start, row.b_end))}
    ends = [made.sentence_offsets[offset] for offset in made.document_offsets]
    expected = set()
    for j, document in enumerate(documents):
        if len(document) > 1:
            expected |= set(range(ends[j], ends[j + 1]))
    assert used == expected


@pytest.mark.parametrize("objective", ["nsp", "sop"])
@pytest.mark.parametrize("sentences", [2, 3, 40])
def test_labels_are_half_and_half_however_short_the_documents(objective, sentences: int) -> None:
    """Google's builder gives 57 to 67% on short documents: a chunk of one sentence is always called random there."""
    made = corpus([[20] * sentences] * (60_000 // sentences))
    labels = Counter(row.label for row in rows_of(pair_sentences(made, PairingOptions(objective, 64, 0.1, 1), 3, 0)))
    n = labels[0] + labels[1]
    assert abs(labels[1] / n - 0.5) < 4 * 0.5 / n**0.5


def test_documents_with_one_id_are_one_document() -> None:
    made = corpus([[5, 5, 5]] * 6)
    made.document_ids_D[:] = [7, 7, 7, 7, 7, 9]
    for row in rows_of(pair_sentences(made, PairingOptions("nsp", 16, 0.0, 0), 3, 0)):
        assert row.label == (made.document_ids[row.document_a] != made.document_ids[row.document_b])


def test_a_lonely_document_makes_no_rows_and_says_so() -> None:
    pairs = pair_sentences(corpus([[5] * 9]), PairingOptions("nsp", 16, 0.1, 0), 3, 0)
    assert rows_of(pairs) == []
    assert dict(pairs.ledger) == {(ALONE, 0): 1}
    assert rows_of(pair_sentences(corpus([[5] * 9]), PairingOptions("sop", 16, 0.1, 0), 3, 0))


@given(documents=DOCUMENTS, seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_nsp_uses_every_sentence_of_a_usable_document(documents, seed: int) -> None:
    """A last sentence that is alone in its chunk is in a row too, whatever the coin says."""
    made = corpus(documents)
    pairs = pair_sentences(made, PairingOptions("nsp", 4000, 0.0, seed), 3, 0)
    for j, document in enumerate(documents):
        own = [(row.a_start, row.a_end) for row in rows_of(pairs) if row.document_a == j]
        own += [(row.b_start, row.b_end) for row in rows_of(pairs) if row.document_a == j == row.document_b]
        first, last = (made.sentence_offsets[made.document_offsets[j + i]] for i in (0, 1))
        assert len(document) < 2 or {t for a, b in own for t in range(a, b)} == set(range(first, last))


def test_passes_differ_and_repeat() -> None:
    made = corpus([[7] * 30, [5] * 40, [9] * 20])
    pairing = PairingOptions("nsp", 64, 0.1, 0)
    first = rows_of(pair_sentences(made, pairing, 3, 0))
    assert first == rows_of(pair_sentences(made, pairing, 3, 0))
    assert first != rows_of(pair_sentences(made, pairing, 3, 1))


@given(a=st.integers(1, 300), b=st.integers(1, 300), most=st.integers(2, 400))
def test_truncation_equals_one_token_at_a_time(a: int, b: int, most: int) -> None:
    """google-research/bert's truncate_seq_pair drops from the longer, and from B when they are equal."""
    left_a, left_b = a, b
    while left_a + left_b > most:
        left_a, left_b = (left_a - 1, left_b) if left_a > left_b else (left_a, left_b - 1)
    row = truncate(PairRow(0, a, 1000, 1000 + b, 0, 0, 0), max(a + b - most, 0), Draws(a * b))
    assert (row.a_end - row.a_start, row.b_end - row.b_start) == (left_a, left_b)
    assert row.a_start >= 0 and row.a_end <= a and row.b_start >= 1000 and row.b_end <= 1000 + b


def test_coins_are_fair() -> None:
    draws = Draws(1)
    heads = sum(fair_coins(100, draws) for _ in range(1000))
    assert abs(heads / 100_000 - 0.5) < 0.01


def test_a_share_of_documents_is_short() -> None:
    made = corpus([[1] * 400] * 500)
    rows = rows_of(pair_sentences(made, PairingOptions("sop", 103, 0.3, 0), 3, 0))
    first = {row.document_a: row.a_end - row.a_start + row.b_end - row.b_start for row in reversed(rows)}
    assert 0.2 < sum(n < 100 for n in first.values()) / 500 < 0.4
