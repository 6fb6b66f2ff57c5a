"""Builds small batches for XLNet, and converts their rows one by one to transformers' inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from schemas.masking import Masking
from schemas.ragged import offsets_of
from schemas.vocabulary import Vocabulary
from tests.small_models import alone
from trainer.data.batches import pack_permuted
from trainer.data.rows import PairRows
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.xlnet import permutation_inputs

SPANS = Masking("ngram", 1 / 6)


def random_rows(vocabulary: Vocabulary, lengths: list[tuple[int, int]], seed: int = 0) -> PairRows:
    """Return rows of random ordinary tokens, in the layout of shards. lengths: for each row, the tokens of A and B."""
    rng = np.random.default_rng(seed)
    cls_id = vocabulary.special_id("cls")
    sep_id = vocabulary.special_id("sep")
    rows = []
    segment_b = []
    for a, b in lengths:
        a_ids = rng.choice(vocabulary.ordinary_ids, a)
        b_ids = rng.choice(vocabulary.ordinary_ids, b)
        rows.append(np.concatenate([[cls_id], a_ids, [sep_id], *([b_ids, [sep_id]] if b else [])]))
        segment_b.append(a + 2)

    ids_T = np.concatenate(rows)
    return PairRows(
        ids_T=ids_T.astype(np.uint16),
        word_starts_T=vocabulary.starts_word_V[ids_T],
        offsets_B1=offsets_of(np.array([len(row) for row in rows])),
        segment_b_B=np.array(segment_b),
        labels_B=np.full(len(rows), IGNORE_INDEX),
    )


def keys(rows: PairRows, seed: int = 0) -> np.ndarray:
    """Return a random key for each row, uint64 (B,)."""
    return np.random.default_rng(seed).integers(0, 2**63, len(rows.segment_b_B)).astype(np.uint64)


def random_batch(vocabulary: Vocabulary, lengths: list[tuple[int, int]], prob: float = 1 / 6) -> PackedBatch:
    rows = random_rows(vocabulary, lengths)
    return pack_permuted(rows, keys(rows), Masking("ngram", prob), vocabulary)


def single(batch: PackedBatch, s: int) -> PackedBatch:
    """Return sequence `s` of a batch as a separate batch, with its permutation order."""
    assert batch.order_T is not None
    row = alone(batch, s)
    return replace(row, order_T=batch.order_T[batch.sequence_T == s], most_targets=row.predicted)


def singles(batch: PackedBatch) -> list[PackedBatch]:
    return [single(batch, s) for s in range(len(batch.sequence_starts_S))]


def their_inputs(row: PackedBatch) -> dict[str, Tensor]:
    """Return a batch of one sequence as the arguments of XLNetLMHeadModel."""
    assert row.order_T is not None
    inputs = {"input_ids": row.ids_T[None], "token_type_ids": row.segments_T[None]}
    return inputs | permutation_inputs(row.order_T, row.masked_positions_K)
