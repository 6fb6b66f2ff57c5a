"""Which features make a batch: rows of like length together, so that hardly anything is padding.

The batches of an epoch are a function of the seed and the epoch alone. Features are shuffled and divided into pools of
50 batches. Each pool is sorted by length and cut into batches, and then the batches of all pools are shuffled. So each
batch is a random choice of features that have about the same length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.randomness import key
from trainer.finetune.kinds.kind import Feature

POOL_BATCHES = 50
"""Batches of a pool. With more there is less padding, and batches are less random."""

Batch = list[int]
"""Numbers of features."""


def training_batches(features: Sequence[Feature], size: int, seed: int, epoch: int) -> list[Batch]:
    """Return the batches of an epoch. Each feature is in one; the last batches of pools may have fewer than `size`."""
    random = np.random.Generator(np.random.PCG64(key("finetune", "batches", seed, epoch)))
    shuffled = random.permutation(len(features)).tolist()

    batches: list[Batch] = []
    pool_size = POOL_BATCHES * size
    for start in range(0, len(shuffled), pool_size):
        pool = shuffled[start : start + pool_size]
        pool.sort(key=lambda number: features[number].length)
        batches += cut(pool, size)

    # Otherwise each pool would be learned from its shortest features to its longest.
    return [batches[position] for position in random.permutation(len(batches))]


def evaluation_batches(features: Sequence[Feature], size: int) -> list[Batch]:
    """Return all features in batches, the longest first, so that a lack of memory shows at once."""
    longest_first = sorted(range(len(features)), key=lambda number: -features[number].length)
    return cut(longest_first, size)


def cut(numbers: list[int], size: int) -> list[Batch]:
    """Return consecutive batches of `size` numbers; the last one may have fewer."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
