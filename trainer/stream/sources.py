"""Several pair folders as one stream, with weights that are exact over any number of steps.

After n places of the stream a folder of weight w has given w * n of them, to within one. Each folder keeps its own
endless order and its own epochs.

Letters: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.errors import DataError
from schemas.randomness import U64, key, numbers
from trainer.stream.order import Order, Stretch
from trainer.stream.reading import Block, PairFolder

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """One folder, its order, and its share of the stream."""

    folder: PairFolder
    order: Order
    weight: float


@dataclass(frozen=True)
class Part:
    """Rows of a global batch that lie in one block of one source. bases: by shard, where the keys of its rows begin."""

    folder: PairFolder
    stretch: Stretch
    block: Block
    bases: U64

    @classmethod
    def of(cls, source: Source, stretch: Stretch, seed: int) -> Part:
        folder = source.folder
        bases = np.zeros(len(folder.manifest.shards), dtype=np.uint64)
        for shard in stretch.shards:
            bases[shard] = key(seed, "mask", stretch.epoch, folder.manifest.shards[shard].fingerprint)
        block = folder.block(stretch.shards)
        folder.ahead(source.order.after(stretch))
        return cls(folder, stretch, block, bases)

    def lengths(self) -> Ints:
        offsets, rows = self.block.rows.offsets_B1, self.stretch.rows_N
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
    sizes = [folder.manifest.totals["tokens" if by_tokens else "rows"] for folder in folders]
    shares = np.array(sizes if weights is None else weights, dtype=np.float64)
    return [
        Source(folder, order_of(folder, seed, by_tokens), float(share))
        for folder, share in zip(folders, shares / shares.sum(), strict=True)
    ]


def order_of(folder: PairFolder, seed: int, by_tokens: bool) -> Order:
    shards = folder.manifest.shards
    rows, tokens = [shard.rows for shard in shards], [shard.tokens for shard in shards]
    if not by_tokens:
        return Order(rows, folder.manifest.fingerprint, seed)
    return Order(rows, folder.manifest.fingerprint, seed, tokens, lambda block: folder.block(block).rows.lengths())


def places(sources: list[Source], step: int, size: int) -> list[tuple[int, int]]:
    """Each source's first and last place in the global batch of `size` places with the number `step`."""
    before, after = (given(sources, n * size) for n in (step, step + 1))
    return list(zip(before, after, strict=True))


def given(sources: list[Source], n: int) -> list[int]:
    """How many of the stream's first n places each source has given: whole parts, then the largest remainders."""
    exact = [source.weight * n for source in sources]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(sources)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts
