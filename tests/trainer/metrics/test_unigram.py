"""Word frequencies of the training rows, against a plain count, and the loss of a model that knows them alone."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError
from schemas.manifest import read_manifest
from tests.trainer.one_rank import small_recipe
from trainer.data.dataset import PairFolder
from trainer.metrics.unigram import (
    UNIGRAM_FILE,
    WordFrequencies,
    counts_of_folder,
    counts_of_shard,
    recorded_counts,
    unigram_counts,
)


def plain_count(folder: PairFolder) -> list[int]:
    counts: Counter[int] = Counter()
    for number in range(len(folder.manifest.shards)):
        for row in folder.read_shard(number).column("input_ids").to_pylist():
            counts.update(row)
    special = folder.vocabulary.special_ids
    return [0 if token in special else counts[token] for token in range(folder.vocabulary.size)]


def test_counts_are_those_of_a_plain_loop(pairs: Path) -> None:
    folder = PairFolder(str(pairs))
    try:
        # The corpus is smaller than the sample, so all of it is counted.
        assert unigram_counts([folder], None, None).tolist() == plain_count(folder)
    finally:
        folder.close()


def test_a_sample_is_about_as_large_as_asked_and_the_same_each_time(pairs: Path) -> None:
    folder = PairFolder(str(pairs))
    try:
        few = counts_of_folder(folder, 1)
        assert 0 < few.sum() <= folder.manifest.totals["tokens"]
        assert np.array_equal(few, counts_of_folder(folder, 1))
    finally:
        folder.close()


def test_counts_are_kept_with_the_run_until_the_pairs_change(
    pairs: Path, sop_pairs, tmp_path: Path, monkeypatch
) -> None:
    recipe = small_recipe(f"data.pairs={pairs}", f"run.output={tmp_path}")
    folder, other = PairFolder(str(pairs)), PairFolder(str(sop_pairs[0]))
    try:
        first = recorded_counts(recipe, [folder], begins=True)
        kept = json.loads((tmp_path / UNIGRAM_FILE).read_text())
        assert kept["counts"] == first.tolist()

        (tmp_path / UNIGRAM_FILE).write_text(json.dumps(kept | {"counts": [1] * len(first)}))
        assert recorded_counts(recipe, [folder], begins=True).tolist() == [1] * len(first)
        assert recorded_counts(recipe, [other], begins=True).tolist() == unigram_counts([other], None, None).tolist()

        (tmp_path / UNIGRAM_FILE).write_text("no JSON")
        assert np.array_equal(recorded_counts(recipe, [folder], begins=True), first)
    finally:
        folder.close()
        other.close()


def test_a_resumed_run_keeps_its_counts_whatever_became_of_its_statistics(command, pairs: Path, tmp_path: Path) -> None:
    counted = tmp_path / "statistics"
    assert command("statistics", "--pairs", pairs, "--output", counted).returncode == 0
    changes = (f"data.pairs={pairs}", f"run.output={tmp_path}")
    recipe = small_recipe(*changes, f"data.statistics={counted}")
    folder = PairFolder(str(pairs))
    try:
        recorded_counts(recipe, [folder], begins=True)
        kept = json.loads((tmp_path / UNIGRAM_FILE).read_text())
        assert kept["made_from"]["statistics"] == read_manifest(str(counted), "statistics").fingerprint
        marked = [1] * len(kept["counts"])
        (tmp_path / UNIGRAM_FILE).write_text(json.dumps(kept | {"counts": marked}))

        # Removed from the recipe, or from the disk.
        assert recorded_counts(small_recipe(*changes), [folder], begins=False).tolist() == marked
        shutil.rmtree(counted)
        assert recorded_counts(recipe, [folder], begins=False).tolist() == marked
        with pytest.raises(DataError, match="holds no finished statistics"):
            recorded_counts(recipe, [folder], begins=True)

        # A run that begins is made from what it has now.
        assert recorded_counts(small_recipe(*changes), [folder], begins=True).tolist() == plain_count(folder)
    finally:
        folder.close()


def test_statistics_of_other_text_do_not_make_the_baseline(command, pairs: Path, sop_pairs, tmp_path: Path) -> None:
    """Neither that of a mixture, nor that of a later phase with its own pairs, where they may even be gone."""
    counted = tmp_path / "statistics"
    assert command("statistics", "--pairs", pairs, "--output", counted).returncode == 0
    recipe = small_recipe(f"data.pairs={pairs}", f"run.output={tmp_path}", f"data.statistics={counted}")
    folder = PairFolder(str(pairs))
    other = PairFolder(str(sop_pairs[0]))
    try:
        mixed = unigram_counts([folder, other], None, None).tolist()
        assert recorded_counts(recipe, [folder, other], begins=True).tolist() == mixed
        sampled = unigram_counts([other], None, None).tolist()
        assert recorded_counts(recipe, [other], begins=False).tolist() == sampled

        (tmp_path / UNIGRAM_FILE).unlink()
        shutil.rmtree(counted)
        assert recorded_counts(recipe, [other], begins=False).tolist() == sampled
    finally:
        folder.close()
        other.close()


def test_a_disk_that_fails_is_no_damaged_shard(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder = PairFolder(str(pairs))
    monkeypatch.setattr(folder, "open_shard", lambda number: Failing(bytes(1000)))
    with pytest.raises(OSError, match="Input/output error"):
        counts_of_shard(folder, 0, 10)
    folder.close()


def test_a_damaged_shard_counts_nothing(pairs: Path, tmp_path: Path) -> None:
    shutil.copytree(pairs, tmp_path / "pairs")
    folder = PairFolder(str(tmp_path / "pairs"))
    try:
        first, second = (tmp_path / "pairs" / shard.path for shard in folder.manifest.shards[:2])
        first.write_bytes(b"ARROW1" + bytes(100))
        second.unlink()
        for number in (0, 1):
            assert not counts_of_shard(folder, number, 10).any()
    finally:
        folder.close()


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=50).filter(any))
def test_losses_are_those_of_smoothed_frequencies(counts: list[int]) -> None:
    frequencies = WordFrequencies(np.array(counts, dtype=np.int64))
    probabilities = [(count + 1) / (sum(counts) + len(counts)) for count in counts]
    assert sum(probabilities) == pytest.approx(1)
    assert frequencies.losses_V == pytest.approx([-math.log(p) for p in probabilities], abs=1e-9)

    mean = sum(count * -math.log(p) for count, p in zip(counts, probabilities, strict=True)) / sum(counts)
    assert frequencies.loss == pytest.approx(mean, abs=1e-9)
