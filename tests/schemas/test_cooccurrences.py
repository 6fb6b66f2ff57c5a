"""Counts of tokens and of co-occurrences: equal to plain loops, however the rows are cut into blocks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import cooccurrences as counting
from schemas.cooccurrences import (
    Counting,
    add_up,
    blocks_of,
    count_contexts,
    count_cooccurrences,
    count_unigrams,
    sampled_rows,
)
from schemas.statistics import Cooccurrences, unit_weight

VOCABULARY_SIZE = 11
SPECIALS = (0, 1, 2)
UNKNOWN = 1

rows_of_tokens = st.lists(
    st.lists(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=12), min_size=1, max_size=8
)


def counting_with(window: int) -> Counting:
    return Counting(VOCABULARY_SIZE, window, SPECIALS, tuple(i for i in SPECIALS if i != UNKNOWN))


def table_of(rows: list[list[int]], type: pa.DataType | None = None) -> pa.Table:
    return pa.table({"input_ids": pa.array(rows, pa.list_(type or pa.uint16()))})


def plain_loop(rows: list[list[int]], window: int, specials: tuple[int, ...] = SPECIALS) -> dict[tuple[int, int], int]:
    """Return the weight of each pair of tokens, one occurrence after another."""
    weights: Counter[tuple[int, int]] = Counter()
    for row in rows:
        for i, left in enumerate(row):
            for distance in range(1, window + 1):
                if i + distance >= len(row):
                    break
                stretch = row[i : i + distance + 1]
                if any(token in specials for token in stretch):
                    break
                right = row[i + distance]
                weights[min(left, right), max(left, right)] += unit_weight(window) // distance
    return dict(weights)


def contexts_of(weights: dict[tuple[int, int], int], vocabulary_size: int) -> list[int]:
    """Return the total weight of each token's pairs. A pair of equal tokens counts twice."""
    totals = [0] * vocabulary_size
    for (first, second), weight in weights.items():
        totals[first] += weight
        totals[second] += weight
    return totals


def as_dict(found: Cooccurrences) -> dict[tuple[int, int], int]:
    pairs = list(zip(found.first_C.tolist(), found.second_C.tolist(), strict=True))
    assert pairs == sorted(set(pairs)), "sorted, and each pair once"
    return dict(zip(pairs, found.weight_C.tolist(), strict=True))


@given(rows_of_tokens, st.integers(1, 16))
@settings(max_examples=150)
def test_counts_equal_plain_loops(rows: list[list[int]], window: int) -> None:
    expected = plain_loop(rows, window)
    (block,) = blocks_of([table_of(rows)], window)
    cooccurrences = count_cooccurrences(block, counting_with(window))
    assert as_dict(cooccurrences) == expected
    assert count_contexts(cooccurrences, VOCABULARY_SIZE).tolist() == contexts_of(expected, VOCABULARY_SIZE)

    occurrences = Counter(token for row in rows for token in row)
    found = count_unigrams(block, counting_with(window))
    for token in range(VOCABULARY_SIZE):
        is_counted = token not in SPECIALS or token == UNKNOWN
        assert found[token] == (occurrences[token] if is_counted else 0)


def test_context_weights_are_exact_above_what_a_float_holds() -> None:
    large = 2**53 + 1
    weights = np.array([large, 1], dtype=np.int64)
    found = Cooccurrences(np.array([3, 3], dtype=np.uint32), np.array([3, 4], dtype=np.uint32), weights)
    assert count_contexts(found, 5).tolist() == [0, 0, 0, 2 * large + 1, 1]


@given(rows_of_tokens, st.integers(1, 9), st.integers(1, 30))
@settings(max_examples=60)
def test_blocks_do_not_show(rows: list[list[int]], shards: int, block_tokens: int) -> None:
    tables = [table_of(rows[i::shards]) for i in range(shards)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "BLOCK_OCCURRENCES", 3 * block_tokens)
        parts = [count_cooccurrences(block, counting_with(3)) for block in blocks_of(tables, 3)]

    joined = Cooccurrences(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    assert as_dict(add_up(joined, VOCABULARY_SIZE)) == plain_loop(rows, 3)


def test_ids_above_16_bits_are_counted() -> None:
    large = Counting(200_000, 2, (0,), (0,))
    (block,) = blocks_of([table_of([[199_999, 150_000, 199_999]], pa.uint32())], 2)
    assert as_dict(count_cooccurrences(block, large)) == {(150_000, 199_999): 4, (199_999, 199_999): 1}
    assert count_unigrams(block, large)[199_999] == 2


def test_weights_are_whole_numbers_at_every_distance() -> None:
    for window in range(1, counting.MAX_WINDOW + 1):
        assert all(unit_weight(window) % distance == 0 for distance in range(1, window + 1))


def test_a_sample_of_rows_depends_on_their_places_alone() -> None:
    rows = table_of([[i % VOCABULARY_SIZE] for i in range(4000)])
    assert sampled_rows(rows, 3, 4000) is rows

    some = sampled_rows(rows, 3, 1000)
    assert some.equals(sampled_rows(rows, 3, 1000))
    assert some.num_rows == 1000
    assert not some.equals(sampled_rows(rows, 4, 1000))

    # A larger sample holds the smaller one.
    numbered = rows.append_column("number", pa.array(range(4000)))
    half = set(sampled_rows(numbered, 3, 2000)["number"].to_pylist())
    assert set(sampled_rows(numbered, 3, 1000)["number"].to_pylist()) < half


@given(rows_of_tokens, st.integers(0, 100), st.integers(0, 1000))
@settings(max_examples=100)
def test_a_sample_never_has_more_tokens_than_allowed(rows: list[list[int]], max_tokens: int, shard: int) -> None:
    taken = sampled_rows(table_of(rows), shard, max_tokens)["input_ids"].to_pylist()
    assert sum(map(len, taken)) <= max_tokens
    if len(taken) < len(rows):
        assert sum(map(len, taken)) + max(map(len, rows)) > max_tokens


@pytest.mark.parametrize("length", [1, 100, 4096])
@pytest.mark.parametrize("window", [1, 5, 16])
def test_a_block_ends_with_the_row_that_fills_it(length: int, window: int) -> None:
    """The memory of a block goes with its co-occurrences: the window of each token. A shard may be one record batch."""
    rows = table_of([[3] * length] * (400_000 // length)).combine_chunks()
    assert len(rows.to_batches()) == 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "BLOCK_OCCURRENCES", 300_000)
        sizes = [len(block.ids_N) for block in blocks_of([rows, rows], window)]
    assert sum(sizes) == 2 * length * rows.num_rows
    assert max(sizes) < 300_000 // window + length

    # Only the last block may be smaller.
    assert min(sizes[:-1], default=300_000) > 300_000 // window - length
