"""Packs rows and their masks into the batch that the model takes.

Shape suffixes: B rows (S sequences, in the model's terms), T tokens, K masked tokens. B1 means B + 1 offsets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from schemas.masking import Masks
from schemas.ragged import offsets_of
from trainer.data.pair_rows import PairRows
from trainer.models.batch import IGNORE_INDEX, PackedBatch


def pack(rows: PairRows, masks: Masks) -> PackedBatch:
    """Return the rows as one micro-batch on the CPU, with the masked tokens replaced."""
    lengths_B = rows.lengths()
    starts_B = rows.offsets_B1[:-1]
    sequence_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    positions_T = np.arange(len(rows.ids_T)) - np.repeat(starts_B, lengths_B)
    in_segment_b_T = positions_T >= np.repeat(rows.segment_b_B, lengths_B)

    # Take the labels before the masked tokens are overwritten. astype() copies: the rows stay as they are.
    ids_T = rows.ids_T.astype(np.int64)
    labels_K = ids_T[masks.positions_K]
    ids_T[masks.positions_K] = masks.seen_K

    return PackedBatch(
        ids_T=torch.from_numpy(ids_T),
        segments_T=torch.from_numpy(in_segment_b_T.astype(np.int64)),
        positions_T=torch.from_numpy(positions_T),
        sequence_T=torch.from_numpy(sequence_T),
        sequence_starts_S=torch.from_numpy(starts_B.copy()),
        longest=int(lengths_B.max()),
        masked_positions_K=torch.from_numpy(masks.positions_K),
        labels_K=torch.from_numpy(labels_K),
        pair_labels_S=torch.from_numpy(rows.labels_B.astype(np.int64, copy=False)),
        tokens=len(rows.ids_T),
        predicted=len(labels_K),
        paired=int((rows.labels_B != IGNORE_INDEX).sum()),
    )


def pack_causal(rows: PairRows) -> PackedBatch:
    """Return the rows as one micro-batch in which every token predicts the next one, except the last of each row.

    Pair labels are left out, because they are predicted from the first token, which sees no other token here.
    """
    is_last_T = np.zeros(len(rows.ids_T), dtype=bool)
    is_last_T[rows.offsets_B1[1:] - 1] = True
    positions_K = np.flatnonzero(~is_last_T)

    counts_B = rows.lengths() - 1
    unchanged = Masks(positions_K, rows.ids_T[positions_K], offsets_of(counts_B))
    batch = pack(rows, unchanged)
    return replace(
        batch,
        labels_K=torch.from_numpy(rows.ids_T[positions_K + 1].astype(np.int64)),
        pair_labels_S=torch.full_like(batch.pair_labels_S, IGNORE_INDEX),
        paired=0,
        causal=True,
    )
