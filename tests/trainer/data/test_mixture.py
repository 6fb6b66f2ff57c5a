"""Mixtures of several folders: exact batches, every row once an epoch, shares that stay close to the weights."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.mixture import Source, apportion, integer_weights, rows_of_step
from trainer.data.sampler import Order

FIVE_FOLDERS = [9_000_000, 5_000_000, 2_000_000, 1_000_000, 3_000]


def mixture(sizes: list[int]) -> list[Source]:
    """Sources weighted by their numbers of rows, each with its own order and no folder behind it."""
    nothing: Any = None
    return [Source(nothing, Order([size], f"source {i}", 0), size) for i, size in enumerate(sizes)]


def largest_deviation(weight: Fraction, sources: int) -> Fraction:
    """The bound on how far a source of the Webster sequence is from its share, in rows."""
    return (1 + weight * (sources - 2)) / 2


def rows_served(source: Source, first: int, last: int) -> list[int]:
    """The rows of one source at the places `first` to `last` - 1 of its own sequence."""
    found = [row_range.rows_N for row_range in source.order.row_ranges(first, last)]
    return np.concatenate(found).tolist() if found else []


def test_five_folders_fill_every_batch_exactly() -> None:
    """The smallest folder gives one row in 5,667; its count once fell between two batches and rows were repeated."""
    sources = mixture(FIVE_FOLDERS)
    total = sum(FIVE_FOLDERS)
    wrong_sizes = 0
    served_by_smallest = 0
    furthest = 0.0

    for step in range(20_000):
        bounds = rows_of_step(sources, step, 256)
        wrong_sizes += sum(last - first for first, last in bounds if last > first) != 256
        first, last = bounds[-1]
        served_by_smallest += max(last - first, 0)
        seen = [last for _, last in bounds]
        shares = [size * 256 * (step + 1) / total for size in FIVE_FOLDERS]
        furthest = max(furthest, *(abs(count - share) for count, share in zip(seen, shares, strict=True)))

    assert (wrong_sizes, served_by_smallest) == (0, seen[-1])
    assert furthest < largest_deviation(Fraction(max(FIVE_FOLDERS), total), 5)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 7, 40, 41, 1000, 99_991]), min_size=3, max_size=6),
    size=st.integers(1, 300),
    start=st.integers(0, 2000),
)
@settings(max_examples=80, deadline=None)
def test_counts_never_fall_and_stay_close_to_the_weights(sizes: list[int], size: int, start: int) -> None:
    sources = mixture(sizes)
    total = sum(sizes)
    end_before = [last for _, last in rows_of_step(sources, start, size)]

    for step in range(start + 1, start + 20):
        bounds = rows_of_step(sources, step, size)
        assert [first for first, _ in bounds] == end_before
        assert all(first <= last for first, last in bounds)
        assert sum(last - first for first, last in bounds) == size
        end_before = [last for _, last in bounds]

        for count, rows in zip(end_before, sizes, strict=True):
            weight = Fraction(rows, total)
            share = weight * size * (step + 1)
            assert abs(count - share) <= largest_deviation(weight, len(sizes))


@given(sizes=st.lists(st.integers(1, 40), min_size=3, max_size=6), size=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_every_row_is_served_once_an_epoch(sizes: list[int], size: int) -> None:
    """Two epochs of the mixture, batch by batch, hold two epochs of each source."""
    sources = mixture(sizes)
    steps = -(-2 * sum(sizes) // size)
    served: list[list[int]] = [[] for _ in sizes]

    for step in range(steps):
        for source, rows, (first, last) in zip(sources, served, rows_of_step(sources, step, size), strict=True):
            rows += rows_served(source, first, last)

    for rows, count in zip(served, sizes, strict=True):
        assert sorted(rows[:count]) == list(range(count))
        assert sorted(rows[count : 2 * count]) == list(range(count))


def test_any_step_can_be_asked_for() -> None:
    """A resumed run asks for one step only, however far it is."""
    sources = mixture(FIVE_FOLDERS)
    far = 10**12
    before = rows_of_step(sources, far - 1, 256)
    after = rows_of_step(sources, far, 256)
    assert [last for _, last in before] == [first for first, _ in after]
    assert sum(last for _, last in after) == 256 * (far + 1)


@pytest.mark.parametrize("sizes", [[1], [7, 3], [1, 1], [9_000_000, 3_000], [5, 3]])
def test_one_or_two_folders_are_mixed_as_before(sizes: list[int]) -> None:
    """Largest remainders and Webster's method agree on one or two sources, so older runs resume at the same rows."""
    sources = mixture(sizes)
    total = sum(sizes)
    for n in [*range(1, 500), 10**9 + 7]:
        counts = [last for _, last in rows_of_step(sources, n - 1, 1)]
        whole = [n * rows // total for rows in sizes]
        remainders = sorted(range(len(sizes)), key=lambda i: (-(n * sizes[i] % total), i))
        for i in remainders[: n - sum(whole)]:
            whole[i] += 1
        assert counts == whole


def test_given_weights_are_taken_as_they_are_written() -> None:
    """0.1 is one tenth: after ten places each source has given exactly its share."""
    weights = integer_weights([], [0.1, 0.2, 0.7], by_tokens=False)
    assert weights == [1, 2, 7]
    assert apportion(weights, 10**15) == [10**14, 2 * 10**14, 7 * 10**14]
    assert sum(apportion(integer_weights([], [1e-300, 1e300, 3.5], by_tokens=False), 1000)) == 1000
