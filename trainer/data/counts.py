"""Token counts of the training text: for a new run's starting weights, and for the baseline of its loss.

Both come from data.statistics, which `clozeline statistics` counts over the corpus, or else from a sample of the
run's own pairs, which takes seconds. Documents were assigned to shards by hash, so some shards are a random sample.

The baseline is the loss of a model that only knows how often each token occurs. A masked LM learns that first, because
it needs no context, and may get stuck there: `unigram_loss` is that loss on the training text, `eval_unigram_loss` on
the held-out labels. Special tokens are not counted, and one is added to the count of every token (Laplace smoothing),
so that no token has an infinite loss.

Shape suffix: V vocabulary.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import storage
from schemas.cooccurrences import (
    add_up,
    count_blocks,
    count_contexts,
    counting_of,
    sampled_rows,
)
from schemas.errors import DataError, StorageError, UsageError
from schemas.manifest import read_manifest
from schemas.ragged import Ints
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
from trainer.data.folder import PairFolder
from trainer.data.order import Weights, integer_weights
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.watchdog import progress
from trainer.logs import logger
from trainer.models.starting_weights import needs_statistics

SAMPLED_TOKENS = 8_000_000
"""The most tokens that are counted for starting weights. They take a few seconds and less than a gigabyte."""

BASELINE_TOKENS = 2_000_000
"""The most tokens that are counted for the baseline, which every phase needs.

With a vocabulary of 30,000, they make it accurate to 0.01 nats: frequencies need fewer tokens than pairs of words do.
"""

WINDOW = 3
"""Tokens up to this distance apart are counted as neighbors, as by default in `python -m pipeline statistics`.

docs/measurements.md ("What minutes buy") has a held-out loss of 5.604 with 3, and 5.578 with 2: one seed each, and less
apart than the 0.03 by which equal runs differ there.
"""

UNIGRAM_FILE = "unigram.json"
"""The file in a run's folder with the counts of the baseline and the identity of the rows that were counted."""


# The sample


def sample(folders: list[PairFolder], weights: Weights, tokens: int) -> Iterator[tuple[Iterator[pa.Table], int]]:
    """Yield for each folder its sampled rows, and how many times each of them counts.

    `tokens` tokens, or all if there are fewer, are divided by the weights of the mixture, by default in proportion to
    the folders' sizes. Training repeats a folder that is smaller than its share, so its counts are multiplied by the
    nearest whole number.
    """
    sizes = [folder.manifest.totals["tokens"] for folder in folders]
    if not isinstance(weights, list):
        weights = list(map(float, integer_weights(folders, weights, by_tokens=True)))

    total = min(tokens, sum(sizes))
    for folder, size, weight in zip(folders, sizes, weights, strict=True):
        share = int(total * weight / sum(weights))
        times = max(1, round(share / max(size, 1)))
        yield sampled_tables(folder, min(share, size)), times


