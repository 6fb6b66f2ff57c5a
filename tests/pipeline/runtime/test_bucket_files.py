"""Run files: every bucket holds its range of keys, and a damaged file is an error of storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.runtime.bucket_files import encode_buckets, read_buckets
from pipeline.runtime.staging import Staging
from schemas.errors import StorageError

SCHEMA = pa.schema([("key", pa.uint64())])
BUCKETS = 7


@pytest.fixture
def keys() -> np.ndarray:
    """Random keys, and those on both sides of every border between buckets."""
    borders = [-(-(bucket << 64) // BUCKETS) for bucket in range(1, BUCKETS)]
    edges = [key for border in borders for key in (border - 1, border)]
    random = np.random.default_rng(0).integers(0, 1 << 64, 500, dtype=np.uint64)
    return np.concatenate([random, np.array([0, *edges, (1 << 64) - 1], dtype=np.uint64)])


def staged(folder: Path, data: bytes) -> Staging:
    staging = Staging(str(folder), "job")
    staging.put("run.arrow", data)
    return staging


def test_each_bucket_holds_its_range_of_keys_in_order(tmp_path: Path, keys: np.ndarray) -> None:
    rows = pa.record_batch([pa.array(keys)], schema=SCHEMA)
    staging = staged(tmp_path, encode_buckets(rows, keys, BUCKETS))

    for bucket in range(BUCKETS):
        found = read_buckets(["run.arrow"], bucket, bucket + 1, SCHEMA, staging)["key"].to_pylist()
        expected = sorted(key for key in keys.tolist() if key * BUCKETS >> 64 == bucket)
        assert found == expected


def test_a_damaged_run_is_an_error_of_storage(tmp_path: Path, keys: np.ndarray) -> None:
    """As a crash of the machine leaves a file that was not synced."""
    rows = pa.record_batch([pa.array(keys)], schema=SCHEMA)
    data = encode_buckets(rows, keys, BUCKETS)
    for damaged in (b"", data[: len(data) // 2], bytes(len(data))):
        staging = staged(tmp_path, damaged)
        with pytest.raises(StorageError, match=r"run\.arrow is damaged"):
            read_buckets(["run.arrow"], 0, BUCKETS, SCHEMA, staging)
