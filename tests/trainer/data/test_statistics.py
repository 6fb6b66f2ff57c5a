"""The counts that a run starts from: those of the pipeline, or the same of its own pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from schemas.errors import DataError
from schemas.statistics import read_statistics
from trainer.config.load import load_recipe
from trainer.data import statistics
from trainer.data.dataset import PairFolder
from trainer.data.statistics import count_sample, open_statistics, sampled_shards, statistics_for
from trainer.models.word_vectors import cooccurrence_matrix, ppmi

TINY = "tests/recipes/small_bert.toml"


@pytest.fixture(scope="module")
def counted(command, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted") / "statistics"
    assert command("statistics", "--pairs", pairs, "--output", folder).returncode == 0
    return folder


def test_a_run_counts_what_the_pipeline_counts(pairs: Path, counted: Path) -> None:
    folder = PairFolder(str(pairs))
    sample = statistics_for(load_recipe(TINY, []), [folder])
    folder.close()

    written = read_statistics(str(counted))
    assert np.array_equal(sample.unigrams_V, written.unigrams_V)
    assert np.array_equal(sample.context_weights_V, written.context_weights_V)
    joined = [np.concatenate(columns) for columns in zip(*written.cooccurrences(), strict=True)]
    in_order = np.lexsort(joined[1::-1])
    (own,) = sample.cooccurrences()
    for column, expected in zip(own, joined, strict=True):
        assert np.array_equal(column, expected[in_order])


def test_rare_pairs_that_were_dropped_do_not_change_the_others(
    command, pairs: Path, counted: Path, tmp_path: Path
) -> None:
    """Neither the mutual information of the kept pairs nor, with it, the scale of the vectors."""
    limited = tmp_path / "statistics"
    flags = ("--pairs", pairs, "--output", limited, "--max_cooccurrences", 300)
    assert command("statistics", *flags).returncode == 0

    everything = read_statistics(str(counted))
    few = read_statistics(str(limited))
    matrix = cooccurrence_matrix(few.cooccurrences(), few.vocabulary_size)
    is_kept = matrix.toarray() > 0
    of_kept = ppmi(matrix, few.context_weights_V).toarray()

    all_pairs = cooccurrence_matrix(everything.cooccurrences(), everything.vocabulary_size)
    assert 0 < is_kept.sum() < all_pairs.nnz
    of_all = ppmi(all_pairs, everything.context_weights_V).toarray()
    assert np.array_equal(of_kept, np.where(is_kept, of_all, 0))


def test_a_sample_is_some_shards_of_each_folder(pairs: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [PairFolder(str(pairs)), PairFolder(str(held_out))]
    everything = count_sample(folders, None).unigrams_V

    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    monkeypatch.setattr(statistics, "SAMPLED_TOKENS", tokens // 2)
    half = count_sample(folders, None).unigrams_V
    assert (half <= everything).all()
    assert 0.2 < half.sum() / everything.sum() < 0.8

    number_of_shards = len(folders[0].manifest.shards)
    assert sampled_shards(folders[0], 1) == [0]
    assert sampled_shards(folders[0], 10**9) == list(range(number_of_shards))
    for folder in folders:
        folder.close()


def test_a_sample_keeps_to_its_size_and_to_the_mixture(
    pairs: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the shards are: these have more tokens each than are asked for."""
    folders = [PairFolder(str(pairs)), PairFolder(str(held_out))]
    monkeypatch.setattr(statistics, "SAMPLED_TOKENS", 400)
    sampled = [count_sample([folder], None).unigrams_V.sum() for folder in folders]
    assert all(0 < tokens <= 400 for tokens in sampled)

    few_of_first = count_sample(folders, [0.1, 0.9]).unigrams_V
    all_of_second = count_sample(folders[1:], None).unigrams_V
    assert 0 < (few_of_first - np.minimum(few_of_first, all_of_second)).sum() <= 40 < few_of_first.sum() <= 400
    for folder in folders:
        folder.close()


def test_a_small_folder_counts_as_often_as_training_repeats_it(pairs: Path, held_out: Path) -> None:
    folders = [PairFolder(str(pairs)), PairFolder(str(held_out))]
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
    for folder in folders:
        folder.close()


def test_counts_of_another_vocabulary_are_refused(byte_rows: Path, counted: Path) -> None:
    folder = PairFolder(str(byte_rows))
    recipe = load_recipe(TINY, [f"data.statistics={counted}"])
    with pytest.raises(DataError, match=r"data\.statistics .* counts the tokens of vocabulary .* but the pairs have"):
        statistics_for(recipe, [folder])
    folder.close()


def test_a_recipe_without_counts_opens_none(pairs: Path) -> None:
    folder = PairFolder(str(pairs))
    assert open_statistics(load_recipe(TINY, []), folder.vocabulary) is None
    folder.close()
