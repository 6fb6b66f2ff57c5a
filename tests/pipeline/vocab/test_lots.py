"""How a text is divided into lots, and its words into partitions."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs import counts
from pipeline.jobs.counts import CountPlan, text_lots
from pipeline.jobs.text_folder import TextFolder
from pipeline.words.rules import ALL_RULES
from schemas.manifest import PART_ENTRIES, fingerprint, read_root
from tests.large_folders import write_parts

TEXT = TextFolder("", "", num_shards=1, num_parts=1, text_bytes=1)
PLAN = CountPlan(TEXT, sources=[], rules=ALL_RULES, is_result=True)


@given(num_shards=st.integers(1, 300_000), text_bytes=st.integers(1, 10**14))
def test_lots_and_partitions_are_bounded_at_any_size(num_shards: int, text_bytes: int) -> None:
    plan = replace(PLAN, text=replace(TEXT, num_shards=num_shards, text_bytes=text_bytes))
    assert PART_ENTRIES % plan.shards_per_lot == 0
    assert plan.lots >= min(num_shards, 16)
    assert plan.shards_per_lot == 1 or plan.shards_per_lot * text_bytes <= counts.LOT_BYTES * num_shards
    assert 16 <= plan.partitions <= 4096 and plan.partitions.bit_count() == 1


def test_lots_of_parts_have_the_numbers_of_lots_of_the_whole(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers read the parts of a long manifest one by one, and no lot knows of another part."""
    monkeypatch.setattr(CountPlan, "shards_per_lot", 2)
    root = read_root(str(text), "text")
    entries = [replace(root.shards[0], path=f"text-{i:05d}-of-00010.arrow") for i in range(10)]

    whole = tmp_path / "whole"
    whole.mkdir()
    fingerprint_of_whole = fingerprint("text", entries)
    listed = root.model_copy(update={"shards": entries, "fingerprint": fingerprint_of_whole})
    (whole / "manifest.json").write_bytes(listed.to_json())

    cut = tmp_path / "cut"
    cut.mkdir()
    parts = write_parts(cut, "shards", entries, size=4)
    in_parts = listed.model_copy(update={"shards": [], "parts": parts})
    (cut / "manifest.json").write_bytes(in_parts.to_json())

    expected = list(text_lots(0, replace(PLAN, text=replace(TEXT, path=str(whole), fingerprint=fingerprint_of_whole))))
    assert [number for number, _ in expected] == [0, 1, 2, 3, 4]
    plan = replace(PLAN, text=replace(TEXT, path=str(cut), fingerprint=fingerprint_of_whole))
    assert [lot for part in range(3) for lot in text_lots(part, plan)] == expected
