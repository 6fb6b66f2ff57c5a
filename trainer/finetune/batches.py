"""Which features make a batch: rows of similar length, so that there is hardly any padding.

Batches of an epoch are a function of the seed and the epoch alone:

    1. Shuffle all features, and cut them into pools of POOL_BATCHES batches.
    2. Sort each pool by length, and cut it into batches.
    3. Shuffle the batches.

So each batch is a random choice of features of about the same length.
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
    order = random.permutation(len(features)).tolist()

    batches = []
    pool_size = POOL_BATCHES * size
    for start in range(0, len(order), pool_size):
        pool = sorted(order[start : start + pool_size], key=lambda number: features[number].length)
        batches += [pool[i : i + size] for i in range(0, len(pool), size)]
    return [batches[i] for i in random.permutation(len(batches))]


def evaluation_batches(features: Sequence[Feature], size: int) -> list[Batch]:
    """Return all features in batches, the longest first, so that too little memory shows at once."""
    order = sorted(range(len(features)), key=lambda number: -features[number].length)
    return [order[i : i + size] for i in range(0, len(order), size)]
