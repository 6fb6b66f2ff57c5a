"""Packs rows for XLNet, in its own layout, with targets and their order in place of masks (schemas/permutations.py).

Rows of pairs begin with [CLS]. XLNet's end with it, and it is a segment of its own, number 2:

    [CLS] A [SEP] B [SEP]       segments 0 0 0 1 1      as they are stored
    A [SEP] B [SEP] [CLS]       segments 0 0 1 1 2      as XLNet reads them

So the first token is moved to the end when rows are read, and the same shards serve all model families. Rows with only
one segment have no segment 1. Rows of a byte-level BPE vocabulary keep both of RoBERTa's separators between A and B,
where XLNet's own rows have one.

Shape suffixes: B rows, T tokens, K targets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from schemas.masking import Masking, Masks, RowsToMask
from schemas.permutations import draw_targets
from schemas.randomness import U64
from schemas.vocabulary import Vocabulary
from trainer.data.collate import pack
from trainer.data.pair_rows import PairRows
from trainer.models.batch import PackedBatch

CLASSIFIER_SEGMENT = 2
"""The segment of [CLS] (SEG_ID_CLS in zihangdai/xlnet)."""


def pack_permuted(rows: PairRows, keys_B: U64, masking: Masking, vocabulary: Vocabulary) -> PackedBatch:
    """Return stored rows as one micro-batch on the CPU, in XLNet's layout. keys_B: the rows' random keys, uint64."""
    rows = first_token_last(rows)
    to_draw = RowsToMask(rows.ids_T, rows.offsets_B1, rows.word_starts_T, keys_B)
    targets = draw_targets(to_draw, masking, vocabulary)

    # The input keeps the targets' own ids. Attention hides from each query what it must not see.
    unchanged = Masks(targets.positions_K, rows.ids_T[targets.positions_K], targets.offsets_B1)
    batch = pack(rows, unchanged)

    segments_T = batch.segments_T.clone()
    segments_T[torch.from_numpy(rows.offsets_B1[1:] - 1)] = CLASSIFIER_SEGMENT
    return replace(
        batch,
        segments_T=segments_T,
        order_T=torch.from_numpy(targets.order_T),
        most_targets=int(np.diff(targets.offsets_B1).max()),
    )


def first_token_last(rows: PairRows) -> PairRows:
    """Return the rows with each one's first token moved to its end. No row is empty."""
    starts_B = rows.offsets_B1[:-1]
    lasts_B = rows.offsets_B1[1:] - 1

    # Each token comes from the place after its own, and the last of a row from the row's beginning.
    sources_T = np.arange(1, len(rows.ids_T) + 1)
    sources_T[lasts_B] = starts_B
    return replace(
        rows,
        ids_T=rows.ids_T.take(sources_T),
        word_starts_T=rows.word_starts_T.take(sources_T),
        segment_b_B=rows.segment_b_B - 1,
    )
