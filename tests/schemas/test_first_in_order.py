"""Which items of a row come first in its random order: the same as by a plain sort of their upper 32 bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.mask_draws import first_in_order
from schemas.ragged import offsets_of

RANDOM_ORDER = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(2**64 - 2**34, 2**64 - 1),  # so high that no threshold includes it
    st.integers(0, 2**34),
)


@given(
    rows=st.lists(st.lists(st.tuples(RANDOM_ORDER, st.booleans()), max_size=60), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 70), min_size=4, max_size=4),
    use_may=st.booleans(),
)
@settings(max_examples=150)
def test_the_first_in_order_equal_a_sort(rows: list[list[tuple[int, bool]]], counts: list[int], use_may: bool) -> None:
    """However unevenly the random numbers lie, and however few items may be chosen."""
    order = np.array([number for row in rows for number, _ in row], dtype=np.uint64)
    may = np.array([allowed for row in rows for _, allowed in row], dtype=bool)
    bounds_B1 = offsets_of(np.array([len(row) for row in rows]))

    items = first_in_order(order, bounds_B1, np.array(counts[: len(rows)]), may if use_may else None)

    expected = []
    for begin, row, count in zip(bounds_B1.tolist(), rows, counts, strict=False):
        allowed = [i for i in range(len(row)) if row[i][1] or not use_may]
        first = sorted(allowed, key=lambda i: (row[i][0] >> 32, i))[:count]
        expected += [begin + i for i in first]

    assert items.tolist() == expected
