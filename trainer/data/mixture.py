"""Mixes several folders of pairs into one stream, by their weights.

Each folder keeps its own endless order and epochs (sampler.py). The stream's places are divided among the folders by
Webster's (Sainte-Lague's) divisor method: row number j of a folder of weight w is due at time (2j - 1) / (2w), and the
stream takes rows in the order of these times. So a folder's count never falls as the stream grows, every batch has
exactly its size, and every row comes once per epoch. (The method of largest remainders does not have this property: as
the stream grows, the count of a small folder may fall, which is known as the Alabama paradox.)

After n places, a folder of weight w among k folders (weights that sum to 1) has given w * n rows to within
(1 + w * (k - 2)) / 2: less than one row for up to three folders, and for any folder that is small.

The rows of global batch k follow by arithmetic: each folder has given c(k * size) rows before the batch and
c((k + 1) * size) after it, where c is `apportion`. The rows in between, in the folder's own order, are its part of the
batch.

Shape suffixes: B rows, N all rows of a block or a range.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DataError
from schemas.randomness import U64, key, numbers
from trainer.data.block import Block
from trainer.data.dataset import PairFolder
from trainer.data.sampler import Order, RowRange

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """One folder, its order, and its weight: its share of the stream is weight / sum of all sources' weights."""

    folder: PairFolder
    order: Order
    weight: int


@dataclass(frozen=True)
class SourceRows:
    """The rows of a global batch that lie in one block of one source.

    shard_keys: for each shard of the block, in its order, the key from which its rows' keys are drawn.
    """

    folder: PairFolder
    row_range: RowRange
    block: Block
    shard_keys: U64

    @classmethod
    def of(cls, source: Source, row_range: RowRange, seed: int) -> SourceRows:
        """Read the range's block, and start reading those after it."""
        folder = source.folder
        shards = folder.manifest.shards

        # Keyed by a shard's content, so masks depend neither on a shard's number nor on the mixture.
        content = [shards[number].fingerprint for number in row_range.shards]
        shard_keys = np.array([key(seed, "mask", row_range.epoch, one) for one in content], dtype=np.uint64)

        block = folder.block(row_range.shards)
        folder.read_ahead(source.order.blocks_after(row_range, folder.blocks_ahead))
        return cls(folder, row_range, block, shard_keys)

    def lengths(self) -> NDArray[np.int32]:
        """Return the number of tokens in each row of the range."""
        return self.block.lengths_N[self.row_range.rows_N]

    def keys(self, rows_B: Ints) -> U64:
        """Return the random key of each of these rows: drawn from the seed, the epoch and the row's identity."""
        shard_B, row_numbers_B = self.block.identities(rows_B)
        return numbers(self.shard_keys[shard_B], row_numbers_B)


def build_sources(folders: list[PairFolder], weights: list[float] | None, seed: int, by_tokens: bool) -> list[Source]:
    """Return the folders as sources of one stream. Places count tokens if `by_tokens`, else rows.

    By default a folder's weight is its size, so that all folders end their epochs together. Raises DataError if their
    vocabularies differ or one holds no row.
    """
    first = folders[0]
    for folder in folders:
        if folder.vocabulary.fingerprint != first.vocabulary.fingerprint:
            raise DataError(
                f"{folder.folder} has vocabulary {folder.vocabulary.fingerprint} ({folder.vocabulary.size} tokens), "
                f"but {first.folder} has {first.vocabulary.fingerprint} ({first.vocabulary.size} tokens). "
                "Rebuild one with the other's vocabulary."
            )
        if not folder.manifest.totals["rows"]:
            raise DataError(f"{folder.folder} holds no rows to train on. Rebuild it from more text.")

    sources = []
    for folder, weight in zip(folders, integer_weights(folders, weights, by_tokens), strict=True):
        order = order_of(folder, seed, by_tokens)
        sources.append(Source(folder, order, weight))
    return sources


