"""A partition's rows are added up piece by piece: equal to all at once, and without holding all of them."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.steps import statistics_rows
from pipeline.steps.statistics_rows import ANY_TOKEN, NO_TOKEN, batch_of_tokens, record_batch, sum_pieces
from schemas.statistics import COOCCURRENCES_SCHEMA, Cooccurrences

VOCABULARY_SIZE = 7
LARGE = 2**53 + 1  # no float holds it

tokens = st.integers(0, VOCABULARY_SIZE - 1)
pairs_of_tokens = st.tuples(tokens, tokens).map(sorted)
counts_of_tokens = st.tuples(tokens, st.sampled_from([NO_TOKEN, ANY_TOKEN]))
weights = st.integers(1, 50) | st.just(LARGE)
rows = st.lists(st.tuples(pairs_of_tokens | counts_of_tokens, weights), max_size=40)


@pytest.fixture(scope="module", autouse=True)
def few_rows_at_once() -> Iterator[None]:
    """So that some additions come before the last one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(statistics_rows, "ROWS_AT_ONCE", 5)
        yield


def table_of(sent: list) -> pa.Table:
    columns = [[first for (first, _), _ in sent], [second for (_, second), _ in sent], [weight for _, weight in sent]]
    return pa.table(columns, schema=COOCCURRENCES_SCHEMA)


@given(rows, st.lists(st.integers(0, 40), max_size=5), st.randoms())
@settings(max_examples=200, deadline=None)
def test_the_sums_of_pieces_are_those_of_all_rows(sent: list, cuts: list[int], order) -> None:
    order.shuffle(sent)
    bounds = sorted({0, len(sent), *(min(cut, len(sent)) for cut in cuts)})
    pieces = [table_of(sent[start:end]) for start, end in pairwise(bounds)]
    found = sum_pieces([*pieces, table_of([])], VOCABULARY_SIZE)

    expected: Counter[tuple[int, int]] = Counter()
    for (first, second), weight in sent:
        expected[first, second] += weight
    assert found.unigrams_V.tolist() == [expected.pop((token, NO_TOKEN), 0) for token in range(VOCABULARY_SIZE)]
    assert found.context_weights_V.tolist() == [expected.pop((token, ANY_TOKEN), 0) for token in range(VOCABULARY_SIZE)]
    assert list(zip(*(column.tolist() for column in found.pairs()), strict=True)) == [
        (first, second, expected[first, second]) for first, second in sorted(expected)
    ]


def test_memory_does_not_grow_with_the_number_of_pieces() -> None:
    """The first partition gets the counts of nearly all tokens from every lot: two rows each."""
    vocabulary_size = 20_000
    draws = np.random.default_rng(0)
    first_C, second_C = np.sort(draws.integers(0, vocabulary_size, (2, 20_000), dtype=np.uint32), axis=0)
    pairs = record_batch(Cooccurrences(first_C, second_C, np.ones(20_000, np.int64)))

    def pieces(lots: int) -> Iterator[pa.Table]:
        for _ in range(lots):
            counts = np.ones(vocabulary_size, np.int64)
            batches = [pairs, *(batch_of_tokens(counts, marker)[1] for marker in (NO_TOKEN, ANY_TOKEN))]
            yield pa.Table.from_batches(batches)

    peaks = []
    for lots in (3, 60):
        tracemalloc.start()
        sums = sum_pieces(pieces(lots), vocabulary_size)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (sums.unigrams_V == lots).all() and (sums.context_weights_V == lots).all()
        assert sums.pairs().weight_C.sum() == 20_000 * lots
    assert peaks[1] < 1.1 * peaks[0]
