"""partition, plan and merge without Beam: what goes in comes out once, wherever it lies in the input."""

import json
import random
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import indexes_by_name, parts_of_runs, read_tables
from pipeline.readers.inputs import plan_splits
from pipeline.readers.listing import matching_files
from pipeline.shard import run_buffer
from pipeline.shard.documents import STEPS, Document, Drop, ReadOptions
from pipeline.shard.run_buffer import document_id
from pipeline.shard.survey import add_runs, survey_corpus
from pipeline.shard.write_runs import documents_stream, write_runs
from pipeline.shard.write_shard import ShardOptions, write_shard
from schemas import shards
from schemas.errors import DataError

READING = ReadOptions("text", "blank_line", "en", "sentencex", "none", seed=0)


def shuffle(folder: Path, lines: list[str], num_shards: int | None, max_bad_ratio: float = 0.5):
    """Return the reports and tables of all shards that a file of these lines makes."""
    folder.mkdir()
    (folder / "x.jsonl").write_text("".join(lines))
    (split,) = plan_splits(matching_files(str(folder / "x.jsonl")), "auto")

    staging = Staging(str(folder / "out"), "job")
    runs = list(write_runs(split, READING, num_shards, staging))
    survey = survey_corpus(add_runs(runs), num_shards, 64 << 20, max_bad_ratio)

    streams = [documents_stream("none", 0)]
    indexes = indexes_by_name((0, run["index"]) for run in runs)
    reports = []
    for index in range(survey.num_shards):
        name = shards.shard_name("text", index, survey.num_shards)
        contents = partial(parts_of_runs, indexes, index, survey.num_shards)
        tables = partial(read_tables, contents, streams, staging)
        reports.append(write_shard(name, tables, ShardOptions("none", 0), staging))

    paths = [report["shard"]["path"] for report in reports]
    return reports, [shards.decode_table(staging.piece(path), path, shards.TEXT_SCHEMA) for path in paths]


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
    monkeypatch.setattr(run_buffer, "RUN_CHARACTERS", 500)
    reordered = random.Random(1).sample(documents, len(documents))
    two, _ = shuffle(tmp_path / "b", lines_of(reordered), 3)
    assert [r["shard"]["sha256"] for r in one] == [r["shard"]["sha256"] for r in two]


def test_shards_are_near_equal(tmp_path: Path) -> None:
    _, tables = shuffle(tmp_path / "a", lines_of([f"Document number {i}." for i in range(4000)]), 4)
    rows = [table.num_rows for table in tables]
    assert min(rows) > 900
    assert all((pc.list_value_length(table["sentences"]).to_numpy() > 0).all() for table in tables)  # type: ignore


def test_bad_records_are_counted_and_too_many_stop_the_job(tmp_path: Path) -> None:
    bad = ["{\n", "[]\n", "\n", '{"text": " "}\n']  # a blank line is no record, an empty document no bad one
    good = lines_of(["A sentence. Another."] * 6)
    with pytest.raises(
        DataError,
        match=r"22\.22% of .* are bad.* They are 1 x line is not .*, 1 x line is not .* "
        r"The first: line is not JSON \(it ends early\), at byte 198 of .*x\.jsonl",
    ):
        shuffle(tmp_path / "a", [*good, *bad], 1, max_bad_ratio=0.1)
    shuffle(tmp_path / "b", [*good, *bad], 1, max_bad_ratio=0.23)


def test_excerpts_of_a_run_are_bounded_and_counts_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_buffer, "MAX_EXCERPTS", 3)
    (tmp_path / "x.jsonl").write_text("".join(lines_of(["A sentence."])) + '{"body": "Another key."}\n' * 50)
    (split,) = plan_splits(matching_files(str(tmp_path / "x.jsonl")), "auto")
    staging = Staging(str(tmp_path / "out"), "job")

    (run,) = write_runs(split, READING, 1, staging)
    assert run["rejected"] == 50
    assert run["ledger"] == [["no text under 'text'", "jsonl", 50]]

    kept = [json.loads(line) for line in staging.piece("run-000000-0000.rejected.jsonl").splitlines()]
    assert len(kept) == 3
    assert run["first_rejected"] == {"run": "run-000000-0000", **kept[0]}


def without_short_ones(document: Document, options: ReadOptions) -> Document | Drop:
    return document if len(document.sentences) > 1 else Drop("one sentence")


def test_what_a_new_step_drops_is_in_the_ledger_and_no_bad_record(tmp_path: Path, monkeypatch) -> None:
    records = [{"text": "One."}, {"text": "Two. Three."}, {"text": "Four.", "source": "web"}, {"text": " "}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (split,) = plan_splits(matching_files(str(tmp_path / "x.jsonl")), "auto")
    monkeypatch.setattr(run_buffer, "STEPS", (*STEPS, without_short_ones))

    (run,) = write_runs(split, READING, 1, Staging(str(tmp_path / "out"), "job"))
    assert run["documents"] == 1 and run["rejected"] == 0 and run["dropped"] == 3
    assert run["ledger"] == [["empty document", "jsonl", 1], ["one sentence", "jsonl", 1], ["one sentence", "web", 1]]


@pytest.mark.parametrize("lines", [[], ["\n"], ['{"text": ""}\n']])
def test_an_empty_corpus_is_an_error(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DataError, match="no document with any text"):
        shuffle(tmp_path / "a", lines, None)


def test_a_document_is_named_by_its_text_alone() -> None:
    assert document_id(b"A b. C d.") == 4330522589005717855
    assert document_id(b"A b.") != document_id(b"A b!")
