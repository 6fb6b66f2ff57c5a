"""Finds the rows of any global batch by arithmetic, so a resumed run replays nothing.

The rows of one folder form an endless sequence that depends on (data, seed) alone. Every epoch visits every row once:
the shards are shuffled and taken BLOCK_SHARDS at a time, and the rows of such a block are shuffled together. A reader
therefore holds one block at a time and reads every shard once per epoch.

A place in this sequence is counted in rows, or in tokens when batches hold a number of tokens. In tokens, a row belongs
to the batch in which its first token lies. Global batch k (counted from 0) holds the places k * size to
(k + 1) * size - 1, or later ones if the batches before it grow (`RankShare.first_place`). Finding its rows takes one
division, a search among the blocks of an epoch, and one permutation of a block.

Example: 20 shards of 100 rows each, and batches of 256 rows. An epoch has 2,000 places, in blocks of 800, 800 and 400.
Batch 10 begins at place 2,560 = 1 * 2,000 + 560, which is place 560 of epoch 1. It takes the last 240 rows of that
epoch's first block (places 560 to 799 in the block's own order), and the first 16 rows of its second block.

Several folders are mixed by weights, and each keeps its order and epochs. The stream's places are divided among them by
Webster's (Sainte-Lague's) divisor method: row number j of a folder of weight w is due at time (2j - 1) / (2w), and the
stream takes rows in the order of these times. So a folder's count never falls as the stream grows, every batch has
exactly its size, and every row comes once per epoch. (By the method of largest remainders, the count of a small folder
may fall as the stream grows, which is known as the Alabama paradox.)

After n places, a folder of weight w among k folders (weights that sum to 1) has given w * n rows to within
(1 + w * (k - 2)) / 2. Its part of global batch k are the rows between those counts at the batch's beginning and end.

Shape suffixes: B rows, N all rows of a block or a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil, lcm

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DataError
from schemas.ragged import Ints, offsets_of
from schemas.randomness import U64, key, numbers, permutation
from trainer.data.folder import PairFolder
from trainer.data.rows import Block

BLOCK_SHARDS = 8
"""Shards whose rows are shuffled together. Changing it changes the order of every run's rows."""


@dataclass(frozen=True)
class RowRange:
    """Consecutive rows of the sequence that lie in one block.

    shards: the shards of the block. Their rows, end to end in this order, are numbered from 0.
    rows_N: the numbers of the rows, in the order in which the sequence visits them. block: the number of the block
    within its epoch.
    """

    epoch: int
    block: int
    shards: tuple[int, ...]
    rows_N: Ints


