"""Masks that are drawn once and stored with the rows, K variants per row, by the rules of schemas.masking.

They are for other frameworks and for comparisons that need a fixed set. The trainer draws new masks as it reads, which
trains better models.

Shape suffixes: B rows, T tokens, K masked positions of all rows, V the vocabulary. B1 has one element more than B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.pairs.layout import RowBatch
from schemas.masking import Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary


class StaticMaskDrawer:
    """Draws the masks of one shard, batch by batch, and counts them."""

    def __init__(self, variants: int, masking: Masking, identity: tuple[int | str, ...], vocabulary: Vocabulary):
        """Start with all counts at zero. variants: how many masks each row gets.

        identity: what seeds their random numbers besides the row.
        """
        self._masking = masking
        self._vocabulary = vocabulary
        self._counts: Counter[str] = Counter()
        self._keys = [np.uint64(key(*identity, "static mask", variant)) for variant in range(variants)]

    def draw(self, rows: RowBatch) -> dict[str, pa.Array]:
        """Return the columns of a batch of rows that hold its masks, by name."""
        drawn = [self._draw_variant(rows, variant_key) for variant_key in self._keys]
        for masks in drawn:
            self._counts.update(count_fates(masks, rows, self._vocabulary))

        offsets = [masks.offsets_B1 for masks in drawn]
        positions = [positions_in_rows(masks, rows).astype(np.uint16) for masks in drawn]
        tokens = [masks.seen_K for masks in drawn]
        return {
            "mask_positions": interleave_variants(positions, offsets),
            "mask_tokens": interleave_variants(tokens, offsets),
        }

    def counts(self) -> dict[str, int]:
        """Return the sums of `count_fates` over all masks drawn so far."""
        names = ("chosen", "masked", "kept", "random", "eligible")
        return {name: self._counts[name] for name in names}

    def _draw_variant(self, rows: RowBatch, variant_key: np.uint64) -> Masks:
        """Draw one mask for every row."""
        # The key of a row's mask depends on the row's number in the shard, so drawing in batches changes nothing.
        batch_rows = len(rows.offsets_R1) - 1
        row_numbers_B = np.arange(batch_rows) + rows.first_row
        keys_B = numbers(variant_key, row_numbers_B)
        to_mask = RowsToMask(rows.ids_T, rows.offsets_R1, rows.word_starts_T, keys_B)
        return draw_masks(to_mask, self._masking, self._vocabulary)


def positions_in_rows(masks: Masks, rows: RowBatch) -> NDArray[np.int64]:
    """Return (K,) int64: masked positions counted from the start of their rows, not of the batch as in `masks`."""
    masks_per_row_B = np.diff(masks.offsets_B1)
    return masks.positions_K - np.repeat(rows.offsets_R1[:-1], masks_per_row_B)


def interleave_variants(values: Sequence[NDArray[np.integer]], offsets: Sequence[NDArray[np.int64]]) -> pa.ListArray:
    """Return for each row the list of its variants, each a list of values.

    values: for each variant, (K,) the values of all its masks.
    offsets: for each variant, (B1,) where the values of each row begin.

    Example: values [1 2 3] with offsets [0 2 3], and values [7 8] with offsets [0 1 2], are two variants of two rows.
    They give [[[1 2] [7]] [[3] [8]]].
    """
    variants = len(values)
    rows = len(offsets[0]) - 1

    # All variants end to end: [1 2 3 7 8], variant 0 from offset 0 and variant 1 from offset 3.
    end_to_end = np.concatenate(values)
    first_places = offsets_of(np.array([len(part) for part in values]))[:-1]

    # The start and length of each list in that array: (B, variants), flattened row by row.
    starts_of_variants = [of_rows[:-1] + first for of_rows, first in zip(offsets, first_places, strict=True)]
    lengths_of_variants = [np.diff(of_rows) for of_rows in offsets]
    starts = np.stack(starts_of_variants, axis=1).ravel()
    lengths = np.stack(lengths_of_variants, axis=1).ravel()
    row_after_row = take_ranges(end_to_end, starts, lengths)

    list_offsets = offsets_of(lengths).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(list_offsets), pa.array(row_after_row))
    row_offsets = np.arange(rows + 1, dtype=np.int32) * variants
    return pa.ListArray.from_arrays(pa.array(row_offsets), lists)


def count_fates(masks: Masks, rows: RowBatch, vocabulary: Vocabulary) -> dict[str, int]:
    """Count the chosen tokens, and what the model sees there: [MASK], the token itself, or a random one.

    "eligible" counts the tokens that are not special.
    """
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
