"""Nulls are found wherever they hide, also by the quick look that spares most columns the long one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from schemas.row_checks import first_null

ROWS = st.lists(st.none() | st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), max_size=3))
NESTED = pa.list_(pa.list_(pa.uint16()))


def holds_null(rows: list) -> bool:
    """Whether a row is null or holds one, by a plain loop."""
    return any(row is None or any(inner is None or None in inner for inner in row) for row in rows)


@given(ROWS, st.integers(0, 4))
def test_no_null_is_missed(rows: list, start: int) -> None:
    column = pa.array(rows, NESTED).slice(min(start, len(rows)))
    expected = holds_null(rows[start:])
    assert (first_null(column) is not None) == expected
