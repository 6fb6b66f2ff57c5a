"""The counts that a run starts from and its baseline: those of the pipeline, a plain count, or a sample."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import storage
from schemas.errors import DataError, StorageError
from schemas.statistics import read_statistics
from tests.trainer.one_rank import small_recipe
from trainer.config.load import load_recipe
from trainer.data import counts
from trainer.data.counts import (
    UNIGRAM_FILE,
    WordFrequencies,
    count_sample,
    recorded_counts,
    sampled_tables,
    sampled_unigrams,
    statistics_for,
    unigram_counts,
)
from trainer.data.folder import PairFolder

TINY = "tests/recipes/small_bert.toml"

Open = Callable[[Path], PairFolder]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens folders of pairs, which are closed at the end."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(PairFolder(str(path))))


def test_a_run_counts_what_the_pipeline_counts(pairs: Path, counted: Path, opened: Open) -> None:
    folder = opened(pairs)
    sample = statistics_for(load_recipe(TINY, []), [folder])

    written = read_statistics(str(counted))
    assert np.array_equal(sample.unigrams_V, written.unigrams_V)
    assert np.array_equal(sample.context_weights_V, written.context_weights_V)
    joined = [np.concatenate(columns) for columns in zip(*written.cooccurrences(), strict=True)]
    in_order = np.lexsort(joined[1::-1])
    (own,) = sample.cooccurrences()
    for column, expected in zip(own, joined, strict=True):
        assert np.array_equal(column, expected[in_order])


def test_a_sample_is_some_shards_of_each_folder(
    pairs: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    folders = [opened(pairs), opened(held_out)]
    everything = count_sample(folders, None).unigrams_V

    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    monkeypatch.setattr(counts, "SAMPLED_TOKENS", tokens // 2)
    half = count_sample(folders, None).unigrams_V
    assert (half <= everything).all()
    assert 0.2 < half.sum() / everything.sum() < 0.8

    few, whole = (list(sampled_tables(folders[0], tokens)) for tokens in (1, 10**9))
    assert (len(few), len(whole)) == (1, len(folders[0].manifest.shards))


def test_a_sample_keeps_to_its_size_and_to_the_mixture(
    pairs: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    """However large the shards are: these have more tokens each than are asked for."""
    folders = [opened(pairs), opened(held_out)]
    monkeypatch.setattr(counts, "SAMPLED_TOKENS", 400)
    sampled = [count_sample([folder], None).unigrams_V.sum() for folder in folders]
    assert all(0 < tokens <= 400 for tokens in sampled)

    few_of_first = count_sample(folders, [0.1, 0.9]).unigrams_V
    all_of_second = count_sample(folders[1:], None).unigrams_V
    assert 0 < (few_of_first - np.minimum(few_of_first, all_of_second)).sum() <= 40 < few_of_first.sum() <= 400


def test_a_small_folder_counts_as_often_as_training_repeats_it(pairs: Path, held_out: Path, opened: Open) -> None:
    folders = [opened(pairs), opened(held_out)]
    large, small = (count_sample([folder], None) for folder in folders)
    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    weight = 3 * folders[1].manifest.totals["tokens"] / tokens

    mixed = count_sample(folders, [1 - weight, weight])
    from_small = mixed.unigrams_V - 3 * small.unigrams_V
    assert (from_small >= 0).all(), "what is left was counted in the large folder"
    assert (from_small <= large.unigrams_V).all()

    # Co-occurrences are multiplied alike: their sums are in the proportion of the tokens.
    pairs_a_token = mixed.summed.weight_C.sum() / mixed.unigrams_V.sum()
    assert pairs_a_token == pytest.approx(large.summed.weight_C.sum() / large.unigrams_V.sum(), rel=0.1)
    assert mixed.context_weights_V.sum() == 2 * mixed.summed.weight_C.sum()


@pytest.mark.parametrize("use", [statistics_for, partial(unigram_counts, begins=True)], ids=["starts", "baseline"])
def test_counts_of_another_vocabulary_are_refused(use: Callable, byte_rows: Path, counted: Path, opened: Open) -> None:
    recipe = load_recipe(TINY, [f"data.statistics={counted}"])
    with pytest.raises(DataError, match=r"data\.statistics .* counts the tokens of vocabulary .* but the pairs have"):
        use(recipe, [opened(byte_rows)])


def plain_count(folder: PairFolder) -> list[int]:
    counts: Counter[int] = Counter()
    for number in range(len(folder.manifest.shards)):
        for row in folder.read_shard(number).column("input_ids").to_pylist():
            counts.update(row)
    special = folder.vocabulary.special_ids
    return [0 if token in special else counts[token] for token in range(folder.vocabulary.size)]


def test_counts_are_those_of_a_plain_loop(pairs: Path, opened: Open) -> None:
    folder = opened(pairs)
    # The corpus is smaller than the sample, so all of it is counted.
    assert unigram_counts(small_recipe(), [folder], begins=True).tolist() == plain_count(folder)


def test_the_baseline_s_sample_keeps_to_its_size_and_is_the_same_each_time(
    pairs: Path, monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    folder = opened(pairs)
    monkeypatch.setattr(counts, "BASELINE_TOKENS", 400)
    few = sampled_unigrams([folder], None)
    assert 0 < few.sum() <= 400
    assert np.array_equal(few, sampled_unigrams([folder], None))


def test_counts_are_kept_with_the_run_until_the_pairs_change(
    pairs: Path, sop_pairs, tmp_path: Path, monkeypatch, opened: Open
) -> None:
    recipe = small_recipe(f"data.pairs={pairs}", f"run.output={tmp_path}")
    folder, other = opened(pairs), opened(sop_pairs[0])
    first = recorded_counts(recipe, [folder], begins=True)
    kept = json.loads((tmp_path / UNIGRAM_FILE).read_text())
    assert kept["counts"] == first.tolist()

    (tmp_path / UNIGRAM_FILE).write_text(json.dumps(kept | {"counts": [1] * len(first)}))
    assert recorded_counts(recipe, [folder], begins=False).tolist() == [1] * len(first)
    assert recorded_counts(recipe, [other], begins=False).tolist() == plain_count(other)

    (tmp_path / UNIGRAM_FILE).write_text("no JSON")
    assert np.array_equal(recorded_counts(recipe, [folder], begins=False), first)


def test_a_resumed_run_keeps_its_counts_whatever_became_of_its_statistics(
    counted: Path, pairs: Path, tmp_path: Path, opened: Open
) -> None:
    own = shutil.copytree(counted, tmp_path / "statistics")
    changes = (f"data.pairs={pairs}", f"run.output={tmp_path}")
    recipe = small_recipe(*changes, f"data.statistics={own}")
    folder = opened(pairs)
    recorded_counts(recipe, [folder], begins=True)
    kept = json.loads((tmp_path / UNIGRAM_FILE).read_text())
    marked = [1] * len(kept["counts"])
    (tmp_path / UNIGRAM_FILE).write_text(json.dumps(kept | {"counts": marked}))

    # Removed from the recipe, or from the disk.
    assert recorded_counts(small_recipe(*changes), [folder], begins=False).tolist() == marked
    shutil.rmtree(own)
    assert recorded_counts(recipe, [folder], begins=False).tolist() == marked
    with pytest.raises(DataError, match="holds no finished statistics"):
        recorded_counts(recipe, [folder], begins=True)

    # A run that begins is made from what it has now.
    assert recorded_counts(small_recipe(*changes), [folder], begins=True).tolist() == plain_count(folder)


def test_statistics_of_other_text_do_not_make_the_baseline(
    counted: Path, pairs: Path, sop_pairs, tmp_path: Path, opened: Open
) -> None:
    """Neither that of a mixture, nor that of a later phase with its own pairs, where they may even be gone."""
    own = shutil.copytree(counted, tmp_path / "statistics")
    recipe = small_recipe(f"data.pairs={pairs}", f"run.output={tmp_path}", f"data.statistics={own}")
    folder = opened(pairs)
    other = opened(sop_pairs[0])
    mixed = unigram_counts(small_recipe(), [folder, other], begins=True).tolist()
    assert recorded_counts(recipe, [folder, other], begins=True).tolist() == mixed
    sampled = plain_count(other)
    assert recorded_counts(recipe, [other], begins=False).tolist() == sampled

    (tmp_path / UNIGRAM_FILE).unlink()
    shutil.rmtree(own)
    assert recorded_counts(recipe, [other], begins=False).tolist() == sampled


def test_a_disk_that_fails_is_no_damaged_shard(pairs: Path, monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    def fail(url: str) -> bytes:
        raise StorageError(f"{url}: {os.strerror(errno.EIO)}")

    folder = opened(pairs)
    monkeypatch.setattr(storage, "read", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        sampled_unigrams([folder], None)


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=50).filter(any))
def test_losses_are_those_of_smoothed_frequencies(counts: list[int]) -> None:
    frequencies = WordFrequencies(np.array(counts, dtype=np.int64))
    probabilities = [(count + 1) / (sum(counts) + len(counts)) for count in counts]
    assert sum(probabilities) == pytest.approx(1)
    assert frequencies.losses_V == pytest.approx([-math.log(p) for p in probabilities], abs=1e-9)

    mean = sum(count * -math.log(p) for count, p in zip(counts, probabilities, strict=True)) / sum(counts)
    assert frequencies.loss == pytest.approx(mean, abs=1e-9)
