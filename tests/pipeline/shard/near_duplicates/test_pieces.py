from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from pipeline.shard.near_duplicates.bands import BAND_SCHEMA
from pipeline.shard.near_duplicates.pieces import Pieces


class Reader:
    """Reads four pieces of ten rows, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Iterator[pa.Table]:
        self.times += 1
        for number in range(4):
            values = pa.array(np.arange(10 * number, 10 * number + 10, dtype=np.uint64))
            yield pa.table([values, values], schema=BAND_SCHEMA)


@pytest.mark.parametrize(("max_kept_rows", "times"), [(40, 1), (39, 3)])
def test_few_rows_are_kept_and_many_are_read_again(max_kept_rows: int, times: int) -> None:
    reader = Reader()
    rows = Pieces(reader, ("band", "document"), max_kept_rows)
    for _ in range(3):
        found = list(rows)
        assert np.concatenate([bands for bands, _ in found]).tolist() == list(range(40))
        assert all((bands == documents).all() for bands, documents in found)
    assert reader.times == times


def test_no_rows() -> None:
    rows = Pieces(lambda: iter([]), ("band", "document"))
    assert list(rows) == []
    assert list(rows) == []
