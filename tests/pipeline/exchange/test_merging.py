"""Runs that are merged, and readers of many runs: bounded in memory, and a function of the rows alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.commit.staging import Staging
from pipeline.exchange import blocks
from pipeline.exchange.blocks import Block, Stream, Way, indexes_by_name, merge_runs, parts_of_runs, read_tables
from pipeline.exchange.runs import encode_run, read_buckets
from tests.pipeline.exchange.test_exchange import keys_of

SCHEMA = pa.schema([("key", pa.uint64()), ("run", pa.int64())])
ROWS = 6  # of a run
BUCKETS = 4


STREAM = Stream(0, "rows", SCHEMA, keys_of)


def write_runs(staging: Staging, runs: int) -> list[Block]:
    """Write the runs of one split, and refer to them. Every run has the same keys, so that their rows tie."""
    keys = np.arange(ROWS, dtype=np.uint64) * np.uint64((1 << 64) // ROWS)
    references: list[Block] = []
    for number in range(runs):
        rows = pa.record_batch([pa.array(keys), pa.array([number] * ROWS)], schema=SCHEMA)
        data, index = encode_run(rows, keys, BUCKETS, f"run-000000-{number:04d}.run")
        staging.put(index.name, data)
        references.append((0, index.to_row()))
    return references


def merged(references: list[Block], staging: Staging) -> dict[str, list[int]]:
    """The runs whose rows each merged file has, by its name."""
    way = Way("merged", staging)
    found: dict[str, set[int]] = {}
    for _, block in merge_runs("000000-00", references, STREAM, BUCKETS, way):
        ((_, index),) = indexes_by_name([block])
        batches = read_buckets([index], SCHEMA, staging)
        found.setdefault(index.name, set()).update(run for batch in batches for run in batch["run"].to_pylist())
    return {name: sorted(runs) for name, runs in sorted(found.items())}


def test_a_split_of_many_runs_is_merged_some_runs_at_a_time(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "job")
    found = merged(write_runs(staging, 150), staging)
    assert list(found.values()) == [list(range(64)), list(range(64, 128)), list(range(128, 150))]


def test_large_runs_are_merged_fewer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(str(tmp_path), "job")
    references = write_runs(staging, 5)
    ((_, index),) = indexes_by_name(references[:1])
    monkeypatch.setattr(blocks, "MERGED_BYTES", 2 * index.size() + 1)
    assert list(merged(references, staging).values()) == [[0, 1], [2, 3], [4]]


def test_the_order_in_which_references_arrive_leaves_no_trace(tmp_path: Path) -> None:
    """A worker that was given up may write its file after its twin has reported other checksums."""
    found = set()
    for attempt in range(3):
        staging = Staging(str(tmp_path / str(attempt)), "job")
        references = write_runs(staging, 70)
        random.Random(attempt).shuffle(references)

        files = tuple(staging.piece(name) for name in merged(references, staging))
        indexes = indexes_by_name(references)
        (table,) = read_tables(lambda indexes=indexes: parts_of_runs(indexes, 1, BUCKETS), [STREAM], staging)
        found.add((files, tuple(table["run"].to_pylist())))
    assert len(found) == 1
