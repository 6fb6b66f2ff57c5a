"""An exchange gives every bucket the same rows, however they travel: in files, in merged files or as blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io import WriteToText
from apache_beam.pvalue import AsSingleton

from pipeline.commit.staging import Staging
from pipeline.exchange import blocks
from pipeline.exchange.blocks import (
    BLOCK_BYTES,
    GROUP_BUCKETS,
    KeyedBatch,
    Shuffle,
    Stream,
    Way,
    buckets_of_group,
    groups_for,
    read_tables,
    send,
    whole_blocks,
)
from pipeline.exchange.exchange import Exchange, Plan, Step, Written
from pipeline.exchange.runs import encode_run

SCHEMA = pa.schema([("key", pa.uint64()), ("words", pa.list_(pa.string()))])
LONG = [np.random.default_rng(number).bytes(50).hex() for number in range(20_000)]
"""A row of 2 MB that does not compress, so that it travels in several parts."""
RUNS = 130  # more than are merged into one
WRITTEN_BUCKETS = 1024


def keys_of(rows: pa.RecordBatch) -> np.ndarray:
    return rows["key"].to_numpy()


def batch(seed: int, rows: int) -> KeyedBatch:
    keys = np.random.default_rng(seed).integers(0, 1 << 64, rows, dtype=np.uint64)
    words = [[f"w{key % 7}"] * int(key % 5) for key in keys.tolist()]
    if seed in (3, 4):
        keys[0] = 1 << 62
        words[0] = LONG  # twice, in two batches
    return keys, pa.record_batch([pa.array(keys), pa.array(words, SCHEMA.types[1])], schema=SCHEMA)


def batches_of(element: int) -> list[KeyedBatch]:
    return [batch(element + number, 50) for number in range(2)]


def written(batches: Iterable[KeyedBatch], buckets: int, name: str, staging: Staging) -> list[tuple[int, list[Any]]]:
    """Write batches as run files, and return elements of `Written`."""
    found = []
    for number, (keys, rows) in enumerate(batches):
        data, index = encode_run(rows, keys, buckets, f"{name}-{number}.run")
        staging.put(index.name, data)
        found.append((number, index.to_row()))
    return found


MADE = [made for element in (1, 3, 8) for made in batches_of(element)]


def consume(bucket: int, read_tables: Callable[[], list[pa.Table]], details: Any) -> str:
    """The rows of a bucket as text, in an order of their own."""
    found = []
    for table in read_tables():
        rows = zip(table["key"].to_pylist(), table["words"].to_pylist(), strict=True)
        found.append(sorted([key, len(words), words[:1]] for key, words in rows))
    return json.dumps([bucket, details, found])


def exchanged(folder: Path, shuffle: Shuffle, buckets: int) -> list[Any]:
    """What all buckets consumed, in their order."""
    staging = Staging(str(folder), "job")
    few = written(MADE, buckets, "made", staging)
    many = written((batch(1000 + number, 20) for number in range(RUNS)), WRITTEN_BUCKETS, "run", staging)
    plan = Plan(buckets, details="d")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        made = Written(Stream(0, "made", SCHEMA, keys_of), pipeline | "Made" >> beam.Create(few))
        runs = Written(Stream(1, "runs", SCHEMA, keys_of), pipeline | "Runs" >> beam.Create(many))
        decided = AsSingleton(pipeline | "Plan" >> beam.Create([{"all": plan}]))
        consumed = pipeline | Exchange([made, runs], Step("consume", consume, "all"), decided, Way(shuffle, staging))
        _ = consumed | "Write" >> WriteToText(str(folder / "out"), shard_name_template="")
    return sorted(json.loads(line) for line in (folder / "out").read_text().splitlines())


@pytest.mark.parametrize("buckets", [3, 8, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 1024))])
def test_every_bucket_gets_the_same_rows_by_every_way(tmp_path: Path, buckets: int) -> None:
    merged = exchanged(tmp_path / "merged", "merged", buckets)
    assert exchanged(tmp_path / "service", "service", buckets) == merged
    if WRITTEN_BUCKETS % buckets == 0:
        assert exchanged(tmp_path / "files", "files", buckets) == merged

    assert [bucket for bucket, _, _ in merged] == list(range(buckets))
    runs = [batch(1000 + number, 20) for number in range(RUNS)]
    for stream, batches in enumerate((MADE, runs)):
        for bucket, _, found in merged:
            expected = [
                [key, len(words), words[:1]]
                for keys, rows in batches
                for key, words in zip(keys.tolist(), rows["words"].to_pylist(), strict=True)
                if key * buckets >> 64 == bucket
            ]
            assert found[stream] == sorted(expected)


PIECES_SCHEMA = pa.schema([("key", pa.uint64())])


def consume_pieces(bucket: int, read_pieces: Callable[[], Iterator[pa.Table]], _: Any) -> str:
    """The rows of a bucket in an order of their own, and the number of pieces in which they came."""
    pieces = [piece["key"].to_pylist() for piece in read_pieces()]
    return json.dumps([bucket, len(pieces), sorted(key for piece in pieces for key in piece)])


@pytest.mark.parametrize("shuffle", ["files", "service"])
def test_a_bucket_can_be_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: Shuffle) -> None:
    """So that a bucket with more rows than fit into memory can be added up."""
    monkeypatch.setattr(blocks, "PIECE_BYTES", 3000)
    buckets = 3
    staging = Staging(str(tmp_path), "job")
    keys_of_runs = [batch(element, 500)[0] for element in range(10, 18)]
    batches = [(keys, pa.record_batch([pa.array(keys)], schema=PIECES_SCHEMA)) for keys in keys_of_runs]
    elements = written(batches, buckets, "keys", staging)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        runs = Written(Stream(0, "keys", PIECES_SCHEMA, keys_of), pipeline | beam.Create(elements))
        decided = AsSingleton(pipeline | "Plan" >> beam.Create([{"all": Plan(buckets)}]))
        step = Step("consume", consume_pieces, "all", in_pieces=True)
        consumed = pipeline | Exchange([runs], step, decided, Way(shuffle, staging))
        _ = consumed | "Write" >> WriteToText(str(tmp_path / "out"), shard_name_template="")

    found = sorted(json.loads(line) for line in (tmp_path / "out").read_text().splitlines())
    keys = sorted(np.concatenate(keys_of_runs).tolist())
    for bucket, pieces, rows in found:
        assert pieces > 2
        assert rows == [key for key in keys if key * buckets >> 64 == bucket]
    assert len(found) == buckets


def test_no_block_is_larger_than_the_limit_and_equal_long_rows_stay_two(tmp_path: Path) -> None:
    stream = Stream(0, "made", SCHEMA)
    way = Way("service", Staging(str(tmp_path), "job"))
    sent = []
    for element in (3, 4):
        sent += send(str(element), lambda element=element: [(0, batch(element, 50))], [(stream, 1)], way)
    contents = [content for _, _, (_, content) in sent]
    sizes = [len(content[2] if isinstance(content, tuple) else content) for content in contents]
    assert max(sizes) <= BLOCK_BYTES
    assert sum(isinstance(content, tuple) for content in contents) > 2
    assert {bucket for _, bucket, _ in sent} == {0}

    arrived = [block for _, _, block in reversed(sent)]
    (table,) = read_tables(lambda: whole_blocks(arrived), [stream], way.staging)
    assert table.num_rows == 100
    assert sum(words == LONG for words in table["words"].to_pylist()) == 2


@pytest.mark.parametrize("buckets", [1, 5, 255, 256, 257, 1000, 2049, 16_384])
def test_groups_hold_each_bucket_once(buckets: int) -> None:
    groups = groups_for(buckets)
    listed = [bucket for group in range(groups) for bucket in buckets_of_group(group, buckets)]
    assert listed == list(range(buckets))
    assert groups <= max(256, -(-buckets // GROUP_BUCKETS))
    for group in range(groups):
        assert len(buckets_of_group(group, buckets)) <= GROUP_BUCKETS
        assert {bucket * groups // buckets for bucket in buckets_of_group(group, buckets)} == {group}
