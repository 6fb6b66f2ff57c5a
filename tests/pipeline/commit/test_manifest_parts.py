"""Finishing by parts: the same manifest as from all reports together, whatever their order and however many parts."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commit import parts as manifest_parts
from pipeline.commit.parts import Summary, in_parts, part_of_report, summarize_folder, summarize_part
from pipeline.commit.reports import Report, add_histograms
from pipeline.commit.staging import Staging
from pipeline.jobs.pairs import add_pair_reports
from schemas import manifest as manifests
from schemas import storage
from schemas.manifest import Input, Shard, fingerprint, read_part
from schemas.shards import shard_name
from tests.large_folders import many_shards


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Parts of 8 entries, so that a few shards make several."""
    monkeypatch.setattr(manifest_parts, "PART_ENTRIES", 8)
    monkeypatch.setattr(manifest_parts, "ADDED_AT_ONCE", 3)
    monkeypatch.setattr(manifests, "PART_ENTRIES", 8)
    return 8


def report_of(shard: Shard) -> Report:
    fields = {name: getattr(shard, name) for name in Shard.__slots__}
    return {"shard": fields, "histogram": [shard.rows, 1]}


def add_up(reports: list[Report]) -> Report:
    return {"histogram": add_histograms(reports, "histogram")}


def summarize(reports: list[Report], staging: Staging) -> Summary:
    """All the steps, as a job takes them, with every list in another order."""
    rng = random.Random(len(reports))
    shuffled = rng.sample(reports, len(reports))
    by_part: dict[int, list[Report]] = {}
    for report in shuffled:
        by_part.setdefault(part_of_report(report), []).append(report)

    summaries = [summarize_part(part, add_up, staging) for part in by_part.items()]
    sent = [pickle.loads(pickle.dumps(summary)) for summary in summaries]
    return summarize_folder(sent, add_up)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 21])
def test_parts_say_what_all_reports_together_say(small_parts: int, tmp_path: Path, count: int) -> None:
    entries = many_shards("pairs", count)
    staging = Staging(str(tmp_path), "job")
    folder = summarize([report_of(shard) for shard in entries], staging)

    read = [entry for part in folder.parts for entry in read_part(staging.url(""), part)]
    assert (folder.shards or read) == entries
    assert (folder.parts == []) == (count <= small_parts)
    assert folder.fingerprint("pairs", "id") == fingerprint("pairs", entries, "id")
    assert (folder.rows, folder.tokens) == (sum(s.rows for s in entries), sum(s.tokens for s in entries))
    assert folder.largest == max(entries, key=lambda shard: shard.rows)
    assert folder.sums == {"histogram": [folder.rows, count]}


def test_a_report_that_is_missing_or_comes_twice_is_no_result(small_parts: int, tmp_path: Path) -> None:
    reports = [report_of(shard) for shard in many_shards("pairs", 12)]
    staging = Staging(str(tmp_path), "job")
    for wrong in (reports[:-1], reports[1:], [*reports, reports[3]]):
        with pytest.raises(ValueError, match="reports of"):
            summarize(wrong, staging)


def test_inputs_beyond_a_part_are_written_into_parts(small_parts: int, tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "job")
    inputs = [Input(path=f"{i}.txt", bytes=i) for i in range(19)]
    assert in_parts("inputs", inputs[:8], staging) == (inputs[:8], [])
    listed, parts = in_parts("inputs", inputs, staging)
    assert listed == []
    assert [entry for part in parts for entry in read_part(staging.url(""), part)] == inputs
    assert set(storage.names(staging.url(""))) == {part.path for part in parts}


def test_parts_have_4096_entries() -> None:
    shards = [shard_name("pairs", index, 100_001) for index in (0, 4095, 4096, 100_000)]
    assert [part_of_report({"shard": {"path": name}}) for name in shards] == [0, 0, 1, 24]


COUNTS = st.integers(0, 1 << 40)
HISTOGRAMS = st.lists(COUNTS, max_size=4)
LEDGERS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), COUNTS), max_size=3)


def pair_reports() -> st.SearchStrategy[dict[str, Any]]:
    histograms = {name: HISTOGRAMS for name in ("labels", "lengths", "segment_a_lengths")}
    counts = {name: COUNTS for name in ("unknown_tokens", "words", "unknown_words", "duplicate_rows")}
    tables = {name: st.dictionaries(st.sampled_from("pqr"), COUNTS) for name in ("source_tokens", "masks")}
    return st.fixed_dictionaries({**histograms, **counts, **tables, "ledger": LEDGERS})


@given(st.lists(pair_reports(), min_size=1, max_size=6), st.data())
def test_sums_of_sums_are_the_sums_of_all(reports: list[Report], data: st.DataObject) -> None:
    whole = add_pair_reports(reports)
    shuffled = data.draw(st.permutations(reports))
    cut = data.draw(st.integers(0, len(reports)))
    groups = [group for group in (shuffled[:cut], shuffled[cut:]) if group]
    assert add_pair_reports([add_pair_reports(group) for group in groups]) == whole
