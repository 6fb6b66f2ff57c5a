"""Adding up what runs report, and choosing the number of shards."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard.survey import add_runs, shards_for, survey_corpus
from pipeline.shard.write_runs import RUN_BUCKETS
from schemas.errors import DataError

MB = 1 << 20
ALL_MAY_BE_BAD = 1.0


def report(number: int, **more: Any) -> dict[str, Any]:
    """A report of `write_runs`; some runs have rejected records, undecodable bytes, or documents of many lines."""
    name = f"run-{number:06d}-0000"
    path = f"file-{number % 3}"
    undecodable = {"path": path, "encoding": "utf-8", "count": number, "worst_count": number, "first_place": number}
    undecodable["is_other"] = number % 2 == 1
    return {
        "run": name,
        "documents": number,
        "characters": 90 * number,
        "text_bytes": 100 * number,
        "ledger": [["empty document", "xy"[number % 2], number]],
        "cleaning": {"spaces made plain": number} if number % 2 else {},
        "rejected": number % 4,
        "first_rejected": {"run": name, "reason": "r", "place": 1, "path": path, "shown": ""} if number % 4 else None,
        "undecodable": [undecodable | {"likely": "", "size": 10**6}] if number % 5 == 0 else [],
        "unbroken": number % 2,
        "first_unbroken": {"run": name, "path": path, "place": 5, "lines": number} if number % 2 else None,
    } | more


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True), st.integers(0, 2**32))
@settings(max_examples=60)
def test_reports_add_up_to_the_same_in_any_order_and_grouping(numbers: list[int], seed: int) -> None:
    reports = [report(number) for number in numbers]
    expected = add_runs(reports)
    assert expected["documents"] == sum(numbers) and expected["runs"] == len(numbers)

    draw = random.Random(seed)
    while len(reports) > 1:
        draw.shuffle(reports)
        count = draw.randint(1, len(reports))
        reports = [add_runs(reports[:count]), *reports[count:]]
    assert add_runs(reports) == expected


def test_the_first_run_with_a_fault_is_the_one_that_is_shown() -> None:
    added = add_runs([add_runs([report(7), report(3)]), report(5)])
    assert added["first_rejected"]["run"] == "run-000003-0000"
    assert added["rejected_runs"] == ["run-000003-0000", "run-000005-0000", "run-000007-0000"]


def test_dropped_documents_are_records_too_and_all_kinds_of_bad_ones_are_named() -> None:
    bad = [["document that cannot be read", "pdf", 1], ["line is not a JSON object", "jsonl", 2]]
    added = add_runs([report(1, rejected=3, bad=bad, dropped=95), report(2, rejected=0, bad=[], dropped=0)])
    with pytest.raises(
        DataError, match=r"100\.00% .*They are 2 x line is not a JSON object \(jsonl\), 1 x doc.* \(pdf\)\."
    ):
        survey_corpus(added | {"documents": 0, "dropped": 0}, None, 64 * MB, 0.03)
    survey_corpus(added, None, 64 * MB, 0.03)


def test_nothing_adds_up_to_nothing() -> None:
    with pytest.raises(DataError, match="no document"):
        survey_corpus(add_runs([]), None, 64 * MB, ALL_MAY_BE_BAD)


@pytest.mark.parametrize(
    ("text_bytes", "shards"),
    [
        (1, 1),
        (8 * MB, 1),
        (8 * MB + 1, 2),
        (20 * MB, 4),
        (8192 * MB, 1024),
        (8193 * MB, 1024),  # from here on shards grow
        (65536 * MB, 1024),
        (65537 * MB, 2048),  # they have reached 64 MB
        (10 * 2**20 * MB, 262144),
    ],
)
def test_shards_are_small_in_a_small_corpus_and_bounded_in_a_large_one(text_bytes: int, shards: int) -> None:
    assert shards_for(text_bytes, 64 * MB) == shards


@given(st.integers(1, 1 << 44), st.integers(1, 4096))
@settings(max_examples=100)
def test_no_shard_is_larger_than_the_user_wants(text_bytes: int, megabytes: int) -> None:
    shards = shards_for(text_bytes, megabytes * MB)
    assert shards.bit_count() == 1
    assert text_bytes <= shards * megabytes * MB


@pytest.mark.parametrize(
    ("runs", "num_shards", "merges"),
    [
        (10, None, False),
        (10**6, 64, True),
        (10, 2 * RUN_BUCKETS, False),  # runs are cut into exactly these shards
    ],
)
def test_runs_are_merged_when_shards_would_read_too_many_ranges(
    runs: int, num_shards: int | None, merges: bool
) -> None:
    added = add_runs([report(1)]) | {"runs": runs, "documents": 5, "text_bytes": 5}
    assert survey_corpus(added, num_shards, 64 * MB, ALL_MAY_BE_BAD).merges_runs == merges


def test_more_shards_than_a_run_has_buckets_need_merged_runs() -> None:
    added = add_runs([report(1)]) | {"text_bytes": 65537 * MB}
    survey = survey_corpus(added, None, 64 * MB, ALL_MAY_BE_BAD)
    assert survey.num_shards == 2 * RUN_BUCKETS and survey.merges_runs


def test_too_few_shards_are_refused_with_a_number_that_is_enough() -> None:
    added = add_runs([report(1)]) | {"text_bytes": 3 << 31}
    with pytest.raises(DataError, match=r"--num_shards 2 is too few: .* in 2 shards.* Give --num_shards 7 or more"):
        survey_corpus(added, 2, 64 * MB, ALL_MAY_BE_BAD)
