"""Draws the random numbers with which ELECTRA's generator samples replacements, one for each masked token.

They are drawn from the key of the row's masks, made from the seed, the epoch and the row (mixture.py), with the token's
place in the row as the counter. So a replacement depends neither on other rows nor on rank, step or restart.

Shape suffixes: B rows, K masked tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from schemas.masking import Masks
from schemas.randomness import U64, numbers
from trainer.data.pair_rows import PairRows
from trainer.models.batch import PackedBatch

_FIRST_COUNTER = 1 << 49
"""The counter of a row's first place. Masks and SOP's order draw from the same keys, with counters far below."""


def with_replacement_draws(batch: PackedBatch, rows: PairRows, masks: Masks, keys_B: U64) -> PackedBatch:
    """Return the batch of these rows and masks with `draws_K`, int64 in [0, 2**63)."""
    row_K = np.repeat(np.arange(len(keys_B)), np.diff(masks.offsets_B1))
    places_K = masks.positions_K - rows.offsets_B1[row_K]
    draws_K = numbers(keys_B[row_K], places_K + _FIRST_COUNTER) >> np.uint64(1)
    return replace(batch, draws_K=torch.from_numpy(draws_K.astype(np.int64)))
