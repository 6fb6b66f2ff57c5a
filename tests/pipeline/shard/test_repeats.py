"""Which sentences --drop_repeats removes, against a plain loop over the whole corpus."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.runs import RunIndex, read_buckets
from pipeline.jobs.repeats import find_repeats, keys_of_shards
from pipeline.shard import repeats
from pipeline.shard.repeats import (
    ONLY_REPEATED,
    PLACE_SCHEMA,
    REMOVED,
    SPAN_SCHEMA,
    finish_shard,
    hash_sentences,
    write_draft,
)
from pipeline.shard.write_runs import placements
from pipeline.shard.write_shard import ShardOptions, write_shard
from schemas import shards
from schemas.errors import DataError, StorageError
from schemas.randomness import scaled

SEED = 5
Row = tuple[int, str, list[str]]
SENTENCES = st.sampled_from(["a", "ab", "b", "b ", "中文", "\U0001f600", "é", "long " * 50])
ROWS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.sampled_from("xy"), st.lists(SENTENCES, min_size=1, max_size=7)),
    max_size=9,
    unique_by=lambda row: row[0],
)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: placements(np.array([row[0]], np.uint64), SEED)[0])


def without_repeats(rows: list[Row], count: int) -> tuple[list[Row], Counter[str], int]:
    """The plain loop: what is left of each document, the dropped documents by source, and the removed sentences."""
    seen: set[tuple[str, ...]] = set()
    left: list[Row] = []
    dropped: Counter[str] = Counter()
    removed = 0
    for document, source, sentences in rows:
        gone: set[int] = set()
        for start in range(len(sentences) - count + 1):
            span = tuple(sentences[start : start + count])
            if span in seen:
                gone.update(range(start, start + count))
            seen.add(span)

        removed += len(gone)
        stays = [sentence for place, sentence in enumerate(sentences) if place not in gone]
        if stays:
            left.append((document, source, stays))
        else:
            dropped[source] += 1
    return left, dropped, removed


def table_of(rows: list[Row]) -> pa.Table:
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(shards.TEXT_SCHEMA.types)]
    return pa.table(arrays, schema=shards.TEXT_SCHEMA)


def rows_of(staging: Staging, name: str) -> list[Row]:
    table = shards.decode_table(staging.piece(name), name, shards.TEXT_SCHEMA)
    return [(row["document"], row["source"], row["sentences"]) for row in table.to_pylist()]


class Corpus:
    """A corpus in shards, with what the exchange does, without Beam."""

    def __init__(self, rows: list[Row], num_shards: int, count: int, folder: Path):
        placed = placements(np.array([row[0] for row in rows], np.uint64), SEED)
        shard_of = scaled(placed, num_shards).tolist()
        self.staging = Staging(str(folder), "job")
        self.names = [shards.shard_name("text", index, num_shards) for index in range(num_shards)]
        self.tables = [
            table_of([row for row, at in zip(rows, shard_of, strict=True) if at == i]) for i in range(num_shards)
        ]
        self.options = ShardOptions("none", SEED, drop_repeats=count)

    def drafts(self) -> list[Report]:
        named = zip(self.names, self.tables, strict=True)
        return [write_draft(name, lambda table=table: [table], self.options, self.staging) for name, table in named]

    def finish(self) -> list[Report]:
        spans = []
        for sent in self.drafts():
            rows = spans_of(sent, self.staging)
            assert rows.num_rows == sent["spans"] == len(np.unique(rows["span"].to_numpy()))  # each span once
            spans.append(rows)

        [(_, (keys, places))] = find_repeats(0, lambda: [pa.concat_tables(spans)], len(self.names))
        shard_of = scaled(keys, len(self.names))
        reports = []
        for index, name in enumerate(self.names):
            received = pa.Table.from_batches([places]).filter(pa.array(shard_of == index))
            reports.append(finish_shard(name, lambda t=received: [t], self.options.drop_repeats or 0, self.staging))
        return reports


def spans_of(sent: Report, staging: Staging) -> pa.Table:
    return pa.Table.from_batches(read_buckets([RunIndex.from_row(sent["index"])], SPAN_SCHEMA, staging), SPAN_SCHEMA)


@given(rows=ROWS, count=st.sampled_from([1, 1, 2, 3, 3, 7, 10**30]), num_shards=st.sampled_from([1, 2, 7]))
@settings(max_examples=100)
def test_what_stays_is_what_a_plain_loop_leaves(tmp_path_factory, rows: list[Row], count: int, num_shards: int) -> None:
    corpus = Corpus(rows, num_shards, count, tmp_path_factory.mktemp("corpus"))
    reports = corpus.finish()
    left, dropped, removed = without_repeats(in_order(rows), count)

    found = [row for name in corpus.names for row in rows_of(corpus.staging, name)]
    assert found == left
    assert sum(report["cleaning"].get(REMOVED, 0) for report in reports) == removed
    ledger: Counter[str] = Counter()
    for report in reports:
        ledger.update({source: n for reason, source, n in report["ledger"] if reason == ONLY_REPEATED})
    assert ledger == dropped
    assert sum((Counter(report["sources"]) for report in reports), Counter()) == Counter(row[1] for row in left)
    assert sum(report["sentences"] for report in reports) == sum(len(row[2]) for row in left)

    # The first occurrence of every sentence stays: no sentence is lost.
    def first_places(documents: list[Row]) -> dict[str, int]:
        places: dict[str, int] = {}
        for document, _, sentences in documents:
            for sentence in sentences:
                places.setdefault(sentence, document)
        return places

    assert first_places(found) == first_places(in_order(rows))


def test_a_shard_without_repeats_has_the_bytes_that_it_has_without_the_flag(tmp_path: Path) -> None:
    rows: list[Row] = [(i * 0x9E3779B97F4A7C15 % 2**64, "x", [f"One {i}.", "b" * (i + 1)]) for i in range(2500)]
    corpus = Corpus(rows, 1, 1, tmp_path / "draft")
    (report,) = corpus.finish()
    staging = Staging(str(tmp_path / "plain"), "job")
    plain = write_shard(corpus.names[0], lambda: corpus.tables, ShardOptions("none", SEED), staging)
    assert corpus.staging.piece(corpus.names[0]) == staging.piece(corpus.names[0])
    assert report == plain | {"cleaning": {}}


def test_documents_fill_whole_batches_after_others_were_dropped(tmp_path: Path) -> None:
    """Rows of a shard are in batches of 1,024, except the last."""
    rows: list[Row] = [
        (i * 0x9E3779B97F4A7C15 % 2**64, "x", ["Same.", *[f"One {i}."] * (i % 3 > 0)]) for i in range(4000)
    ]
    corpus = Corpus(rows, 1, 1, tmp_path)
    (report,) = corpus.finish()
    left, dropped, _ = without_repeats(in_order(rows), 1)
    assert rows_of(corpus.staging, corpus.names[0]) == left and dropped["x"] > 1000
    expected = shards.encode_shard(corpus.names[0], table_of(left))
    assert (corpus.staging.piece(corpus.names[0]), report["shard"]) == expected


def test_languages_stay_with_their_documents(tmp_path: Path) -> None:
    rows: list[Row] = [
        (i * 0x9E3779B97F4A7C15 % 2**64, "x", ["Same.", *[f"One {i}."] * (i % 3 > 0)]) for i in range(90)
    ]
    languages = pa.table(
        [pa.array(["en" if row[0] % 2 else "de" for row in rows]), pa.array([0.5] * 90, pa.float32())],
        schema=shards.LANGUAGE_COLUMNS,
    )
    corpus = Corpus(rows, 1, 1, tmp_path)
    (table,) = corpus.tables
    corpus.tables = [pa.table([*table.columns, *languages.columns], schema=shards.text_schema(True))]
    (report,) = corpus.finish()

    found = shards.decode_text(corpus.staging.piece(corpus.names[0]), corpus.names[0]).to_pylist()
    assert [row["language"] for row in found] == ["en" if row["document"] % 2 else "de" for row in found]
    assert report["languages"] == Counter(row["language"] for row in found)
    assert len(found) == len(without_repeats(in_order(rows), 1)[0]) < 90


@pytest.mark.parametrize("at_once", [1, 2, 1 << 16])
def test_hashes_are_those_of_each_sentence_alone(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(repeats, "_HASHED_AT_ONCE", at_once)
    texts = ["", "a", "中", "a", "b" * 1000]
    expected = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts]
    for start, end in itertools.combinations(range(6), 2):
        assert hash_sentences(pa.array(texts).slice(start, end - start)).tolist() == expected[start:end]
    assert len(hash_sentences(pa.array([], pa.string()))) == 0


@pytest.mark.parametrize("num_shards", [1, 2, 3, 1000, 65537])
def test_keys_lead_to_their_shards(num_shards: int) -> None:
    assert scaled(keys_of_shards(num_shards), num_shards).tolist() == list(range(num_shards))


def test_what_was_finished_is_not_read_again(tmp_path: Path) -> None:
    def refuse() -> list[pa.Table]:
        raise AssertionError("the tables were read")

    corpus = Corpus([(1, "x", ["a", "a"]), (2, "y", ["a"])], 1, 1, tmp_path)
    (sent,) = corpus.drafts()
    assert write_draft(corpus.names[0], refuse, corpus.options, corpus.staging) == sent
    (report,) = corpus.finish()
    assert finish_shard(corpus.names[0], refuse, 1, corpus.staging) == report | {
        "ledger": [list(entry) for entry in report["ledger"]]
    }


@pytest.mark.parametrize(("damage", "error"), [("other bytes", StorageError), ("", StorageError), (None, DataError)])
def test_a_damaged_draft_is_named(tmp_path: Path, damage: str | None, error: type[Exception]) -> None:
    corpus = Corpus([(1, "x", ["a", "a"]), (2, "y", ["a"])], 1, 1, tmp_path)
    corpus.drafts()
    (draft,) = tmp_path.rglob("draft-text-00000-of-00001.run")
    draft.unlink() if damage is None else draft.write_text(damage)
    nothing = pa.Table.from_batches([], PLACE_SCHEMA)
    with pytest.raises(error, match=r"draft-text-00000-of-00001\.run is (damaged|gone).*run the same command again"):
        finish_shard(corpus.names[0], lambda: [nothing], 1, corpus.staging)
