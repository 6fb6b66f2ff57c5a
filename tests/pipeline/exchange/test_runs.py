"""Run files: every bucket holds its range of keys, is read by itself, and a damaged file is an error of storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commit.staging import Staging
from pipeline.exchange.runs import RunIndex, encode_run, read_buckets
from schemas.errors import DataError, StorageError
from schemas.randomness import scaled

SCHEMA = pa.schema([("key", pa.uint64()), ("words", pa.list_(pa.string()))])
BUCKETS = 7


def rows_of(keys: np.ndarray) -> pa.RecordBatch:
    words = [[f"w{key % 11}"] * int(key % 4) for key in keys.tolist()]
    return pa.record_batch([pa.array(keys), pa.array(words, SCHEMA.types[1])], schema=SCHEMA)


@pytest.fixture
def keys() -> np.ndarray:
    """Random keys, and those on both sides of every border between buckets."""
    borders = [-(-(bucket << 64) // BUCKETS) for bucket in range(1, BUCKETS)]
    edges = [key for border in borders for key in (border - 1, border)]
    random = np.random.default_rng(0).integers(0, 1 << 64, 500, dtype=np.uint64)
    return np.concatenate([random, np.array([0, *edges, (1 << 64) - 1], dtype=np.uint64)])


def written(folder: Path, keys: np.ndarray, buckets: int) -> tuple[Staging, RunIndex]:
    staging = Staging(str(folder), "job")
    data, index = encode_run(rows_of(keys), keys, buckets, "a.run")
    staging.put(index.name, data)
    return staging, RunIndex.from_row(index.to_row())


def words_of(batches: list[pa.RecordBatch]) -> list[tuple[int, list[str]]]:
    return [(row["key"], row["words"]) for batch in batches for row in batch.to_pylist()]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.sampled_from([1, 2, 3, 1000, 1 << 18, 1 << 32]))
@settings(max_examples=60)
def test_a_bucket_is_an_equal_range_of_keys(keys: list[int], buckets: int) -> None:
    found = scaled(np.array(keys, np.uint64), buckets)
    assert found.tolist() == [key * buckets >> 64 for key in keys]


def test_each_bucket_holds_its_range_of_keys_in_order(tmp_path: Path, keys: np.ndarray) -> None:
    staging, index = written(tmp_path, keys, BUCKETS)
    everything = words_of(read_buckets([index], SCHEMA, staging))
    assert [key for key, _ in everything] == sorted(keys.tolist())

    for place, bucket in enumerate(index.numbers.tolist()):
        found = words_of(read_buckets([index.part(place, place + 1)], SCHEMA, staging))
        assert found == [row for row in everything if row[0] * BUCKETS >> 64 == bucket]


def test_empty_buckets_take_no_space_and_many_buckets_cost_what_their_rows_cost(tmp_path: Path) -> None:
    keys = np.array([5, 1 << 63, 1 << 63], np.uint64)
    _, few = written(tmp_path, keys, 2)
    _, many = written(tmp_path, keys, 1 << 30)
    assert few.numbers.tolist() == [0, 1] and many.numbers.tolist() == [0, 1 << 29]
    assert few.lengths.sum() == many.lengths.sum()

    staging, nothing = written(tmp_path, np.array([], np.uint64), BUCKETS)
    assert staging.piece("a.run") == b"" and read_buckets([nothing], SCHEMA, staging) == []


def test_a_damaged_run_is_an_error_of_storage(tmp_path: Path, keys: np.ndarray) -> None:
    """As a crash of the machine leaves a file that was not synced."""
    staging, index = written(tmp_path, keys, BUCKETS)
    data = staging.piece("a.run")
    changed = bytearray(data)
    changed[-1] ^= 1
    for damaged in (b"", data[: len(data) // 2], bytes(len(data)), bytes(changed)):
        staging.put("a.run", damaged)
        with pytest.raises(StorageError, match=r"a\.run is damaged"):
            read_buckets([index], SCHEMA, staging)


@pytest.mark.parametrize("folder", ["disk", "memory://gone"])
def test_a_run_that_is_gone_is_named_with_what_to_do(tmp_path: Path, keys: np.ndarray, folder: str) -> None:
    place = str(tmp_path) if folder == "disk" else f"{folder}/{tmp_path.name}"
    _, index = encode_run(rows_of(keys), keys, BUCKETS, "a.run")
    message = r"_unfinished-job/a\.run is gone: staging was changed .* Delete \S+/_unfinished-job/ and run the same"
    with pytest.raises(DataError, match=message):
        read_buckets([index], SCHEMA, Staging(place, "job"))
