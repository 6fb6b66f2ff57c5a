"""Computes the baseline that a run has to get below: the loss of a model that only knows how often each token occurs.

A masked LM first learns the words' frequencies, which needs no context. Its loss is then the cross-entropy of the
labels under these frequencies, and it may get stuck there. So the baseline is computed on the run's own text:
`unigram_loss` for the training text, and `eval_unigram_loss` for the held-out labels.

Frequencies come from the counts of data.statistics, which cover the whole corpus, or else from a sample of the training
rows: record batches from the beginning of some shards. Documents were assigned to shards by hash, so that is a random
sample. Special tokens are not counted, and one is added to the count of every token (Laplace smoothing), so that no
token has an infinite loss.

Shape suffixes: V vocabulary, T tokens.
"""

from __future__ import annotations

import errno
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards, storage
from schemas.errors import DataError, StorageError
from schemas.statistics import Statistics
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.data.statistics import counts_exactly, mixture_shares, open_statistics
from trainer.distributed.collectives import run_on_rank_0

Ints = NDArray[np.int64]

UNIGRAM_FILE = "unigram.json"
"""The file in a run's folder with the counts and the identity of the rows that were counted."""

BASELINE_TOKENS = 2_000_000
"""About how many tokens are sampled. With a vocabulary of 30,000, the baseline is accurate to 0.01 nats.

The sample of starting weights (data/statistics.py) is another one, because only some new runs need it. It is four times
as large and takes rows from all over its shards. Every phase needs this one, so it reads no more than their beginnings.
"""

SAMPLED_SHARDS = 4
"""The most shards of each folder that the sample is taken from."""

DISK_FAILED = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Error numbers of a disk or a network file system that fails while a file is read."""


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
    """Return the frequencies of a phase's training text, None if no token could be counted. A collective call.

    recipe: the phase's. begins: the run has no checkpoint yet.
    Raises DataError or StorageError on every rank if a new run cannot read its data.statistics.
    """
    counts_V = run_on_rank_0(lambda: recorded_counts(recipe, folders, begins))
    return WordFrequencies(counts_V) if counts_V.any() else None


def recorded_counts(recipe: Recipe, folders: list[PairFolder], begins: bool) -> Ints:
    """Return the counts stored in the run's folder, or else count and store them. Raises as `open_frequencies`.

    A run that resumes uses the stored counts if the pairs are the same, even if data.statistics is gone, so its
    baseline does not move. A new run uses them only if data.statistics is the same as well.
    """
    path = Path(recipe.run.folder, UNIGRAM_FILE)
    recorded = read_recorded(path)
    rows: dict[str, Any] = {
        "pairs": [folder.manifest.fingerprint for folder in folders],
        "weights": recipe.data.weights,
    }
    if recorded is not None and not begins and are_of_rows(recorded, rows):
        return np.array(recorded["counts"], dtype=np.int64)

    statistics = statistics_of_rows(recipe, folders, begins)
    made_from = rows | {"statistics": None if statistics is None else statistics.fingerprint}
    if recorded is not None and recorded["made_from"] == made_from:
        return np.array(recorded["counts"], dtype=np.int64)

    counts_V = unigram_counts(folders, recipe.data.weights, statistics)
    content = json.dumps({"made_from": made_from, "counts": counts_V.tolist()}) + "\n"
    storage.publish(str(path), content.encode(), durable=False)
    return counts_V


def statistics_of_rows(recipe: Recipe, folders: list[PairFolder], begins: bool) -> Statistics | None:
    """Return data.statistics if they count these rows and no others, otherwise None.

    The baseline of a mixture, or of a phase with its own pairs, must not come from the counts of other text. begins:
    whether the run is new. One that is not needs no statistics, so it does without those that cannot be read.
    """
    try:
        statistics = open_statistics(recipe, folders[0].vocabulary)
    except (DataError, StorageError):
        if begins:
            raise
        return None

    return statistics if statistics is not None and counts_exactly(statistics, folders) else None


def are_of_rows(recorded: dict[str, Any], rows: dict[str, Any]) -> bool:
    """Return whether recorded counts were made from these rows, ignoring the statistics that they were made from."""
    return all(recorded["made_from"].get(name) == value for name, value in rows.items())


def read_recorded(path: Path) -> dict[str, Any] | None:
    """Return the content of UNIGRAM_FILE, None if the file is missing or damaged."""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        is_whole = isinstance(recorded["made_from"], dict) and isinstance(recorded["counts"], list)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recorded if is_whole else None


def unigram_counts(folders: list[PairFolder], weights: list[float] | None, statistics: Statistics | None) -> Ints:
    """Return how often each token occurs in the training text, int64 (V,), 0 for special tokens.

    weights: of the mixture. statistics: those of data.statistics; if None, rows are sampled.
    """
    if statistics is not None:
        counts_V = np.array(statistics.unigrams_V, dtype=np.int64)
    else:
        counts_V = sampled_counts(folders, weights)

    counts_V[folders[0].vocabulary.is_special_V] = 0
    return counts_V


def sampled_counts(folders: list[PairFolder], weights: list[float] | None) -> Ints:
    """Return the counts of about BASELINE_TOKENS tokens, from each folder its share of the mixture."""
    counts_V = np.zeros(folders[0].vocabulary.size, dtype=np.int64)
    for folder, share in zip(folders, mixture_shares(folders, weights, BASELINE_TOKENS), strict=True):
        counts_V += share.times * counts_of_folder(folder, share.tokens)
    return counts_V


def counts_of_folder(folder: PairFolder, tokens: int) -> Ints:
    """Return the counts of about `tokens` tokens, from the beginnings of a few evenly spaced shards."""
    number_of_shards = len(folder.manifest.shards)
    chosen = min(SAMPLED_SHARDS, number_of_shards)

    counts_V = np.zeros(folder.vocabulary.size, dtype=np.int64)
    for i in range(chosen):
        counts_V += counts_of_shard(folder, i * number_of_shards // chosen, -(-tokens // chosen))
    return counts_V


def counts_of_shard(folder: PairFolder, number: int, tokens: int) -> Ints:
    """Return the counts of a shard's first record batches, until they hold `tokens` tokens.

    Ids outside the vocabulary are ignored, and a damaged shard is counted up to the damage, because training reports
    both when it reads them. Raises StorageError if the shard is in a store that cannot be reached, and OSError if a
    disk fails, because the baseline must not depend on an outage.
    """
    counts_V = np.zeros(folder.vocabulary.size, dtype=np.int64)
    try:
        with folder.open_shard(number) as file, pa.ipc.open_file(file) as reader:
            column = reader.schema.get_field_index("input_ids")
            for batch_number in range(reader.num_record_batches):
                if counts_V.sum() >= tokens:
                    break
                batch = reader.get_batch(batch_number)
                batch.validate(full=True)
                ids_T = batch.column(column).flatten().to_numpy()
                counts_V += np.bincount(ids_T[ids_T < len(counts_V)], minlength=len(counts_V))
    except OSError as error:
        # pyarrow also raises OSError for bytes that are not an Arrow file.
        if error.errno in DISK_FAILED:
            raise
    except (*shards.ARROW_ERRORS, DataError, ValueError, IndexError):
        pass
    return counts_V
