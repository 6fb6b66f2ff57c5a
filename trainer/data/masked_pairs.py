"""Rows of pairs for transformers' own Trainer, or any loop on torch's DataLoader, masked as our trainer masks them.

    from transformers import AutoTokenizer, DataCollatorForTokenClassification, Trainer, TrainingArguments
    from trainer.data.masked_pairs import MaskedPairs

    rows = MaskedPairs("out/pairs", seed=0)
    collator = DataCollatorForTokenClassification(AutoTokenizer.from_pretrained("out/pairs/vocabulary"))
    arguments = TrainingArguments("out/hf_run", train_sampling_strategy="sequential", max_steps=1000)
    Trainer(model, arguments, collator, rows).train()

The order of an epoch is already random (order.py), so the sampler is sequential. Row number i of epoch e is place
e * len(rows) + i of the stream that a run with the same seed reads, with the same masks. On one rank, the batches of
whole epochs are those of `python -m trainer` with one micro-batch a step.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from schemas.errors import UsageError
from schemas.masking import Masking
from trainer.data.folder import PairFolder
from trainer.data.order import Source, build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import IGNORE_INDEX, PackedBatch

PAIR_LABELS = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
"""What transformers' models call the label of a pair, by the objective of the pairs."""

ALL_ROWS = RankShare(rank=0, world_size=1, micro_batches=1, size=1)
"""The share with which a stream returns the rows it is asked for as one micro-batch."""


class MaskedPairs(Dataset[dict[str, Tensor]]):
    """The rows of a folder of pairs, masked again in each epoch, as inputs and labels of transformers' masked LMs.

    A row is a dict of int64 tensors, L tokens long and not padded:

        input_ids              (L,): what the model sees, special tokens included
        labels                 (L,): the true ids of the tokens to predict, -100 elsewhere
        token_type_ids         (L,), pairs only: 0 in segment A, 1 in B
        next_sentence_label    (), NSP only: 1 if B is random; `sentence_order_label` for SOP: 1 if swapped

    DataCollatorForTokenClassification pads rows to the longest of a batch, and adds attention_mask. It is for models
    that learn from masks, so not for XLNet, nor for ELECTRA's two models.
    """

    def __init__(self, folder: str, seed: int = 0, masking: Masking | None = None, stored: bool = False):
        """folder: local or a URL. masking: BERT's by default. stored: take the masks of `pairs --static_masks`.

        Raises DataError if the folder is not finished or holds no rows, and UsageError if its rows carry no masks.
        """
        self._folder = folder
        self._seed = seed
        self._schedule = MaskingSchedule(masking or Masking(), stored)
        # Shared, because workers that outlive an epoch have a copy of this object.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._opened: tuple[int, Stream] | None = None

        # Now, because a user's mistakes should show where the folder is named.
        (source,) = self._sources()
        pairs = source.folder
        self._rows: int = pairs.manifest.totals["rows"]
        self._pair_label = PAIR_LABELS.get(pairs.objective)
        if stored and not pairs.static_masks:
            raise UsageError(f"{folder}: its rows carry no masks. Leave stored out, or add --static_masks to `pairs`.")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a DataLoader's worker needs, which opens the folder itself."""
        return self.__dict__ | {"_opened": None}

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return self._rows

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order and masks rows have. Trainer calls this when an epoch begins."""
        self._epoch.fill_(epoch)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        """Return the row at a place of the epoch's order, which ranges from 0 to len - 1."""
        if not 0 <= place < self._rows:
            raise IndexError(f"place {place} is not among the {self._rows:,} rows of an epoch")
        return self._between(place, place + 1)[0]

    def __getitems__(self, places: list[int]) -> list[dict[str, Tensor]]:
        """Return the rows of a batch, as DataLoader asks for them.

        Raises UsageError for places in random order, which would read a block of shards for each row. At the end of an
        epoch, where ranks fill up the last batch with rows from its beginning, one jump is allowed.
        """
        ends = [*(np.flatnonzero(np.diff(places) != 1) + 1), len(places)]
        if len(ends) > 2:
            raise UsageError(
                f"rows of {self._folder} are asked for in random order, but their order is random already. Give "
                'TrainingArguments train_sampling_strategy="sequential", or DataLoader shuffle=False.'
            )

        starts = [0, *ends[:-1]]
        runs = [self._between(places[start], places[end - 1] + 1) for start, end in zip(starts, ends, strict=True)]
        return [row for run in runs for row in run]

    def _between(self, first: int, last: int) -> list[dict[str, Tensor]]:
        start = int(self._epoch) * self._rows
        (batch,) = self._stream().micro_batches_at([(start + first, start + last)], 0)
        return _features(batch, self._pair_label)

    def _stream(self) -> Stream:
        # Once in each process: the threads that read ahead are not there after a fork.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), Stream(self._sources(), ALL_ROWS, self._schedule, self._seed)
        return self._opened[1]

    def _sources(self) -> list[Source]:
        return build_sources([PairFolder(self._folder)], None, self._seed, by_tokens=False)


def _features(batch: PackedBatch, pair_label: str | None) -> list[dict[str, Tensor]]:
    labels_T = torch.full_like(batch.ids_T, IGNORE_INDEX)
    labels_T[batch.masked_positions_K] = batch.labels_K
    columns = {"input_ids": batch.ids_T, "labels": labels_T}
    if pair_label is not None:
        columns["token_type_ids"] = batch.segments_T

    lengths = torch.diff(batch.sequence_starts_S, append=torch.tensor([batch.tokens])).tolist()
    parts = {name: values_T.split(lengths) for name, values_T in columns.items()}
    if pair_label is not None:
        parts[pair_label] = batch.pair_labels_S.unbind()
    return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]
