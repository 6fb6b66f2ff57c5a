"""Counts of the training text for a run that begins: those of data.statistics, or of a sample of its own pairs.

`python -m pipeline statistics` counts up to hundreds of millions of tokens on all cores. Without it the run counts
some itself, which takes seconds and is enough for a small model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.cooccurrences import add_up, blocks_of, count_cooccurrences, count_unigrams, counting_of
from schemas.errors import DataError
from schemas.statistics import Cooccurrences, Statistics, TokenStatistics, read_statistics
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder

SAMPLED_TOKENS = 8_000_000
"""About how many tokens are counted without data.statistics, from whole shards."""

WINDOW = 3
"""Of these counts, as the default of `statistics`."""


@dataclass(frozen=True)
class SampledStatistics:
    """The counts of a sample of the training rows."""

    unigrams_V: NDArray[np.int64]
    summed: Cooccurrences

    def cooccurrences(self) -> Iterator[Cooccurrences]:
        yield self.summed


def statistics_for(recipe: Recipe, folders: list[PairFolder]) -> TokenStatistics:
    """Return the counts of the training text. Raises DataError as `open_statistics` and `PairFolder.read_shard` do."""
    opened = open_statistics(recipe, folders[0].vocabulary)
    return count_sample(folders, recipe.data.weights) if opened is None else opened


def open_statistics(recipe: Recipe, vocabulary: Vocabulary) -> Statistics | None:
    """Return the counts of data.statistics, or None if the recipe has none.

    Raises DataError if they are not finished, or count the tokens of another vocabulary than the pairs'.
    """
    folder = recipe.data.statistics
    if folder is None:
        return None

    statistics = read_statistics(folder)
    if statistics.vocabulary_fingerprint != vocabulary.fingerprint:
        raise DataError(
            f"data.statistics {folder} counts the tokens of vocabulary {statistics.vocabulary_fingerprint}, but the "
            f"pairs have {vocabulary.fingerprint}. Count these pairs: `python -m pipeline statistics --pairs PAIRS "
            "--output FOLDER`."
        )
    return statistics


def count_sample(folders: list[PairFolder], weights: list[float] | None) -> SampledStatistics:
    """Count about SAMPLED_TOKENS tokens, from each folder its share of the mixture. A function of the pairs alone."""
    if weights is None:
        weights = [float(folder.manifest.totals["tokens"]) for folder in folders]

    vocabulary = folders[0].vocabulary
    counting = counting_of(vocabulary, WINDOW)
    unigrams_V = np.zeros(vocabulary.size, dtype=np.int64)
    parts: list[Cooccurrences] = []
    for folder, weight in zip(folders, weights, strict=True):
        shards = sampled_shards(folder, SAMPLED_TOKENS * weight / sum(weights))
        for rows in blocks_of((folder.read_shard(number) for number in shards), WINDOW):
            unigrams_V += count_unigrams(rows, counting)
            parts.append(count_cooccurrences(rows, counting))

    joined = Cooccurrences(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return SampledStatistics(unigrams_V, add_up(joined, vocabulary.size))


def sampled_shards(folder: PairFolder, tokens: float) -> list[int]:
    """Return shards that lie evenly in a folder and have so many tokens together, or a little more.

    Documents went to shards by their hash, so any shard is a sample of the corpus.
    """
    number_of_shards = len(folder.manifest.shards)
    share = min(1.0, tokens / max(folder.manifest.totals["tokens"], 1))
    chosen = max(1, min(number_of_shards, round(number_of_shards * share)))
    return [i * number_of_shards // chosen for i in range(chosen)]
