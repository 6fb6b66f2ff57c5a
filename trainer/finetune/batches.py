"""Groups features of similar length into batches, so that batches contain little padding.

The batches of an epoch depend only on the features, the batch size, the seed and the epoch. Features are shuffled and
divided into pools of up to 50 batches, at least four pools if there are that many batches. Each pool is sorted by
length and cut into batches, and then the batches of all pools are shuffled. Each batch is thus a random sample of
features that have about the same length. transformers' LengthGroupedSampler chooses its pools by the same rule.
training.group_by_length = false turns this off: each batch is then a random sample of all features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas.randomness import key
from trainer.finetune.kinds.kind import Feature

MAX_POOL_BATCHES = 50
"""The maximum number of batches in a pool. A larger pool means less padding but less random batches."""

MIN_POOLS = 4
"""The minimum number of pools in an epoch.

In a single pool, the same features of similar length would meet in a batch in every epoch.
"""

Batch = list[int]
"""Indices into a list of features."""


def training_batches(
    features: Sequence[Feature], size: int, seed: int, epoch: int, group_by_length: bool = True
) -> list[Batch]:
    """Return the batches of an epoch. Each feature is in exactly one; at most one batch has fewer than `size`."""
    random = np.random.Generator(np.random.PCG64(key("finetune", "batches", seed, epoch)))
    shuffled = random.permutation(len(features)).tolist()
    if not group_by_length:
        return cut(shuffled, size)

    batches: list[Batch] = []
    pool_size = batches_per_pool(len(features), size) * size
    for start in range(0, len(shuffled), pool_size):
        pool = shuffled[start : start + pool_size]
        pool.sort(key=lambda number: features[number].length)
        batches += cut(pool, size)

    # Without this, training would go through each pool from its shortest features to its longest.
    return [batches[position] for position in random.permutation(len(batches))]


def batches_per_pool(features: int, size: int) -> int:
    """Return the number of batches in a pool, given the number of features and the batch size."""
    batches = features // size
    return max(1, min(MAX_POOL_BATCHES, batches // MIN_POOLS))


def evaluation_batches(features: Sequence[Feature], size: int) -> list[Batch]:
    """Return all features in batches, the longest first, so that a run that lacks memory fails in its first batch."""
    longest_first = sorted(range(len(features)), key=lambda number: -features[number].length)
    return cut(longest_first, size)


def cut(numbers: list[int], size: int) -> list[Batch]:
    """Return consecutive batches of `size` numbers; the last one may have fewer."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
