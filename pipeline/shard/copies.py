"""Drops all copies of one text but one, as early as they meet, and counts the dropped ones by source.

With --dedup, copies are dropped within a run, where runs are merged, and in the shard. All copies of a text go to the
same shard, so a page that occurs a million times would otherwise fill it, whatever the number of shards.

The copy that stays is the first by source and then by content, because copies may be cut into different sentences.
Choosing a first copy step by step gives the same copy as choosing it once, and counts add up, so it does not matter
where copies meet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.ragged import group_starts
from schemas.randomness import key
from schemas.shards import LANGUAGE_COLUMNS, text_schema

Dedup = Literal["none", "exact", "minhash"]

COPIES = pa.field("copies", pa.string())
"""A further column of documents in runs whose copies are dropped.

How many copies of the document were dropped, as JSON: {source: count}. Null if there were none.
"""

_HASHED_ROWS = 256  # rows that become Python strings at once


def run_schema(dedup: Dedup, has_languages: bool = False) -> pa.Schema:
    """Return the columns of documents until they reach their shard."""
    text = text_schema(has_languages)
    return text if dedup == "none" else text.append(COPIES)


def drop_copies(documents: pa.Table) -> pa.Table:
    """Return the first copy of each document, with the others added to its count in the column COPIES."""
    kept_row = first_copies(documents)
    is_dropped = kept_row != np.arange(len(kept_row))
    if not is_dropped.any():
        return documents

    # Count the copies that are dropped now, and those that were dropped earlier in favor of one of them.
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    dropped = documents.select(["source", "copies"]).filter(pa.array(is_dropped))
    rows = zip(kept_row[is_dropped].tolist(), dropped["source"].to_pylist(), dropped["copies"].to_pylist(), strict=True)
    for row, source, earlier in rows:
        counts[row][source] += 1
        counts[row].update(_parse(earlier))

    copies = documents["copies"].to_numpy(zero_copy_only=False).copy()
    for row, by_source in counts.items():
        by_source.update(_parse(copies[row]))
        copies[row] = orjson.dumps(by_source, option=orjson.OPT_SORT_KEYS).decode()

    text = documents.drop_columns([COPIES.name]).filter(pa.array(~is_dropped))
    return text.append_column(COPIES, pa.array(copies[~is_dropped], pa.string()))


def dropped_by_source(documents: pa.Table) -> dict[str, int]:
    """Return the number of dropped copies of all documents by source, sorted by name."""
    dropped: Counter[str] = Counter()
    for copies in documents["copies"].drop_null().to_pylist():
        dropped.update(_parse(copies))
    return dict(sorted(dropped.items()))


def _parse(copies: str | None) -> dict[str, int]:
    return {} if copies is None else orjson.loads(copies)


def first_copies(documents: pa.Table) -> NDArray[np.int64]:
    """Return (documents,) int64: for each row, the row of the copy that stays, which may be the row itself."""
    _, group_of_row, group_size = np.unique(documents["document"].to_numpy(), return_inverse=True, return_counts=True)
    kept_row = np.arange(len(group_of_row))
    repeated = np.flatnonzero(group_size[group_of_row] > 1)
    if len(repeated) == 0:
        return kept_row

    sort_keys = pa.table(
        {
            "group": group_of_row[repeated],
            "source": documents["source"].take(pa.array(repeated)),
            "content": content_keys(documents)[repeated],
        }
    )
    order = [("group", "ascending"), ("source", "ascending"), ("content", "ascending")]
    places = pc.sort_indices(sort_keys, order).to_numpy()  # type: ignore[attr-defined]

    # Within a group the copy that stays comes first.
    rows = repeated[places]
    starts = group_starts(group_of_row[rows])
    kept_row[rows] = np.repeat(rows[starts], np.diff(starts, append=len(rows)))
    return kept_row


def content_keys(documents: pa.Table) -> NDArray[np.uint64]:
    """Return (documents,) uint64: a hash of each document's sentences, their boundaries and its language.

    It is 0 if the id is unique.
    Only documents with the same id can tie. They are few, so the hash, one Python call per document, is rarely needed.
    """
    _, group_of_row, group_size = np.unique(documents["document"].to_numpy(), return_inverse=True, return_counts=True)
    is_repeated = group_size[group_of_row] > 1
    hashes = np.zeros(len(is_repeated), dtype=np.uint64)
    columns = ["sentences", *(name for name in LANGUAGE_COLUMNS.names if name in documents.column_names)]

    # Batch by batch, because all chunks of a column together may exceed the size of an Arrow array.
    start = 0
    for batch in documents.to_batches():
        repeated = np.flatnonzero(is_repeated[start : start + batch.num_rows])
        for first in range(0, len(repeated), _HASHED_ROWS):
            rows = repeated[first : first + _HASHED_ROWS]
            taken = batch.take(pa.array(rows))
            contents = zip(*(taken[name].to_pylist() for name in columns), strict=True)
            hashes[start + rows] = [key("content", *sentences, *map(str, rest)) for sentences, *rest in contents]
        start += batch.num_rows
    return hashes
