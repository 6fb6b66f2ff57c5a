"""Converts the trainer's global batches into transformers' inputs: the same rows in each step, padded and masked.

Shape suffixes: B rows, T their tokens, concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.vocabulary import Vocabulary
from trainer.data.folder import PairFolder
from trainer.data.order import order_of
from trainer.data.rows import PairRows, join_rows
from trainer.models.batch import IGNORE_INDEX

PAIRED = ("bert", "albert")
"""Kinds of models (as in config.json) with segments and a pair label."""

Inputs = dict[str, Tensor]
"""The arguments of a pretraining class of transformers."""


@dataclass(frozen=True)
class Step:
    """One optimizer step: its micro-batches, all of the same shape, and their total rows and tokens without padding."""

    micro_batches: list[Inputs]
    rows: int
    tokens: int


@dataclass(frozen=True)
class Form:
    """The format of micro-batches.

    rows: rows per micro-batch, some of which may be fillers. longest: the length that rows are padded to.
    model_type: as in config.json. masked: the share of tokens to predict.
    """

    rows: int
    longest: int
    vocabulary: Vocabulary
    model_type: str
    masked: float = 0.15


def rows_of_steps(folder: PairFolder, size: int, by_tokens: bool, seed: int, steps: int) -> list[PairRows]:
    """Return the rows of the trainer's first global batches of `size` rows or tokens."""
    order = order_of(folder, seed, by_tokens)
    found = []
    for step in range(steps):
        parts = []
        for row_range in order.row_ranges(step * size, (step + 1) * size):
            parts.append(folder.block(row_range.shards).take(row_range.rows_N))
        found.append(join_rows(parts))
    return found


def cut(steps: list[PairRows], most_rows: int) -> tuple[int, int]:
    """Return (micro-batches per step, rows per micro-batch), given a limit of `most_rows` rows per micro-batch.

    Both are the same for all steps: DeepSpeed needs a constant number of micro-batches, and compiled code constant
    shapes.
    """
    largest = max(len(rows.labels_B) for rows in steps)
    count = -(-largest // most_rows)
    return count, -(-largest // count)


def step_of(rows: PairRows, count: int, form: Form) -> Step:
    """Cut the rows of a step into `count` micro-batches."""
    micro_batches = []
    for numbers_B in np.array_split(np.arange(len(rows.labels_B)), count):
        micro_batches.append(inputs_of(rows.take(numbers_B), form))
    return Step(micro_batches, len(rows.labels_B), len(rows.ids_T))


def inputs_of(rows: PairRows, form: Form) -> Inputs:
    """Return rows as arguments of transformers' pretraining classes, with some of the tokens masked.

    Fillers are rows of padding tokens without labels, which only keep the shape constant.
    """
    lengths_B = rows.lengths()
    row_T = torch.from_numpy(np.repeat(np.arange(len(lengths_B)), lengths_B))
    place_T = torch.from_numpy(np.arange(len(rows.ids_T)) - np.repeat(rows.offsets_B1[:-1], lengths_B))
    first_of_b_T = torch.from_numpy(np.repeat(rows.segment_b_B, lengths_B))

    ids = torch.full((form.rows, form.longest), form.vocabulary.special_id("pad"))
    attention = torch.zeros_like(ids)
    segments = torch.zeros_like(ids)
    ids[row_T, place_T] = torch.from_numpy(rows.ids_T.astype(np.int64))
    attention[row_T, place_T] = 1
    segments[row_T, place_T] = (place_T >= first_of_b_T).long()

    masked = (torch.rand(ids.shape) < form.masked) & (attention == 1)
    labels = torch.where(masked, ids, IGNORE_INDEX)
    ids[masked] = form.vocabulary.special_id("mask")

    # A filler attends to its first token: with nothing to attend to, the softmax would divide by zero.
    attention[len(lengths_B) :, 0] = 1
    inputs = {"input_ids": ids, "attention_mask": attention, "labels": labels}
    if form.model_type not in PAIRED:
        return inputs

    pair_labels = torch.full((form.rows,), IGNORE_INDEX)
    pair_labels[: len(lengths_B)] = torch.from_numpy(rows.labels_B.astype(np.int64))
    pair_name = "sentence_order_label" if form.model_type == "albert" else "next_sentence_label"
    return inputs | {"token_type_ids": segments, pair_name: pair_labels}
