"""Copies of one text are dropped on the way to their shard, and nothing of the result says where."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange import blocks
from pipeline.exchange.runs import RunIndex, read_buckets
from pipeline.readers.inputs import plan_splits
from pipeline.readers.listing import matching_files
from pipeline.shard import survey
from pipeline.shard.copies import Dedup
from pipeline.shard.documents import ReadOptions
from pipeline.shard.write_runs import documents_stream, write_runs
from pipeline.shard.write_shard import ShardOptions, write_shard
from schemas.errors import DataError
from schemas.shards import TEXT_SCHEMA

PAGE = " ".join(f"Line {line} of a page that is on every site." for line in range(70))  # 3 KB


def runs_of(folder: Path, copies: int, dedup: Dedup) -> list[Report]:
    """Write runs of a file with that many copies of a page, and return their reports."""
    path = folder / f"{copies}.jsonl"
    path.write_text("".join([json.dumps({"text": PAGE, "source": "web"}) + "\n"] * copies))
    (split,) = plan_splits(matching_files(str(path)), "auto")
    reading = ReadOptions("text", "blank_line", "en", "sentencex", dedup, seed=0)
    return write_runs(split, reading, 1, Staging(str(folder), f"{dedup}-{copies}"))


def test_a_run_does_not_grow_with_the_copies_of_a_page(tmp_path: Path) -> None:
    """What is decided by amounts, like the number of shards, counts all copies."""
    few = runs_of(tmp_path, 2, "exact")[0]
    many = runs_of(tmp_path, 2000, "exact")[0]
    assert run_bytes(many) <= run_bytes(few) + 16
    assert run_bytes(runs_of(tmp_path, 2000, "none")[0]) > 2 * run_bytes(many)

    for name in ("documents", "characters", "text_bytes"):
        assert many[name] == 1000 * few[name]


def run_bytes(report: Report) -> int:
    return int(RunIndex.from_row(report["index"]).lengths.sum())


def test_merged_runs_hold_one_copy_of_a_page(tmp_path: Path) -> None:
    stream = documents_stream("exact", 0)
    staging = Staging(str(tmp_path), "exact-3")
    entries = []
    for number in range(10):
        (run,) = runs_of(tmp_path, 3, "exact")
        name = f"copy-{number}.run"
        staging.put(name, staging.piece(RunIndex.from_row(run["index"]).name))
        entries.append((0, [name, *run["index"][1:]]))

    ((_, block),) = blocks.merge_runs("000000-00", entries, stream, 1, blocks.Way("merged", staging))
    ((_, index),) = blocks.indexes_by_name([block])
    (batch,) = read_buckets([index], stream.schema, staging)
    assert batch["copies"].to_pylist() == ['{"web":29}']


@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_a_shard_that_copies_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dedup: Dedup) -> None:
    """All copies of a text go to one shard, so more shards would not help."""
    stream = documents_stream(dedup, 0)
    staging = Staging(str(tmp_path), f"{dedup}-3")
    (run,) = runs_of(tmp_path, 3, dedup)
    batches = read_buckets([RunIndex.from_row(run["index"])], stream.schema, staging)
    table = pa.Table.from_batches(batches * 4)

    monkeypatch.setattr(survey, "MAX_SHARD_BYTES", 10 * len(PAGE))
    if dedup == "none":
        with pytest.raises(DataError, match=r"If one text occurs very often, give --dedup exact"):
            write_shard("text-00000-of-00001.arrow", lambda: [table], ShardOptions(dedup, 0), staging)
    else:
        report = write_shard("text-00000-of-00001.arrow", lambda: [table], ShardOptions(dedup, 0), staging)
        assert report["shard"]["rows"] == 1
        assert [list(entry) for entry in report["ledger"]] == [["duplicate document", "web", 11]]


def test_a_shard_of_too_many_texts_needs_more_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, "web", ["abc", "de"]), (2, "web", ["f" * 50]), (1, "web", ["abc", "de"])]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(TEXT_SCHEMA.types)]
    table = pa.table(columns, schema=TEXT_SCHEMA)
    monkeypatch.setattr(survey, "MAX_SHARD_BYTES", 55)
    with pytest.raises(DataError, match=r"--num_shards 1 is too few: .* Give --num_shards 3 or more"):
        write_shard("text-00000-of-00001.arrow", lambda: [table], ShardOptions("none", 0), Staging(str(tmp_path), "j"))
