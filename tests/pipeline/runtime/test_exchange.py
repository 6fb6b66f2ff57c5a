"""Runs that are merged, and readers of many runs: bounded in memory, and a function of the rows alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.runtime import merging
from pipeline.runtime.exchange import Entry, GroupReader, Stream, indexes_by_name
from pipeline.runtime.merging import merge_runs
from pipeline.runtime.run_files import RunIndex, encode_run, read_buckets
from pipeline.runtime.staging import Staging

SCHEMA = pa.schema([("key", pa.uint64()), ("run", pa.int64())])
ROWS = 6  # of a run
BUCKETS = 4


def keys_of(rows: pa.RecordBatch) -> np.ndarray:
    return rows["key"].to_numpy()


STREAM = Stream(0, "rows", SCHEMA, keys_of)


def write_entries(staging: Staging, runs: int) -> list[Entry]:
    """Write the runs of one split. Every run has the same keys, so that their rows tie."""
    keys = np.arange(ROWS, dtype=np.uint64) * np.uint64((1 << 64) // ROWS)
    entries = []
    for number in range(runs):
        rows = pa.record_batch([pa.array(keys), pa.array([number] * ROWS)], schema=SCHEMA)
        data, index = encode_run(rows, keys, BUCKETS, f"run-000000-{number:04d}.run")
        staging.put(index.name, data)
        entries.append((0, index.to_row()))
    return entries


def runs_in(index: RunIndex, staging: Staging) -> list[int]:
    batches = read_buckets([index], SCHEMA, staging)
    return sorted({run for batch in batches for run in batch["run"].to_pylist()})


def test_a_split_of_many_runs_is_merged_some_runs_at_a_time(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "job")
    indexes = merge_runs("000000-00", write_entries(staging, 150), STREAM, BUCKETS, staging)
    found = [runs_in(index, staging) for index in indexes]
    assert found == [list(range(64)), list(range(64, 128)), list(range(128, 150))]


def test_large_runs_are_merged_fewer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(str(tmp_path), "job")
    entries = write_entries(staging, 5)
    run_bytes = int(RunIndex.from_row(entries[0][1]).lengths.sum())
    monkeypatch.setattr(merging, "MERGED_BYTES", 2 * run_bytes + 1)

    indexes = merge_runs("000000-00", entries, STREAM, BUCKETS, staging)
    assert [runs_in(index, staging) for index in indexes] == [[0, 1], [2, 3], [4]]


def test_the_order_in_which_entries_arrive_leaves_no_trace(tmp_path: Path) -> None:
    """A worker that was given up may write its file after its twin has reported the checksums of its own."""
    found = set()
    for attempt in range(3):
        staging = Staging(str(tmp_path / str(attempt)), "job")
        entries = write_entries(staging, 70)
        random.Random(attempt).shuffle(entries)

        indexes = merge_runs("000000-00", entries, STREAM, BUCKETS, staging)
        files = tuple(staging.piece(index.name) for index in indexes)
        tables = GroupReader(indexes_by_name(entries), BUCKETS, staging).tables(1, [STREAM])
        found.add((files, tuple(tables[0]["run"].to_pylist())))
    assert len(found) == 1
