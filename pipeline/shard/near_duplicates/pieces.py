"""Two columns of a bucket's rows, piece by piece, as many times as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipeline.shard.near_duplicates.bands import Ids

KEPT_ROWS = 8_000_000
"""Up to this many rows (128 MB) stay in memory after the first read: twice an average bucket of bands."""

ReadPieces = Callable[[], Iterator[pa.Table]]

Columns = tuple[Ids, Ids]


class Pieces:
    """Rows to iterate over several times: kept in memory if they are few, read again if they are many.

    Iterating yields the two columns of each piece. Pieces and rows come in any order.
    """

    def __init__(self, read: ReadPieces, names: tuple[str, str], max_kept_rows: int = KEPT_ROWS):
        self._read = read
        self._names = names
        self._max_kept_rows = max_kept_rows
        self._kept: list[Columns] | None = None

    def __iter__(self) -> Iterator[Columns]:
        if self._kept is not None:
            yield from self._kept
            return

        first, second = self._names
        kept: list[Columns] = []
        rows = 0
        for table in self._read():
            columns = (table[first].to_numpy(), table[second].to_numpy())
            rows += table.num_rows
            if rows <= self._max_kept_rows:
                kept.append(columns)
            else:
                kept.clear()
            yield columns

        if rows <= self._max_kept_rows:
            self._kept = kept


def joined(pieces: list[Columns]) -> Columns:
    """Return the columns of all pieces, and empty the list."""
    first = np.concatenate([np.zeros(0, np.uint64), *(columns[0] for columns in pieces)])
    second = np.concatenate([np.zeros(0, np.uint64), *(columns[1] for columns in pieces)])
    pieces.clear()
    return first, second
