"""One shape a step: a micro-batch filled up to a fixed number of tokens, sequences and masked places.

A compiled model or a CUDA graph then meets one shape. What fills a batch is inert: sequences of padding of their own,
which no other looks at, sequences of no tokens, and places to predict whose label is ignored.

Letters: B micro-batches of a step over all ranks, T tokens, S sequences, K masked places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.data.dataset import NO_LABEL
from trainer.models.batch import PackedBatch

ALIGN = 64  # tokens; matrix units want multiples of a power of two


@dataclass(frozen=True)
class BatchShape:
    """How many of each; `longest` bounds a sequence. Sequences and masked places double when a batch has more.

    With `padded` every row is filled up to `longest`, and the number of tokens follows from that.
    """

    tokens: int
    sequences: int
    masked: int
    longest: int
    padded: bool = False


def shape_for(tokens: int, mean_length: float, longest: int, mask_prob: float, padded: bool) -> BatchShape:
    """A shape that a micro-batch of at most `tokens` tokens in rows of about `mean_length` will fit."""
    tokens = -(-tokens // ALIGN) * ALIGN
    rows = tokens / mean_length
    sequences = int(rows + 4 * rows**0.5) + 4
    return BatchShape(tokens, sequences, -(-int(1.02 * mask_prob * tokens + rows) // 8) * 8, longest, padded)


def pad_to_shape(batch: PackedBatch, shape: BatchShape, pad_id: int) -> PackedBatch:
    """The batch in its fixed shape."""
    lengths = _padding(batch, shape)
    missing, fillers, sequences = int(lengths.sum()), len(lengths), len(batch.sequence_starts_S)
    empty = doubled(shape.sequences, sequences + fillers) - sequences - fillers
    idle = doubled(shape.masked, len(batch.masked_positions_K)) - len(batch.masked_positions_K)
    number = torch.repeat_interleave(torch.arange(fillers), lengths)
    begins = torch.cumsum(lengths, 0) - lengths
    return replace(
        batch,
        ids_T=_longer(batch.ids_T, missing, pad_id),
        segments_T=_longer(batch.segments_T, missing, 0),
        positions_T=torch.cat([batch.positions_T, torch.arange(missing) - begins[number]]),
        sequence_T=torch.cat([batch.sequence_T, number + sequences]),
        first_S=torch.cat([batch.sequence_starts_S, begins + len(batch.ids_T), torch.zeros(empty, dtype=torch.int64)]),
        longest=shape.longest,
        masked_K=_longer(batch.masked_positions_K, idle, 0),
        labels_K=_longer(batch.labels_K, idle, NO_LABEL),
        pair_labels_S=_longer(batch.pair_labels_S, fillers + empty, NO_LABEL),
    )


def _padding(batch: PackedBatch, shape: BatchShape) -> Tensor:
    """Lengths of the sequences of padding: what each row lacks, or what the whole batch lacks in as few as it takes."""
    if shape.padded:
        lengths_S = torch.diff(batch.sequence_starts_S, append=torch.tensor([len(batch.ids_T)]))
        return (shape.longest - lengths_S)[lengths_S < shape.longest]
    missing = shape.tokens - len(batch.ids_T)
    whole, rest = divmod(missing, shape.longest)
    return torch.tensor([shape.longest] * whole + [rest] * (rest > 0), dtype=torch.int64)


def doubled(expected: int, needed: int) -> int:
    """The expected number, or the first of its doubles that is enough."""
    while expected < needed:
        expected *= 2
    return expected


def _longer(values: Tensor, by: int, fill_with: int) -> Tensor:
    return torch.cat([values, values.new_full((by,), fill_with)])