def integer_weights(folders: list[PairFolder], weights: list[float] | None, by_tokens: bool) -> list[int]:
    """Return integers in the same proportions as `weights`, or as the folders' sizes if there are no weights."""
    if weights is None:
        unit = "tokens" if by_tokens else "rows"
        return [folder.manifest.totals[unit] for folder in folders]

    # Weights are converted through their decimal form: 0.3 means three tenths, not the binary fraction closest to it.
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = lcm(*(weight.denominator for weight in exact))
    return [int(weight * denominator) for weight in exact]


def order_of(folder: PairFolder, seed: int, by_tokens: bool) -> Order:
    """Return the endless order of a folder's rows."""
    fingerprint = folder.manifest.fingerprint
    rows_per_shard = [shard.rows for shard in folder.manifest.shards]
    if not by_tokens:
        return Order(rows_per_shard, fingerprint, seed)

    def row_lengths(shards: tuple[int, ...]) -> Ints:
        return folder.block(shards).lengths_N.astype(np.int64)

    tokens_per_shard = [shard.tokens for shard in folder.manifest.shards]
    return Order(rows_per_shard, fingerprint, seed, tokens_per_shard, row_lengths)


def rows_of_step(sources: list[Source], step: int, size: int) -> list[tuple[int, int]]:
    """Return each source's part of global batch `step`, counted from 0, if all batches have `size` places."""
    return rows_between(sources, step * size, (step + 1) * size)


def rows_between(sources: list[Source], first: int, last: int) -> list[tuple[int, int]]:
    """Return each source's part of the stream's places `first` to `last` - 1.

    A part is (first, last) as well: places of the source's own order.
    """
    return list(zip(rows_per_source(sources, first), rows_per_source(sources, last), strict=True))


def rows_per_source(sources: list[Source], n: int) -> list[int]:
    """Return how many of the stream's first n places each source has given."""
    return apportion([source.weight for source in sources], n)


def apportion(weights: list[int], n: int) -> list[int]:
    """Divide the first n places of the stream among sources with these positive weights (Webster's method).

    Row j of a source is due at time (2j - 1) / (2 * weight); among equal times, the source with the lower number comes
    first. The counts are those of the n earliest rows, so they never fall as n grows. Costs O(k log k) for k sources,
    whatever n is.
    Example: `apportion([2, 1], 4)` -> `[3, 1]`.
    """
    # Each share, rounded half up, is the number of rows due by time n / total. Their sum misses n by at most k / 2.
    total = sum(weights)
    counts = [(2 * n * weight + total) // (2 * total) for weight in weights]
    missing = n - sum(counts)

    if missing > 0:
        _add_earliest(counts, weights, missing)
    elif missing < 0:
        _drop_latest(counts, weights, -missing)
    return counts


def _add_earliest(counts: list[int], weights: list[int], number: int) -> None:
    """Add to `counts` the `number` earliest rows that are not counted yet."""
    # A heap of each source's next row; equal times are ordered by the source's number.
    upcoming = []
    for i, weight in enumerate(weights):
        upcoming.append((_due(counts[i] + 1, weight), i))
    heapq.heapify(upcoming)

    # Count the earliest row, and replace it by the next one of its source.
    for _ in range(number):
        _, i = upcoming[0]
        counts[i] += 1
        heapq.heapreplace(upcoming, (_due(counts[i] + 1, weights[i]), i))


def _drop_latest(counts: list[int], weights: list[int], number: int) -> None:
    """Remove from `counts` the `number` latest of the rows that are counted."""
    # Negated, because a heap yields its smallest element; a source without rows is never the latest.
    latest = []
    for i, weight in enumerate(weights):
        latest.append((-_due(counts[i], weight), -i))
    heapq.heapify(latest)

    for _ in range(number):
        i = -latest[0][1]
        counts[i] -= 1
        heapq.heapreplace(latest, (-_due(counts[i], weights[i]), -i))


def _due(j: int, weight: int) -> Fraction:
    """Return the time of a source's row number j, counted from 1."""
    return Fraction(2 * j - 1, 2 * weight)