class Order:
    """The endless sequence of the rows of one folder."""

    def __init__(
        self,
        rows_per_shard: list[int],
        fingerprint: str,
        seed: int,
        tokens_per_shard: list[int] | None = None,
        row_lengths: Callable[[tuple[int, ...]], Ints] | None = None,
    ):
        """Places are rows, or tokens if the last two arguments are given.

        `fingerprint` identifies the data. `row_lengths` returns the number of tokens of every row of a block, given
        the block's shards; it is only called for blocks that are needed.
        """
        self._rows_per_shard = np.array(rows_per_shard, dtype=np.int64)
        self._places_per_shard = self._rows_per_shard
        if tokens_per_shard is not None:
            self._places_per_shard = np.array(tokens_per_shard, dtype=np.int64)

        self._row_lengths = row_lengths
        self._identity = (seed, fingerprint)
        self.epoch_size = int(self._places_per_shard.sum())

        # Neighboring batches lie in the same block or in the next one, and each queries the order several times.
        self._shuffled_rows = lru_cache(maxsize=2)(self._shuffle_rows)
        self._shuffled_shards = lru_cache(maxsize=4)(self._shuffle_shards)
        self._block_bounds = lru_cache(maxsize=4)(self._find_block_bounds)

    def row_ranges(self, first: int, last: int) -> Iterator[RowRange]:
        """Yield the rows at places `first` to `last` - 1: one range for each block that these places touch.

        In tokens, a range is empty if no row begins at its places.
        """
        place = first
        while place < last:
            epoch, place_in_epoch = divmod(place, self.epoch_size)

            # The last block that begins at or before this place holds it, so blocks without rows are never chosen.
            bounds = self._block_bounds(epoch)
            block = int(np.searchsorted(bounds, place_in_epoch, side="right")) - 1
            block_begin = int(bounds[block])
            block_end = int(bounds[block + 1])

            # This range ends with the block, or with the wanted places.
            end_in_epoch = min(block_end, place_in_epoch + last - place)
            wanted_places = [place_in_epoch - block_begin, end_in_epoch - block_begin]

            # Take the rows of the block that begin at these places.
            rows_N, starts_N = self._shuffled_rows(epoch, block)
            low, high = np.searchsorted(starts_N, wanted_places)
            yield RowRange(epoch, block, self.block(epoch, block), rows_N[low:high])

            place += end_in_epoch - place_in_epoch

    def block(self, epoch: int, block: int) -> tuple[int, ...]:
        """Return the shards of a block, or an empty tuple past the epoch's last block."""
        first_shard = block * BLOCK_SHARDS
        shards = self._shuffled_shards(epoch)[first_shard : first_shard + BLOCK_SHARDS]
        return tuple(shards.tolist())

    def blocks_after(self, row_range: RowRange, count: int) -> list[tuple[int, ...]]:
        """Return the shards of the `count` blocks that follow a range's block, in order.

        After an epoch's last block come the next epoch's. If an epoch has few blocks, fewer than `count` are returned,
        so that the range's own block is not among them.
        """
        blocks_per_epoch = -(-len(self._rows_per_shard) // BLOCK_SHARDS)
        count = min(count, max(blocks_per_epoch - 1, 1))

        following = []
        for place in range(row_range.block + 1, row_range.block + 1 + count):
            epochs, block = divmod(place, blocks_per_epoch)
            following.append(self.block(row_range.epoch + epochs, block))
        return following

    def blocks_touched(self, places: int) -> int:
        """Return how many blocks `places` consecutive places touch on average, rounded up: at least 1."""
        places_per_block = self.epoch_size * BLOCK_SHARDS / len(self._rows_per_shard)
        return max(1, ceil(places / places_per_block))

    def _find_block_bounds(self, epoch: int) -> Ints:
        """Return the places in an epoch at which its blocks begin, and the epoch's end."""
        shards = self._shuffled_shards(epoch)
        first_shards = np.arange(0, len(shards), BLOCK_SHARDS)
        places_per_block = np.add.reduceat(self._places_per_shard[shards], first_shards)
        return offsets_of(places_per_block)

    def _shuffle_shards(self, epoch: int) -> Ints:
        """Return the shard numbers in the order of an epoch. The array is read-only, because callers share it."""
        shards = permutation(len(self._rows_per_shard), key(*self._identity, "shard order", epoch))
        shards.flags.writeable = False
        return shards

    def _shuffle_rows(self, epoch: int, block: int) -> tuple[Ints, Ints]:
        """Return (rows_N, starts_N): a block's rows in shuffled order, and the place in the block where each begins."""
        shards = self.block(epoch, block)
        row_count = int(self._rows_per_shard[list(shards)].sum())
        rows_N = permutation(row_count, key(*self._identity, "row order", epoch, block))

        # Counted in rows, the i-th row begins at place i. Counted in tokens, it begins where the rows before it end.
        if self._row_lengths is None:
            return rows_N, np.arange(row_count)

        lengths_N = self._row_lengths(shards)[rows_N]
        return rows_N, offsets_of(lengths_N)[:-1]


# Mixtures


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


Weights = list[float] | float | None
"""As data.weights in a recipe: a share for each folder, or the power of the folders' sizes; None for their sizes."""


def build_sources(folders: list[PairFolder], weights: Weights, seed: int, by_tokens: bool) -> list[Source]:
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


def integer_weights(folders: list[PairFolder], weights: Weights, by_tokens: bool) -> list[int]:
    """Return integers in the same proportions as `weights`, or as powers of the folders' sizes."""
    if not isinstance(weights, list):
        unit = "tokens" if by_tokens else "rows"
        sizes = [folder.manifest.totals[unit] for folder in folders]
        return sizes if weights is None else powers(sizes, weights)

    # Weights are converted through their decimal form: 0.3 means three tenths, not the binary fraction closest to it.
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = lcm(*(weight.denominator for weight in exact))
    return [int(weight * denominator) for weight in exact]


def powers(sizes: list[int], exponent: float) -> list[int]:
    """Return integers in the same proportions as sizes to a power from 0 to 1, to six digits.

    With 0.7 (BERT's multilingual models) or 0.3 (XLM-R, arXiv:1911.02116), a folder of a rare language has a larger
    share than its size gives it. Decimal arithmetic gives the same digits on every machine.
    """
    smallest = Decimal(max(1, min(sizes)))
    return [round((size / smallest) ** Decimal(str(exponent)) * 1_000_000) for size in map(Decimal, sizes)]


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


def rows_between(sources: list[Source], first: int, last: int) -> list[tuple[int, int]]:
    """Return each source's part of the stream's places `first` to `last` - 1.

    A part is (first, last) as well: places of the source's own order.
    """
    weights = [source.weight for source in sources]
    return list(zip(apportion(weights, first), apportion(weights, last), strict=True))


def apportion(weights: list[int], n: int) -> list[int]:
    """Divide the first n places of the stream among sources with these positive weights (Webster's method).

    Row j of a source is due at time (2j - 1) / (2 * weight); among equal times, the source with the lower number comes
    first. The counts are those of the n earliest rows, so they never fall as n grows. The cost does not depend on n.
    Example: `apportion([2, 1], 4)` -> `[3, 1]`.
    """
    # Each share, rounded half up, is the number of rows due by time n / total. Their sum misses n by at most k / 2.
    total = sum(weights)
    counts = [(2 * n * weight + total) // (2 * total) for weight in weights]
    sources = range(len(weights))

    while sum(counts) < n:
        earliest = min(sources, key=lambda i: (_due(counts[i] + 1, weights[i]), i))
        counts[earliest] += 1
    while sum(counts) > n:
        # A source without rows is never the latest, because its row number 0 is due before the beginning.
        latest = max(sources, key=lambda i: (_due(counts[i], weights[i]), i))
        counts[latest] -= 1
    return counts


def _due(j: int, weight: int) -> Fraction:
    """Return the time of a source's row number j, counted from 1."""
    return Fraction(2 * j - 1, 2 * weight)