def sampled_tables(folder: PairFolder, tokens: int) -> Iterator[pa.Table]:
    """Yield random rows of a folder, in the column input_ids, with at most `tokens` tokens together.

    They are from the fewest evenly spaced shards that have about as many tokens, at least one shard. Raises as
    `PairFolder.read_shard`.
    """
    shards = folder.manifest.shards
    share = min(1.0, tokens / max(folder.manifest.totals["tokens"], 1))
    chosen = max(1, ceil(len(shards) * share))
    numbers = [i * len(shards) // chosen for i in range(chosen)]

    tokens_read = sum(shards[number].tokens for number in numbers)
    for number in numbers:
        limit = shards[number].tokens
        if tokens_read > tokens:
            limit = limit * tokens // tokens_read
        yield sampled_rows(folder.read_shard(number).select(["input_ids"]), number, limit)


# data.statistics


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


def counts_exactly(statistics: Statistics, folders: list[PairFolder]) -> bool:
    """Return whether statistics count the rows of these folders and no others. They always count a single folder."""
    counted = [entry.fingerprint for entry in statistics.manifest.inputs]
    return counted == [folder.manifest.fingerprint for folder in folders]


# Starting weights


@dataclass(frozen=True)
class SampledStatistics:
    """The counts of a sample of the training rows. No pair of tokens is dropped."""

    unigrams_V: Ints
    context_weights_V: Ints
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


def count_sample(folders: list[PairFolder], weights: Weights) -> SampledStatistics:
    """Count up to SAMPLED_TOKENS tokens: from each folder its share of the mixture. Every run counts the same ones."""
    vocabulary = folders[0].vocabulary
    counting = counting_of(vocabulary, WINDOW)
    unigrams_V = np.zeros(vocabulary.size, dtype=np.int64)
    parts = [NO_COOCCURRENCES]
    for tables, times in sample(folders, weights, SAMPLED_TOKENS):
        for block_unigrams_V, (first_C, second_C, weight_C) in count_blocks(tables, counting):
            unigrams_V += times * block_unigrams_V
            parts.append(Cooccurrences(first_C, second_C, times * weight_C))
            progress()

    summed = add_up(joined(parts), vocabulary.size)
    return SampledStatistics(unigrams_V, count_contexts(summed, vocabulary.size), summed)


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


# The baseline


class WordFrequencies:
    """How often each token occurs in the training text, and the loss of a model that only knows that."""

    def __init__(self, counts_V: Ints):
        """counts_V: int64, not all 0."""
        self.counts_V = counts_V

    @cached_property
    def losses_V(self) -> NDArray[np.float64]:
        """The cross-entropy of each token in nats, (V,), under add-one smoothed counts."""
        return np.log(self.counts_V.sum() + len(self.counts_V)) - np.log(self.counts_V + 1.0)

    @cached_property
    def loss(self) -> float:
        """The mean cross-entropy of the counted tokens themselves, in nats."""
        return float(self.counts_V @ self.losses_V / self.counts_V.sum())


def open_frequencies(recipe: Recipe, folders: list[PairFolder], begins: bool) -> WordFrequencies | None:
    """Return how often each token occurs in a phase's rows, None if none could be counted. A collective call.

    recipe: the phase's. begins: the run has no checkpoint yet.
    Raises DataError or StorageError on every rank if a new run cannot read its data.statistics, or if a shard that is
    counted cannot be read.
    """
    counts_V = run_on_rank_0(lambda: recorded_counts(recipe, folders, begins))
    return WordFrequencies(counts_V) if counts_V.any() else None


def recorded_counts(recipe: Recipe, folders: list[PairFolder], begins: bool) -> Ints:
    """Return the counts stored in the run's folder, or else count and store them. Raises as `open_frequencies`.

    A run that resumes uses the stored counts if the pairs are the same, whatever became of its data.statistics, so its
    baseline does not move. A new run counts.
    """
    path = Path(recipe.run.folder, UNIGRAM_FILE)
    made_from = {"pairs": [folder.manifest.fingerprint for folder in folders], "weights": recipe.data.weights}
    if not begins:
        # A file that is missing or damaged is made again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            recorded = json.loads(path.read_text(encoding="utf-8"))
            if recorded["made_from"] == made_from:
                return np.array(recorded["counts"], dtype=np.int64)

    counts_V = unigram_counts(recipe, folders, begins)
    content = json.dumps({"made_from": made_from, "counts": counts_V.tolist()}) + "\n"
    storage.publish(str(path), content.encode(), durable=False)
    return counts_V


def unigram_counts(recipe: Recipe, folders: list[PairFolder], begins: bool) -> Ints:
    """Return how often each token occurs in the training text, int64 (V,), 0 for special tokens.

    They come from data.statistics if those count these rows and no others: the baseline of a mixture, or of a phase
    with its own pairs, must not come from other text. Only a run that begins needs them to be readable.
    Raises as `open_statistics`.
    """
    vocabulary = folders[0].vocabulary
    statistics = None
    try:
        statistics = open_statistics(recipe, vocabulary)
    except (DataError, StorageError):
        if begins:
            raise

    if statistics is not None and counts_exactly(statistics, folders):
        counts_V = np.array(statistics.unigrams_V, dtype=np.int64)
    else:
        counts_V = sampled_unigrams(folders, recipe.data.weights)
    counts_V[vocabulary.is_special_V] = 0
    return counts_V


def sampled_unigrams(folders: list[PairFolder], weights: Weights) -> Ints:
    """Return the counts of up to BASELINE_TOKENS tokens, from each folder its share of the mixture.

    Raises as `PairFolder.read_shard`.
    """
    size = folders[0].vocabulary.size
    counts_V = np.zeros(size, dtype=np.int64)
    for tables, times in sample(folders, weights, BASELINE_TOKENS):
        for rows in tables:
            ids_T = rows["input_ids"].combine_chunks().flatten().to_numpy()
            counts_V += times * np.bincount(ids_T, minlength=size)
    return counts_V
