"""Several pair folders as one stream, mixed by their weights.

The places of the stream are shared out by Webster's (Sainte-Lague's) divisor method: row number j of a folder of weight
w is due at time (2j - 1) / 2w, and the stream takes rows in the order of these times. So a folder's count never falls,
every batch has exactly its size, and every row comes once an epoch. (Largest remainders do not have this property:
the count of a small folder may fall as the stream grows, the Alabama paradox.)

After n places, a folder of weight w among k folders has given w * n of them to within (1 + w * (k - 2)) / 2: less than
one place for up to three folders, and for any folder that is small. Each folder keeps its own endless order and epochs.

Letters: B rows.
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
from trainer.data.dataset import Block, PairFolder
from trainer.data.sampler import Order, RowRange

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """One folder, its order, and its weight in the stream: its share is weight / sum of all sources' weights."""

    folder: PairFolder
    order: Order
    weight: int


@dataclass(frozen=True)
class SourceRows:
    """Rows of a global batch that lie in one block of one source. bases: by shard, where the keys of its rows begin."""

    folder: PairFolder
    row_range: RowRange
    block: Block
    bases: U64

    @classmethod
    def of(cls, source: Source, stretch: RowRange, seed: int) -> SourceRows:
        folder = source.folder
        bases = np.zeros(len(folder.manifest.shards), dtype=np.uint64)
        for shard in stretch.shards:
            bases[shard] = key(seed, "mask", stretch.epoch, folder.manifest.shards[shard].fingerprint)
        block = folder.block(stretch.shards)
        folder.ahead(source.order.after(stretch))
        return cls(folder, stretch, block, bases)

    def lengths(self) -> Ints:
        offsets, rows = self.block.rows.offsets_B1, self.row_range.rows_N
        return offsets[rows + 1] - offsets[rows]

    def keys(self, chosen: Ints) -> U64:
        """Each row's key for its masks: from the seed, the epoch and the row's own identity."""
        return numbers(self.bases[self.block.shard_B[chosen]], self.block.row_B[chosen])


def build_sources(folders: list[PairFolder], weights: list[float] | None, seed: int, by_tokens: bool) -> list[Source]:
    """The folders with their shares, by default as large as they are, so that all end their epochs together.

    Raises DataError when their vocabularies differ or one holds no row.
    """
    first = folders[0]
    for folder in folders:
        if folder.vocabulary.fingerprint != first.vocabulary.fingerprint:
            raise DataError(
                f"{folder.folder} has vocabulary {folder.vocabulary.fingerprint} ({folder.vocabulary.size} tokens), "
                f"but {first.folder} has {first.vocabulary.fingerprint} ({first.vocabulary.size}). "
                "Rebuild one with the other's."
            )
        if not folder.manifest.totals["rows"]:
            raise DataError(f"{folder.folder} holds no row to train on.")
    whole_weights = integer_weights(folders, weights, by_tokens)
    return [
        Source(folder, order_of(folder, seed, by_tokens), weight)
        for folder, weight in zip(folders, whole_weights, strict=True)
    ]


def integer_weights(folders: list[PairFolder], weights: list[float] | None, by_tokens: bool) -> list[int]:
    """Return whole numbers in the same proportions as `weights`, or as the folders' sizes when there are none."""
    if weights is None:
        unit = "tokens" if by_tokens else "rows"
        return [folder.manifest.totals[unit] for folder in folders]

    # Through the decimal form: 0.3 means three tenths, not the binary fraction nearest to it.
    exact = [Fraction(str(weight)) for weight in weights]
    denominator = lcm(*(weight.denominator for weight in exact))
    return [int(weight * denominator) for weight in exact]


def order_of(folder: PairFolder, seed: int, by_tokens: bool) -> Order:
    shards = folder.manifest.shards
    rows, tokens = [shard.rows for shard in shards], [shard.tokens for shard in shards]
    if not by_tokens:
        return Order(rows, folder.manifest.fingerprint, seed)
    return Order(rows, folder.manifest.fingerprint, seed, tokens, lambda block: folder.block(block).rows.lengths())


def rows_of_step(sources: list[Source], step: int, size: int) -> list[tuple[int, int]]:
    """Each source's first and last place in the global batch of `size` places with the number `step`."""
    before, after = (rows_per_source(sources, n * size) for n in (step, step + 1))
    return list(zip(before, after, strict=True))


def rows_per_source(sources: list[Source], n: int) -> list[int]:
    """Return how many of the stream's first n places each source has given."""
    return apportion([source.weight for source in sources], n)


def apportion(weights: list[int], n: int) -> list[int]:
    """Share out the first n places of a Webster sequence by weights above 0.

    Row j of a source is due at time (2j - 1) / (2 * weight); sources that tie take turns by their number. The counts
    are those of the n earliest rows, so they never fall as n grows. Costs O(k log k) for k sources, whatever n is.
    Example: `apportion([2, 1], 4)` -> `[3, 1]`.
    """
    # Each share rounded half up is the count of rows due at time n / total. Their sum misses n by at most k / 2.
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
    upcoming = [(_due(count + 1, weight), i) for i, (count, weight) in enumerate(zip(counts, weights, strict=True))]
    heapq.heapify(upcoming)
    for _ in range(number):
        _, i = upcoming[0]
        counts[i] += 1
        heapq.heapreplace(upcoming, (_due(counts[i] + 1, weights[i]), i))


def _drop_latest(counts: list[int], weights: list[int], number: int) -> None:
    """Remove from `counts` the `number` latest of the rows that are counted."""
    # Negated, because a heap yields its smallest element; a source without rows is never the latest.
    latest = [(-_due(count, weight), -i) for i, (count, weight) in enumerate(zip(counts, weights, strict=True))]
    heapq.heapify(latest)
    for _ in range(number):
        i = -latest[0][1]
        counts[i] -= 1
        heapq.heapreplace(latest, (-_due(counts[i], weights[i]), -i))


def _due(j: int, weight: int) -> Fraction:
    """Return the time of row number j, counted from 1, of a source."""
    return Fraction(2 * j - 1, 2 * weight)
