"""Several pair folders as one stream, with weights that are exact over any number of steps.

After n places of the stream a folder of weight w has given w * n of them, to within one. Each folder keeps its own
endless order and its own epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.errors import DataError
from trainer.stream.order import Order
from trainer.stream.reading import PairFolder


@dataclass(frozen=True)
class Source:
    """One folder, its order, and its share of the stream."""

    folder: PairFolder
    order: Order
    weight: float


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
