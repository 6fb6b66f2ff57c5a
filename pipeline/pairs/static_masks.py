"""Masks drawn once and stored with the rows, K variants of each, by the rules of schemas.masking.

For who needs a static set, or the same masks in another framework; the trainer draws better ones as it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import shards
from schemas.masking import Masking, Masks, draw_masks
from schemas.ragged import offsets_of, take_ranges
from schemas.randomness import key, numbers
from schemas.vocabulary import Vocabulary

ROWS_AT_ONCE = 1024  # as many as stay in a processor's cache: twice as fast as all at once


@dataclass(frozen=True)
class StaticMasks:
    """How many masks each row gets, how they are drawn, and the part of their key that is not the row's place."""

    variants: int
    masking: Masking
    identity: tuple[int | str, ...]


def with_masks(table: pa.Table, stored: StaticMasks, vocabulary: Vocabulary) -> tuple[pa.Table, dict[str, int]]:
    """The table with `mask_positions` and `mask_tokens`, and what the masks did, counted."""
    drawn = [draw_variant(table, stored, variant, vocabulary) for variant in range(stored.variants)]
    ids_T = table["input_ids"].combine_chunks().values.to_numpy()
    offsets_B1 = table["input_ids"].combine_chunks().offsets.to_numpy()
    row_of = [np.repeat(np.arange(table.num_rows), np.diff(masks.offsets_B1)) for masks in drawn]
    places = [masks.positions_K - offsets_B1[rows] for masks, rows in zip(drawn, row_of, strict=True)]
    positions = interleave(places, drawn, pa.uint16())
    tokens = interleave([masks.seen_K for masks in drawn], drawn, shards.token_type(vocabulary.size))
    schema = shards.pairs_schema(vocabulary.size, static_masks=True)
    return pa.table([*table.columns, positions, tokens], schema=schema), count_fates(drawn, ids_T, vocabulary)


def draw_variant(table: pa.Table, stored: StaticMasks, variant: int, vocabulary: Vocabulary) -> Masks:
    """One mask of every row, ROWS_AT_ONCE at a time."""
    ids, starts = table["input_ids"].combine_chunks(), table["word_starts"].combine_chunks()
    ids_T, offsets_B1 = ids.values.to_numpy(), ids.offsets.to_numpy().astype(np.int64)
    starts_T = starts.values.to_numpy(zero_copy_only=False)
    keys_B = numbers(np.uint64(key(*stored.identity, "static mask", variant)), np.arange(table.num_rows))
    lots = []
    for first in range(0, table.num_rows, ROWS_AT_ONCE):
        bounds = offsets_B1[first : first + ROWS_AT_ONCE + 1]
        part = slice(bounds[0], bounds[-1])
        lot = draw_masks(ids_T[part], bounds - bounds[0], starts_T[part], keys_B[first : first + ROWS_AT_ONCE],
                         stored.masking, vocabulary)  # fmt: skip
        lots.append((lot.positions_K + bounds[0], lot.seen_K, np.diff(lot.offsets_B1)))
    none = (np.zeros(0, np.int64), np.zeros(0, ids_T.dtype), np.zeros(0, np.int64))
    positions_K, seen_K, counts_B = (np.concatenate(parts) for parts in zip(none, *lots, strict=True))
    return Masks(positions_K, seen_K, offsets_of(counts_B))


def interleave(values: list[NDArray[np.integer]], drawn: list[Masks], kind: pa.DataType) -> pa.ListArray:
    """One list of variants for each row, from one array of all rows for each variant."""
    rows = len(drawn[0].offsets_B1) - 1
    before = offsets_of(np.array([len(part) for part in values]))[:-1]
    starts = np.stack([masks.offsets_B1[:-1] + b for masks, b in zip(drawn, before, strict=True)], axis=1).ravel()
    counts = np.stack([np.diff(masks.offsets_B1) for masks in drawn], axis=1).ravel()
    flat = pa.array(take_ranges(np.concatenate(values), starts, counts), kind)
    inner = pa.ListArray.from_arrays(pa.array(offsets_of(counts).astype(np.int32)), flat)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * len(drawn)), inner)


def count_fates(drawn: list[Masks], ids_T: NDArray[np.integer], vocabulary: Vocabulary) -> dict[str, int]:
    """How many tokens were chosen, and what the model sees there: [MASK], the token itself, or another."""
    true_K = np.concatenate([ids_T[masks.positions_K] for masks in drawn])
    seen_K = np.concatenate([masks.seen_K for masks in drawn])
    masked, kept = int((seen_K == vocabulary.special_id("mask")).sum()), int((seen_K == true_K).sum())
    random, eligible = len(true_K) - masked - kept, len(drawn) * int((~vocabulary.is_special_V[ids_T]).sum())
    return {"chosen": len(true_K), "masked": masked, "kept": kept, "random": random, "eligible": eligible}
