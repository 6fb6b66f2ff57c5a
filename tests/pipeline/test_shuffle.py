"""spread and gather together, without Beam: what goes in comes out once, in an order that nothing else decides."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from pipeline.shard import near_duplicates
from pipeline.shard import spread as spreading
from pipeline.shard.gather import gather
from pipeline.shard.inputs import matching_files, plan_splits
from pipeline.shard.spread import Reading, document_id, spread
from pipeline.shard.survey import survey
from pipeline.staging import Staging
from schemas import shards
from schemas.errors import DataError


def shuffle(folder: Path, lines: list[str], num_shards: int | None, dedup: Any = "none", max_bad_ratio: float = 0.5):
    """The reports and tables of all shards."""
    folder.mkdir()
    (folder / "x.jsonl").write_text("".join(lines))
    staging = Staging(str(folder / "out"), "job")
    reading = Reading("text", "blank_line", "en", "sentencex", near_duplicates=dedup == "minhash", seed=0)
    splits = plan_splits(matching_files(str(folder / "x.jsonl")), "auto")
    corpus = survey([spread(split, reading, num_shards, staging) for split in splits], num_shards, max_bad_ratio)
    near = None
    if dedup == "minhash":
        joined = [near_duplicates.join(bucket, corpus.runs, staging) for bucket in range(near_duplicates.JOINS)]
        near = near_duplicates.resolve(corpus.runs, joined, staging)
    reports = [gather(i, corpus, near, dedup, 0, staging) for i in range(corpus.num_shards)]
    tables = [shards.decode_table(staging.piece(r["shard"]["path"]), "x", shards.TEXT) for r in reports]
    return reports, tables


def lines_of(texts: list[str]) -> list[str]:
    return [json.dumps({"text": text}) + "\n" for text in texts]


@pytest.mark.parametrize("num_shards", [1, 3, 16])
def test_every_document_comes_out_once(tmp_path: Path, documents: list[str], num_shards: int) -> None:
    reports, tables = shuffle(tmp_path / "a", lines_of(documents), num_shards)
    assert len(tables) == num_shards
    found = sorted(" ".join(row) for table in tables for row in table["sentences"].to_pylist())
    assert found == sorted(documents)
    assert sum(report["shard"]["rows"] for report in reports) == len(documents)


def test_order_and_runs_leave_no_trace(tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = shuffle(tmp_path / "a", lines_of(documents), 3)
    monkeypatch.setattr(spreading, "RUN_CHARACTERS", 500)
    reordered = random.Random(1).sample(documents, len(documents))
    two, _ = shuffle(tmp_path / "b", lines_of(reordered), 3)
    assert [r["shard"]["sha256"] for r in one] == [r["shard"]["sha256"] for r in two]


def test_exact_duplicates_keep_one(tmp_path: Path, documents: list[str]) -> None:
    reports, tables = shuffle(tmp_path / "a", lines_of([*documents, *documents[:7], "  " + documents[3]]), 3, "exact")
    assert sum(table.num_rows for table in tables) == len(set(documents))
    dropped = [entry for report in reports for entry in report["ledger"]]
    assert sum(count for _, _, count in dropped) == 8 + len(documents) - len(set(documents))
    assert {reason for reason, _, _ in dropped} == {"duplicate document"}


def test_shards_are_near_equal(tmp_path: Path) -> None:
    _, tables = shuffle(tmp_path / "a", lines_of([f"Document number {i}." for i in range(4000)]), 4)
    rows = [table.num_rows for table in tables]
    assert min(rows) > 900
    assert all((pc.list_value_length(table["sentences"]).to_numpy() > 0).all() for table in tables)  # type: ignore


def test_bad_records_are_counted_and_too_many_stop_the_job(tmp_path: Path) -> None:
    bad = ["{\n", "[]\n", "\n", '{"text": " "}\n']  # a blank line and an empty document are not bad
    good = lines_of(["A sentence. Another."] * 6)
    with pytest.raises(
        DataError, match=r"25\.00% of the records are bad.*The first: line is not JSON, at byte 198 of .*x\.jsonl"
    ):
        shuffle(tmp_path / "a", [*good, *bad], 1, max_bad_ratio=0.1)
    shuffle(tmp_path / "b", [*good, *bad], 1, max_bad_ratio=0.25)


@pytest.mark.parametrize("lines", [[], ["\n"], ['{"text": ""}\n']])
def test_an_empty_corpus_is_an_error(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DataError, match="no document with any text"):
        shuffle(tmp_path / "a", lines, None)


def test_a_document_is_named_by_its_text_alone() -> None:
    assert document_id(["A b.", "C d."]) == document_id(["A b. C d."]) == 4330522589005717855
    assert document_id(["A b."]) != document_id(["A b!"])
