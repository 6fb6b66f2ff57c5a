"""The steps that make a text shard, against plain loops."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commit.staging import Staging
from pipeline.shard.copies import COPIES, Dedup, drop_copies, dropped_by_source, run_schema
from pipeline.shard.write_runs import placements
from pipeline.shard.write_shard import (
    DROPPED_SCHEMA,
    ShardOptions,
    count_values,
    encode_text_shard,
    length_statistics,
    sort_documents,
    write_shard,
)
from schemas import shards
from schemas.randomness import key
from tests.pipeline.shard.test_repeats import Row, table_of

ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["x", "w", "\u00fc"]),
        st.lists(st.sampled_from(["a", "bc", "\u4e2d\u6587", "d" * 9]), min_size=1, max_size=4),
    ),
    max_size=12,
)


def counted(table: pa.Table) -> pa.Table:
    """The documents of a run whose copies are dropped."""
    return table.append_column(COPIES, pa.nulls(table.num_rows, pa.string()))


def rows_of(table: pa.Table) -> list[Row]:
    return [(row["document"], row["source"], row["sentences"]) for row in table.to_pylist()]


def plain_order(rows: list[Row], seed: int) -> list[Row]:
    ids = Counter(row[0] for row in rows)

    def place(row: Row) -> tuple[int, str, int]:
        (placed,) = placements(np.array([row[0]], np.uint64), seed).tolist()
        return placed, row[1], key("content", *row[2]) if ids[row[0]] > 1 else 0

    return sorted(rows, key=place)


@given(rows=ROWS, seed=st.integers(0, 3))
@settings(max_examples=60)
def test_documents_are_in_the_plain_order(rows: list[Row], seed: int) -> None:
    table = table_of(rows)
    documents = sort_documents(table, seed)
    assert rows_of(table.take(documents["row"])) == plain_order(rows, seed)
    assert documents.select(["document", "source"]) == table.take(documents["row"]).select(["document", "source"])


@given(rows=ROWS, cuts=st.lists(st.integers(0, 12), max_size=3), seed=st.integers(0, 3))
@settings(max_examples=100)
def test_the_first_copy_stays_wherever_copies_meet(rows: list[Row], cuts: list[int], seed: int) -> None:
    expected = []
    dropped: Counter[str] = Counter()
    for row in plain_order(rows, seed):
        if expected and expected[-1][0] == row[0]:
            dropped[row[1]] += 1
        else:
            expected.append(row)

    bounds = [0, *sorted(cuts), len(rows)]
    runs = [drop_copies(counted(table_of(rows[start:end]))) for start, end in itertools.pairwise(bounds)]
    merged = drop_copies(pa.concat_tables(runs[:2]))
    documents = drop_copies(pa.concat_tables([merged, *runs[2:]]))

    assert documents.schema == run_schema("exact")
    assert plain_order(rows_of(documents), seed) == expected
    assert dropped_by_source(documents) == dict(sorted(dropped.items()))


@given(rows=ROWS)
@settings(max_examples=40)
def test_lengths_and_sources_are_counted(rows: list[Row]) -> None:
    def histogram(values: list[int]) -> list[int]:
        exponents = [int(math.log2(value)) for value in values]
        return [exponents.count(i) for i in range(max(exponents, default=-1) + 1)]

    table = table_of(rows)
    sentences = [sentence for row in rows for sentence in row[2]]
    assert length_statistics(table) == {
        "sentences": len(sentences),
        "text_bytes": sum(len(sentence.encode()) for sentence in sentences),
        "sentences_per_document": histogram([len(row[2]) for row in rows]),
        "characters_per_sentence": histogram([len(sentence) for sentence in sentences]),
    }
    found = count_values(table["source"])
    assert found == Counter(row[1] for row in rows) and list(found) == sorted(found)


LOTS: list[list[Row]] = [
    [(i * 0x9E3779B97F4A7C15 % 2**64, "xw"[i % 2], [f"sentence {i}.", "b" * i]) for i in range(1, 40)],
    [(i * 0x9E3779B97F4A7C15 % 2**64, "y", [f"sentence {i}.", "b" * i]) for i in range(30, 60)],
]
NAME = "text-00001-of-00003.arrow"


@pytest.mark.parametrize("dedup", ["none", "exact", "minhash"])
def test_a_shard_and_its_report(tmp_path: Path, dedup: Dedup) -> None:
    """Near-duplicates are dropped after exact ones, and both are in the ledger."""
    rows = [row for lot in LOTS for row in lot]
    near_ids = sorted(row[0] for row in LOTS[0][::3])
    drops = [pa.table([pa.array(near_ids, pa.uint64())], schema=DROPPED_SCHEMA)] if dedup == "minhash" else []

    expected = plain_order(rows, 7)
    ledger = []
    if dedup != "none":
        repeats = [i > 0 and row[0] == expected[i - 1][0] for i, row in enumerate(expected)]
        gone = Counter(row[1] for row, repeat in zip(expected, repeats, strict=True) if repeat)
        ledger += [["duplicate document", source, gone[source]] for source in sorted(gone)]
        expected = [row for row, repeat in zip(expected, repeats, strict=True) if not repeat]
    if drops:
        gone = Counter(row[1] for row in expected if row[0] in near_ids)
        ledger += [["near-duplicate document", source, gone[source]] for source in sorted(gone)]
        expected = [row for row in expected if row[0] not in near_ids]

    staging = Staging(str(tmp_path), "job")
    table = table_of(rows) if dedup == "none" else counted(table_of(rows))
    report = write_shard(NAME, lambda: [table, *drops], ShardOptions(dedup, 7), staging)

    data = staging.piece(NAME)
    table = shards.decode_table(data, NAME, shards.TEXT_SCHEMA)
    assert rows_of(table) == expected
    assert [list(entry) for entry in report["ledger"]] == ledger
    assert report["shard"] == {
        "path": NAME,
        "rows": len(expected),
        "tokens": 0,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "fingerprint": shards.content_fingerprint(table.to_batches()),
    }
    assert report["sources"] == Counter(row[1] for row in expected)
    assert {name: report[name] for name in length_statistics(table)} == length_statistics(table)


def test_what_was_finished_is_not_read_again(tmp_path: Path) -> None:
    def refuse() -> list[pa.Table]:
        raise AssertionError("the tables were read")

    staging = Staging(str(tmp_path), "job")
    kept = staging.keep(NAME, b"", {"kept": 1})
    assert write_shard(NAME, refuse, ShardOptions("exact", 7), staging) == kept


def test_a_shard_of_several_batches_is_that_of_the_whole_table() -> None:
    rows: list[Row] = [(i, "xy"[i % 2], [f"sentence {i}.", "b" * (i % 7 + 1)]) for i in range(2500)]
    order = np.arange(2500)[::-3]
    expected = table_of([rows[i] for i in order])

    data, report = encode_text_shard(NAME, table_of(rows), order)
    assert (data, report["shard"]) == shards.encode_shard(NAME, expected)
    assert {name: report[name] for name in length_statistics(expected)} == length_statistics(expected)
