"""Measures the held-out loss at [MASK] of any masked LM that transformers opens, for quality.py.

Every contestant predicts the same positions of the same held-out rows. All of them are replaced by [MASK], so that no
token can be copied. The positions come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary

MASK_SHARE = 0.15
MASK_SEED = 123
ROWS_AT_ONCE = 16
MAX_ROWS = 2000
"""Of a larger set, every other row is measured, or every third, and so on."""

IGNORED = -100


class Score(NamedTuple):
    """A model's score at the masked positions. loss: in nats. accuracy: of the most likely token."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows with the chosen positions masked.

    batches: (ids, attention mask, labels), each int64 (rows, tokens). labels_K: the masked tokens of all batches.
    """

    batches: list[tuple[Tensor, Tensor, Tensor]]
    labels_K: np.ndarray
    characters_a_token: float

    @torch.inference_mode()
    def score(self, model: Any) -> Score:
        """Return the loss and the accuracy of a transformers model at the masked positions."""
        model.eval()
        device = next(model.parameters()).device
        loss = correct = 0.0
        for ids, attended, labels in self.batches:
            logits = model(input_ids=ids.to(device), attention_mask=attended.to(device)).logits
            is_masked = labels.to(device) != IGNORED
            at_masks = logits[is_masked].float()
            right = labels.to(device)[is_masked]
            loss += float(F.cross_entropy(at_masks, right, reduction="sum"))
            correct += float((at_masks.argmax(-1) == right).sum())
        return Score(loss / len(self.labels_K), correct / len(self.labels_K))

    def unigram_loss(self, counts_V: np.ndarray) -> float:
        """Return the loss, in nats, of predicting by token frequencies alone, with add-one smoothing.

        counts_V: the count of each token in the training text.
        """
        shares_V = (counts_V + 1) / (counts_V + 1).sum()
        return float(-np.log(shares_V[self.labels_K]).mean())

    def bits_per_character(self, loss: float) -> float:
        """Convert a loss in nats per token to bits per character, by the mean characters of a masked token."""
        return loss / log(2) / self.characters_a_token


def read_held_out(pairs: Path) -> HeldOut:
    """Read a folder of held-out pairs and choose the positions to predict."""
    vocabulary = read_vocabulary(str(pairs / VOCABULARY_FOLDER))
    generator = np.random.default_rng(MASK_SEED)
    mask_id = vocabulary.special_id("mask")
    assert mask_id is not None

    batches = []
    all_labels = []
    rows = _rows_of(pairs)
    rows = rows[:: max(1, len(rows) // MAX_ROWS)]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        batch = rows[start : start + ROWS_AT_ONCE]
        ids = np.full((len(batch), max(map(len, batch))), vocabulary.special_id("pad"))
        attended = np.zeros_like(ids)
        for i, row in enumerate(batch):
            ids[i, : len(row)] = row
            attended[i, : len(row)] = 1

        can_be_masked = ~np.isin(ids, vocabulary.special_ids)
        chosen = can_be_masked & (generator.random(ids.shape) < MASK_SHARE)
        labels = np.where(chosen, ids, IGNORED)
        all_labels.append(ids[chosen])

        shown = np.where(chosen, mask_id, ids)
        batches.append((as_tensor(shown), as_tensor(attended), as_tensor(labels)))

    labels_K = np.concatenate(all_labels)
    return HeldOut(batches, labels_K, _characters_a_token(vocabulary.tokens, labels_K))


def as_tensor(values: np.ndarray) -> Tensor:
    """Return integers as an int64 tensor, which transformers expects."""
    return torch.from_numpy(values.astype(np.int64))


def _rows_of(pairs: Path) -> list[np.ndarray]:
    rows = []
    for shard in sorted(pairs.glob("*.arrow")):
        rows += list(pa.ipc.open_file(shard).read_all()["input_ids"].to_numpy(zero_copy_only=False))
    return rows


def _characters_a_token(tokens: Iterable[str], labels_K: np.ndarray) -> float:
    """Return the mean number of characters in the predicted tokens, without the mark ## of pieces inside words."""
    lengths = np.array([len(token.removeprefix("##")) for token in tokens])
    return float(lengths[labels_K].mean())
