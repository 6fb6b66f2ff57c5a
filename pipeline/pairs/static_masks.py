"""Masks that are drawn once and stored with the rows, K variants of each row, by the rules of schemas.masking.

They are for other frameworks and for comparisons that need a fixed set. The trainer draws new masks as it reads, which
train better.

Shape suffixes: B rows, T tokens, K masked positions of all rows, V the vocabulary. B1 has one element more than B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.layout import RowBatch
from schemas.masking import Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary


@dataclass(frozen=True)
class StaticMasks:
    """How many masks each row gets, how they are drawn, and what their random numbers depend on besides the row."""

    variants: int
    masking: Masking
    identity: tuple[int | str, ...]


class StaticMaskDrawer:
    """Draws the masks of one shard, batch after batch of its rows, and counts them."""

    def __init__(self, stored: StaticMasks, vocabulary: Vocabulary):
        """Start with no mask."""
        self._masking = stored.masking
        self._vocabulary = vocabulary
        self._counts: Counter[str] = Counter()
        variants = range(stored.variants)
        self._keys = [np.uint64(key(*stored.identity, "static mask", variant)) for variant in variants]

    def draw(self, rows: RowBatch) -> list[pa.Array]:
        """Return the columns `mask_positions` and `mask_tokens` of a batch of rows."""
        drawn = [self._draw_variant(rows, variant_key) for variant_key in self._keys]
        for masks in drawn:
            self._counts.update(count_fates(masks, rows, self._vocabulary))

        positions = [positions_in_rows(masks, rows).astype(np.uint16) for masks in drawn]
        tokens = [masks.seen_K for masks in drawn]
        return [interleave_variants(positions, drawn), interleave_variants(tokens, drawn)]

    def counts(self) -> dict[str, int]:
        """Return the counts of `count_fates` for all masks drawn so far."""
        names = ("chosen", "masked", "kept", "random", "eligible")
        return {name: self._counts[name] for name in names}

    def _draw_variant(self, rows: RowBatch, variant_key: np.uint64) -> Masks:
        """Draw one mask for every row."""
        # The key of a row's mask depends on the row's number in the shard, so drawing in batches changes nothing.
        numbers_B = np.arange(len(rows.offsets_R1) - 1) + rows.first_row
        keys_B = numbers(variant_key, numbers_B)
        to_mask = RowsToMask(rows.ids_T, rows.offsets_R1, rows.word_starts_T, keys_B)
        return draw_masks(to_mask, self._masking, self._vocabulary)


def positions_in_rows(masks: Masks, rows: RowBatch) -> NDArray[np.int64]:
    """Return (K,) masked positions counted from the start of their rows; `masks` counts from the first row's."""
    masks_per_row_B = np.diff(masks.offsets_B1)
    return masks.positions_K - np.repeat(rows.offsets_R1[:-1], masks_per_row_B)


def interleave_variants(values: Sequence[NDArray[np.integer]], drawn: list[Masks]) -> pa.ListArray:
    """Return for each row the list of its variants, each a list of values.

    `values` has one array per variant, with one value per mask of all rows.
    """
    variants = len(drawn)
    rows = len(drawn[0].offsets_B1) - 1

    # Put all variants end to end, and read the ranges of row 0's variants, then those of row 1's, and so on.
    offset_of_variant = offsets_of(np.array([len(part) for part in values]))[:-1]
    starts_by_variant = [masks.offsets_B1[:-1] + offset for masks, offset in zip(drawn, offset_of_variant, strict=True)]
    counts_by_variant = [np.diff(masks.offsets_B1) for masks in drawn]
    starts = np.stack(starts_by_variant, axis=1).ravel()
    counts = np.stack(counts_by_variant, axis=1).ravel()
    all_values = take_ranges(np.concatenate(values), starts, counts)

    value_offsets = pa.array(offsets_of(counts).astype(np.int32))
    variant_offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * variants)
    values_of_variant = pa.ListArray.from_arrays(value_offsets, pa.array(all_values))
    return pa.ListArray.from_arrays(variant_offsets, values_of_variant)


def count_fates(masks: Masks, rows: RowBatch, vocabulary: Vocabulary) -> dict[str, int]:
    """Count how many tokens were chosen, and what the model sees there: [MASK], the token itself, or another one."""
    true_K = rows.ids_T[masks.positions_K]
    chosen = len(true_K)
    masked = int(np.count_nonzero(masks.seen_K == vocabulary.special_id("mask")))
    kept = int(np.count_nonzero(masks.seen_K == true_K))
    special = int(np.count_nonzero(vocabulary.is_special_V.take(rows.ids_T)))
    return {
        "chosen": chosen,
        "masked": masked,
        "kept": kept,
        "random": chosen - masked - kept,
        "eligible": len(rows.ids_T) - special,
    }
