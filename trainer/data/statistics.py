"""Token counts of the training text for a new run: those of data.statistics, or of a sample of the run's own pairs.

`clozeline statistics` counts up to hundreds of millions of tokens on all cores. Without it, the run counts a
sample itself, which takes seconds and is enough for a small model.

Shape suffix: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.cooccurrences import (
    add_up,
    blocks_of,
    count_contexts,
    count_cooccurrences,
    count_unigrams,
    counting_of,
    sampled_rows,
)
from schemas.errors import DataError, UsageError
from schemas.manifest import read_manifest
from schemas.statistics import (
    NO_COOCCURRENCES,
    Cooccurrences,
    Statistics,
    TokenStatistics,
    joined,
    read_statistics,
)
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.distributed.watchdog import progress
from trainer.logs import logger
from trainer.models.starting_weights import needs_statistics

SAMPLED_TOKENS = 8_000_000
"""The most tokens that are counted without data.statistics. They take a few seconds and less than a gigabyte.

The sample of the baseline (metrics/unigram.py) is another one: word frequencies need fewer tokens than pairs of words.
"""

WINDOW = 3
"""Tokens up to this distance apart are counted as neighbors, as by default in `python -m pipeline statistics`.

docs/measurements.md ("What minutes buy") has a held-out loss of 5.604 with 3, and 5.578 with 2: one seed each, and less
apart than the 0.03 by which equal runs differ there.
"""


@dataclass(frozen=True)
class SampledStatistics:
    """The counts of a sample of the training rows. No pair of tokens is dropped."""

    unigrams_V: NDArray[np.int64]
    context_weights_V: NDArray[np.int64]
    summed: Cooccurrences

    def cooccurrences(self) -> Iterator[Cooccurrences]:
        """Yield all co-occurrences, in a single part."""
        yield self.summed


def statistics_for(recipe: Recipe, folders: list[PairFolder]) -> TokenStatistics:
    """Return the counts of the training text, for starting weights.

    Raises DataError as `open_statistics` and `PairFolder.read_shard` do, and UsageError if they count evaluation.pairs.
    """
    opened = open_statistics(recipe, folders[0].vocabulary)
    if opened is None:
        return count_sample(folders, recipe.data.weights)

    check_counts_are_not_held_out(opened, recipe)
    if not counts_exactly(opened, folders):
        logger.warning(
            "data.statistics %s was made from other pairs than data.pairs, so the starting weights reflect that text, "
            "not this run's.",
            recipe.data.statistics,
        )
    return opened


def counts_exactly(statistics: Statistics, folders: list[PairFolder]) -> bool:
    """Return whether statistics count the rows of these folders and no others. They always count a single folder."""
    counted = [entry.fingerprint for entry in statistics.manifest.inputs]
    return counted == [folder.manifest.fingerprint for folder in folders]


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
            f"pairs have {vocabulary.fingerprint}. Count these pairs: `clozeline statistics --pairs PAIRS "
            "--output FOLDER`."
        )
    if statistics.vocabulary_size != vocabulary.size:
        raise DataError(
            f"data.statistics {folder} has options.vocabulary_size {statistics.vocabulary_size}, but the vocabulary of "
            f"the pairs has {vocabulary.size} tokens. Copy the folder again or rebuild it with --overwrite."
        )
    return statistics


def check_counts_are_not_held_out(statistics: Statistics, recipe: Recipe) -> None:
    """Raise UsageError if statistics count the pairs that the run is evaluated on."""
    if recipe.evaluation.pairs is None:
        return

    held_out = read_manifest(recipe.evaluation.pairs, "pairs").fingerprint
    if held_out in [entry.fingerprint for entry in statistics.manifest.inputs]:
        raise UsageError(
            f"data.statistics {recipe.data.statistics} counts evaluation.pairs {recipe.evaluation.pairs}, so the "
            "starting weights would know the text that they are evaluated on. Count the pairs of data.pairs."
        )


def identity_of_counts(recipe: Recipe) -> str | None:
    """Return a text that identifies the counts that a run of this recipe begins with; None if it needs none.

    It is the fingerprint of data.statistics, or the size of the sample, whose pairs have their own fingerprint.
    Raises DataError or StorageError if data.statistics cannot be read.
    """
    if recipe.data.statistics is not None:
        return read_manifest(recipe.data.statistics, "statistics").fingerprint
    if needs_statistics(recipe.model):
        return f"a sample of {SAMPLED_TOKENS:,} tokens with a window of {WINDOW}"
    return None


def count_sample(folders: list[PairFolder], weights: list[float] | None) -> SampledStatistics:
    """Count up to SAMPLED_TOKENS tokens: from each folder its share of the mixture. Every run counts the same ones."""
    vocabulary = folders[0].vocabulary
    counting = counting_of(vocabulary, WINDOW)
    unigrams_V = np.zeros(vocabulary.size, dtype=np.int64)
    parts = [NO_COOCCURRENCES]
    for folder, share in zip(folders, mixture_shares(folders, weights, SAMPLED_TOKENS), strict=True):
        for rows in blocks_of(sampled_tables(folder, share.tokens), WINDOW):
            unigrams_V += share.times * count_unigrams(rows, counting)
            first, second, weight = count_cooccurrences(rows, counting)
            parts.append(Cooccurrences(first, second, share.times * weight))
            progress()

    summed = add_up(joined(parts), vocabulary.size)
    return SampledStatistics(unigrams_V, count_contexts(summed, vocabulary.size), summed)


class MixtureShare(NamedTuple):
    """What a sample takes from one folder: `tokens` of its tokens, each counted `times` times."""

    tokens: int
    times: int


def mixture_shares(folders: list[PairFolder], weights: list[float] | None, tokens: int) -> list[MixtureShare]:
    """Divide a sample of `tokens` tokens, or of all tokens if there are fewer, by the weights of the mixture.

    Training repeats a folder that is smaller than its share, so its counts are multiplied by the nearest whole number.
    Without weights, each folder's share is proportional to its size.
    """
    sizes = [folder.manifest.totals["tokens"] for folder in folders]
    if weights is None:
        weights = [float(size) for size in sizes]

    sample = min(tokens, sum(sizes))
    shares = []
    for size, weight in zip(sizes, weights, strict=True):
        share = int(sample * weight / sum(weights))
        shares.append(MixtureShare(min(share, size), max(1, round(share / max(size, 1)))))
    return shares


def sampled_tables(folder: PairFolder, tokens: int) -> Iterator[pa.Table]:
    """Yield rows of some shards of a folder, in the column input_ids, with at most `tokens` tokens together."""
    numbers = sampled_shards(folder, tokens)
    tokens_read = sum(folder.manifest.shards[number].tokens for number in numbers)
    for number in numbers:
        limit = folder.manifest.shards[number].tokens
        if tokens_read > tokens:
            limit = limit * tokens // tokens_read
        yield sampled_rows(folder.read_shard(number).select(["input_ids"]), number, limit)


def sampled_shards(folder: PairFolder, tokens: int) -> list[int]:
    """Return the numbers of the fewest evenly spaced shards that have about `tokens` tokens together, at least one.

    Documents were assigned to shards by hash, so any shard is a random sample of the corpus.
    """
    number_of_shards = len(folder.manifest.shards)
    share = min(1.0, tokens / max(folder.manifest.totals["tokens"], 1))
    chosen = max(1, ceil(number_of_shards * share))
    return [i * number_of_shards // chosen for i in range(chosen)]
