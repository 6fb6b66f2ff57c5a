"""The loss of a model that knows how often each token occurs, and nothing else: the line to get below.

A masked LM first learns the words' frequencies, which needs no context. Its loss is then the cross-entropy of the
labels under these frequencies, and there it may stay. The line says what a loss is worth on the run's own text:
`unigram_loss` for the training text, and `eval_unigram_loss` for the held-out labels.

Frequencies come from the counts of data.statistics, which hold the whole corpus, or else from a sample of the training
rows: record batches from the beginning of some shards. Documents lie in shards by hash, so that is a random sample.
Special tokens are not counted, and every token has one count more than it was seen (add-one smoothing, Laplace), so
that none has an infinite loss.

Shape suffixes: V vocabulary, T tokens.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards, storage
from schemas.errors import DataError
from schemas.statistics import Statistics
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.data.statistics import mixture_shares, open_statistics
from trainer.distributed.collectives import run_on_rank_0

Ints = NDArray[np.int64]

UNIGRAM_FILE = "unigram.json"
"""The file of a run's folder with the counts and the identity of the rows that were counted."""

SAMPLE_TOKENS = 2_000_000
"""About how many tokens are sampled. The cross-entropy of 30,000 tokens under these counts is accurate to 0.01 nats."""

SAMPLED_SHARDS = 4
"""The number of shards of each folder that the sample is taken from, if the folder has this many."""

DISK_FAILED = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""The numbers of errors of a disk, or of a file system on the network, that fails while a file is read."""


class WordFrequencies:
    """How often each token occurs in the training text, and what a model that knows only that loses on a token."""

    def __init__(self, counts_V: Ints):
        """counts_V: int64, not all 0."""
        self.counts_V = counts_V

    @cached_property
    def losses_V(self) -> NDArray[np.float64]:
        """The cross-entropy of each token in nats, under add-one smoothed counts."""
        return np.log(self.counts_V.sum() + len(self.counts_V)) - np.log(self.counts_V + 1.0)

    @cached_property
    def loss(self) -> float:
        """The mean cross-entropy of the counted tokens themselves."""
        return float(self.counts_V @ self.losses_V / self.counts_V.sum())


@dataclass(frozen=True)
class TrainingText:
    """What is known of the rows of a phase: how often each token occurs, and how many tokens all rows have."""

    frequencies: WordFrequencies
    tokens: int


def open_frequencies(recipe: Recipe, folders: list[PairFolder], begins: bool) -> WordFrequencies | None:
    """Return the frequencies of a phase's training text, None if none of it can be read. A collective call.

    recipe: the phase's. begins: the run has no checkpoint yet.
    Raises DataError or StorageError on every rank if a run that begins cannot read its data.statistics.
    """
    counts_V = run_on_rank_0(lambda: recorded_counts(recipe, folders, begins))
    return WordFrequencies(counts_V) if counts_V.any() else None


def training_text(folders: list[PairFolder], frequencies: WordFrequencies | None) -> TrainingText | None:
    """Return what is known of the rows of some folders, None without word frequencies."""
    if frequencies is None:
        return None
    return TrainingText(frequencies, sum(folder.manifest.totals["tokens"] for folder in folders))


def recorded_counts(recipe: Recipe, folders: list[PairFolder], begins: bool) -> Ints:
    """Return the counts that the run's folder holds, or else count and keep them there. Raises as `open_frequencies`.

    Counts are taken from the folder while the pairs are the same, so the line does not move when a run resumes, not
    even without its data.statistics. A run that begins takes them from there only if these are the same as well.
    """
    path = Path(recipe.run.folder, UNIGRAM_FILE)
    recorded = read_recorded(path)
    rows: dict[str, Any] = {
        "pairs": [folder.manifest.fingerprint for folder in folders],
        "weights": recipe.data.weights,
    }
    if recorded is not None and not begins and are_of_rows(recorded, rows):
        return np.array(recorded["counts"], dtype=np.int64)

    statistics = open_statistics(recipe, folders[0].vocabulary)
    made_from = rows | {"statistics": None if statistics is None else statistics.fingerprint}
    if recorded is not None and recorded["made_from"] == made_from:
        return np.array(recorded["counts"], dtype=np.int64)

    counts_V = unigram_counts(folders, recipe.data.weights, statistics)
    content = json.dumps({"made_from": made_from, "counts": counts_V.tolist()}) + "\n"
    storage.publish(str(path), content.encode(), durable=False)
    return counts_V


def are_of_rows(recorded: dict[str, Any], rows: dict[str, Any]) -> bool:
    """Return whether recorded counts were made from these rows, whatever else they were made from."""
    return all(recorded["made_from"].get(name) == value for name, value in rows.items())


def read_recorded(path: Path) -> dict[str, Any] | None:
    """Return what a run's folder holds, None if nothing is there or it is damaged."""
    try:
        recorded = json.loads(path.read_text())
        is_whole = isinstance(recorded["made_from"], dict) and isinstance(recorded["counts"], list)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return recorded if is_whole else None


def unigram_counts(folders: list[PairFolder], weights: list[float] | None, statistics: Statistics | None) -> Ints:
    """Return how often each token occurs in the training text, int64 (V,), 0 for special tokens.

    weights: of the mixture. statistics: those of data.statistics; without them rows are sampled.
    """
    if statistics is not None:
        counts_V = np.array(statistics.unigrams_V, dtype=np.int64)
    else:
        counts_V = sampled_counts(folders, weights)

    counts_V[folders[0].vocabulary.is_special_V] = 0
    return counts_V


def sampled_counts(folders: list[PairFolder], weights: list[float] | None) -> Ints:
    """Return the counts of about SAMPLE_TOKENS tokens, from each folder its share of the mixture."""
    counts_V = np.zeros(folders[0].vocabulary.size, dtype=np.int64)
    for folder, share in zip(folders, mixture_shares(folders, weights, SAMPLE_TOKENS), strict=True):
        counts_V += share.times * counts_of_folder(folder, share.tokens)
    return counts_V


def counts_of_folder(folder: PairFolder, tokens: int) -> Ints:
    """Return the counts of the first `tokens` tokens, about, of a few shards that lie evenly in the folder."""
    number_of_shards = len(folder.manifest.shards)
    chosen = min(SAMPLED_SHARDS, number_of_shards)

    counts_V = np.zeros(folder.vocabulary.size, dtype=np.int64)
    for i in range(chosen):
        counts_V += counts_of_shard(folder, i * number_of_shards // chosen, -(-tokens // chosen))
    return counts_V


def counts_of_shard(folder: PairFolder, number: int, tokens: int) -> Ints:
    """Return the counts of a shard's first record batches, until they hold `tokens` tokens.

    Ids that are not of the vocabulary count nothing, and a damaged shard only as far as it is whole: training reports
    them when it comes to them, as it does without this line. Raises StorageError if the shard is in a store that cannot
    be reached, and OSError if a disk fails, because the line must not depend on an outage.
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
        # pyarrow raises OSErrors as well for bytes that are no Arrow file.
        if error.errno in DISK_FAILED:
            raise
    except (*shards.ARROW_ERRORS, DataError, ValueError, IndexError):
        pass
    return counts_V
