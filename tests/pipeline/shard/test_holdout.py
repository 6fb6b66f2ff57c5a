"""Which documents are held out, and where they go."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.commit.reports import add_counts
from pipeline.shard.holdout import held_out_folder, is_held_out, plan_held_out
from pipeline.shard.survey import SMALL_SHARD_BYTES
from pipeline.shard.write_runs import placements
from schemas.errors import DataError, UsageError

IDS = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_share_is_within_five_deviations(share: float, seed: int) -> None:
    expected = share * len(IDS)
    deviation = math.sqrt(expected * (1 - share))
    assert abs(is_held_out(IDS, share, seed).sum() - expected) < 5 * deviation


@given(
    ids=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    share=st.floats(1e-9, 1 - 1e-9),
    larger=st.floats(1e-9, 1 - 1e-9),
    seed=st.integers(),
)
def test_a_side_follows_from_the_document_alone_and_a_larger_share_holds_out_more(ids, share, larger, seed) -> None:
    share, larger = sorted((share, larger))
    documents = np.array(ids, np.uint64)
    sides = is_held_out(documents, share, seed)
    assert sides.tolist() == [bool(is_held_out(np.array([one], np.uint64), share, seed)[0]) for one in ids]
    assert (is_held_out(documents, larger, seed) | ~sides).all()


def test_sides_of_another_seed_and_places_in_shards_are_independent() -> None:
    sides = is_held_out(IDS, 0.5, 0)
    assert abs((sides == is_held_out(IDS, 0.5, 1)).mean() - 0.5) < 0.01
    assert abs((sides == (placements(IDS, 0) < 2**63)).mean() - 0.5) < 0.01


def test_sides_never_change() -> None:
    """Golden: other sides would put documents that a model was evaluated on into its next training text."""
    held_out = np.flatnonzero(is_held_out(np.arange(200, dtype=np.uint64), 0.05, 0))
    assert held_out.tolist() == [3, 17, 27, 98, 130, 134, 157, 168, 187, 198]


@pytest.mark.parametrize(
    ("output", "folder"),
    [
        ("out/text", "out/text_heldout"),
        ("/data/text/", "/data/text_heldout"),
        ("s3://bucket/text", "s3://bucket/text_heldout"),
        ("memory://text", "memory://text_heldout"),
    ],
)
def test_the_folder_is_named_for_the_output(output: str, folder: str) -> None:
    assert held_out_folder(output) == folder


def test_a_dot_is_named_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    monkeypatch.chdir(tmp_path / "text")
    assert held_out_folder(".") == str(tmp_path / "text_heldout")


@pytest.mark.parametrize("output", ["/", "file:///", "s3://bucket", "s3://bucket/"])
def test_an_output_without_a_name_is_refused(output: str) -> None:
    with pytest.raises(UsageError, match=r"no name of its own\. Give a folder in it"):
        held_out_folder(output)


def counts(documents: int, held_out: int, text_bytes: int, shards: int = 1000) -> dict[str, int]:
    return {"shards": shards, "documents": documents, "held_out": held_out, "text_bytes": text_bytes}


def test_held_out_shards_follow_from_their_text() -> None:
    parts = [counts(990, 10, SMALL_SHARD_BYTES // 200, shards=1)] * 1000
    added = add_counts([add_counts(parts[:300]), add_counts(parts[300:])])
    num_shards, merges_runs = plan_held_out(added, 0.01, 64 << 20)
    assert num_shards == 8  # five times 8 MB, rounded up to a power of two
    assert not merges_runs


@pytest.mark.parametrize(("documents", "held_out", "advice"), [(10, 0, "larger"), (0, 10, "smaller")])
def test_two_folders_need_documents(documents: int, held_out: int, advice: str) -> None:
    with pytest.raises(DataError, match=f"of 10 documents.*Give a {advice} share"):
        plan_held_out(counts(documents, held_out, 100), 0.5, 64 << 20)
