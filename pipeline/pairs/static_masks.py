"""Masks that are drawn once and stored with the rows, K variants of each row, by the rules of schemas.masking.

They are for other frameworks and for comparisons that need a fixed set. The trainer draws new masks as it reads, which
train better.

Shape suffixes: B rows, T tokens, K masked positions of all rows, V the vocabulary. B1 has one element more than B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards
from schemas.masking import Masking, Masks, RowsToMask, draw_masks
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary

ROWS_AT_ONCE = 1024  # as many as stay in a processor's cache: twice as fast as all rows in one call


@dataclass(frozen=True)
class StaticMasks:
    """How many masks each row gets, how they are drawn, and what their random numbers depend on besides the row."""

    variants: int
    masking: Masking
    identity: tuple[int | str, ...]


def with_masks(table: pa.Table, stored: StaticMasks, vocabulary: Vocabulary) -> tuple[pa.Table, dict[str, int]]:
    """Return (the table with `mask_positions` and `mask_tokens`, the counts of `count_fates`)."""
    drawn = [draw_variant(table, stored, variant, vocabulary) for variant in range(stored.variants)]
    ids = table["input_ids"].combine_chunks()
    ids_T = ids.values.to_numpy()
    offsets_B1 = ids.offsets.to_numpy()

    positions = [_positions_in_rows(masks, offsets_B1) for masks in drawn]
    tokens = [masks.seen_K for masks in drawn]
    position_column = interleave_variants(positions, drawn, pa.uint16())
    token_column = interleave_variants(tokens, drawn, shards.token_type(vocabulary.size))

    schema = shards.pairs_schema(vocabulary.size, static_masks=True)
    masked = pa.table([*table.columns, position_column, token_column], schema=schema)
    return masked, count_fates(drawn, ids_T, vocabulary)


def _positions_in_rows(masks: Masks, offsets_B1: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return (K,) masked positions counted from the start of their rows; `masks` counts from the first row's."""
    masks_per_row_B = np.diff(masks.offsets_B1)
    row_of_mask_K = np.repeat(np.arange(len(masks_per_row_B)), masks_per_row_B)
    return masks.positions_K - offsets_B1[row_of_mask_K]


def draw_variant(table: pa.Table, stored: StaticMasks, variant: int, vocabulary: Vocabulary) -> Masks:
    """Draw one mask for every row, ROWS_AT_ONCE rows at a time."""
    ids = table["input_ids"].combine_chunks()
    ids_T = ids.values.to_numpy()
    offsets_B1 = ids.offsets.to_numpy().astype(np.int64)
    word_starts_T = table["word_starts"].combine_chunks().values.to_numpy(zero_copy_only=False)

    # The key of a row's mask depends on the row's number in the shard, so drawing in parts changes nothing.
    variant_key = np.uint64(key(*stored.identity, "static mask", variant))
    keys_B = numbers(variant_key, np.arange(table.num_rows))

    positions = [np.zeros(0, dtype=np.int64)]
    seen: list[NDArray[np.integer]] = [np.zeros(0, dtype=ids_T.dtype)]
    masks_per_row = [np.zeros(0, dtype=np.int64)]

    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        offsets = offsets_B1[start : start + ROWS_AT_ONCE + 1]
        first_token = offsets[0]
        tokens = slice(first_token, offsets[-1])
        keys = keys_B[start : start + ROWS_AT_ONCE]

        rows = RowsToMask(ids_T[tokens], offsets - first_token, word_starts_T[tokens], keys)
        masks = draw_masks(rows, stored.masking, vocabulary)
        positions.append(masks.positions_K + first_token)
        seen.append(masks.seen_K)
        masks_per_row.append(np.diff(masks.offsets_B1))

    return Masks(np.concatenate(positions), np.concatenate(seen), offsets_of(np.concatenate(masks_per_row)))


def interleave_variants(values: list[NDArray[np.integer]], drawn: list[Masks], value_type: pa.DataType) -> pa.ListArray:
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
    values_of_variant = pa.ListArray.from_arrays(value_offsets, pa.array(all_values, value_type))
    return pa.ListArray.from_arrays(variant_offsets, values_of_variant)


def count_fates(drawn: list[Masks], ids_T: NDArray[np.integer], vocabulary: Vocabulary) -> dict[str, int]:
    """Count how many tokens were chosen, and what the model sees there: [MASK], the token itself, or another one."""
    true_K = np.concatenate([ids_T[masks.positions_K] for masks in drawn])
    seen_K = np.concatenate([masks.seen_K for masks in drawn])

    chosen = len(true_K)
    masked = int((seen_K == vocabulary.special_id("mask")).sum())
    kept = int((seen_K == true_K).sum())
    eligible_per_variant = int((~vocabulary.is_special_V[ids_T]).sum())
    return {
        "chosen": chosen,
        "masked": masked,
        "kept": kept,
        "random": chosen - masked - kept,
        "eligible": len(drawn) * eligible_per_variant,
    }
