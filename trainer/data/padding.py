"""Pads micro-batches to one fixed shape: a constant number of tokens, sequences and masked positions.

A compiled model or a CUDA graph then sees a single shape. Padding does not change any result: its tokens form sequences
of their own, which no other sequence attends to; missing sequences have no tokens; and missing masked positions have a
label that the loss ignores.

Shape suffixes: T tokens, S sequences, K masked tokens, F filler sequences (those made of padding).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainer.models.batch import IGNORE_INDEX, PackedBatch

TOKEN_MULTIPLE = 64
"""Token counts are rounded up to this, because matrix units are fastest with multiples of a power of two."""


@dataclass(frozen=True)
class BatchShape:
    """The shape of a micro-batch.

    tokens, sequences, masked: how many of each. The last two are doubled, as often as needed, for a batch with more.
    longest: the maximum number of tokens in a sequence. padded: every row is padded to `longest`, which decides the
    number of tokens. most_tokens: the tokens of the larger shape for the rare batch that has more than `tokens`; None
    if no batch has.
    """

    tokens: int
    sequences: int
    masked: int
    longest: int
    padded: bool = False
    most_tokens: int | None = None


def shape_for(tokens: int, mean_length: float, longest: int, mask_prob: float, padded: bool) -> BatchShape:
    """Return a shape for micro-batches of at most `tokens` tokens, in rows of about `mean_length` tokens.

    mask_prob: the share of tokens that are masked or predicted. The numbers of sequences and of masked tokens vary
    between batches; the shape has room for those of nearly all batches.
    """
    tokens = _round_up(tokens, TOKEN_MULTIPLE)
    rows = tokens / mean_length

    # Room for four square roots of the mean more, which are four standard deviations of a Poisson distribution.
    sequences = int(rows + 4 * rows**0.5) + 4

    # Each row's number of masked tokens is rounded and at least 1, which may add up to a token for each row.
    masked = _round_up(int(1.02 * mask_prob * tokens + rows), 8)
    return BatchShape(tokens, sequences, masked, longest, padded)


def pad_to_shape(batch: PackedBatch, shape: BatchShape, pad_id: int) -> PackedBatch:
    """Return the batch padded to the shape."""
    lengths_F = _filler_lengths(batch, shape)
    fillers = len(lengths_F)
    missing_tokens = int(lengths_F.sum())
    sequences = len(batch.sequence_starts_S)

    # What is still missing after the fillers: sequences without tokens, and masked positions whose label is ignored.
    filled_sequences = sequences + fillers
    missing_sequences = _double_until(shape.sequences, filled_sequences) - filled_sequences
    masked = len(batch.masked_positions_K)
    missing_masked = _double_until(shape.masked, masked) - masked

    # For each padding token: the filler sequence that it belongs to, and its position in that sequence.
    filler_of_token = torch.repeat_interleave(torch.arange(fillers), lengths_F)
    starts_F = torch.cumsum(lengths_F, 0) - lengths_F
    filler_positions = torch.arange(missing_tokens) - starts_F[filler_of_token]

    draws_K = None if batch.draws_K is None else _extend(batch.draws_K, missing_masked, 0)
    filler_starts = starts_F + len(batch.ids_T)
    empty_starts = torch.zeros(missing_sequences, dtype=torch.int64)
    return replace(
        batch,
        ids_T=_extend(batch.ids_T, missing_tokens, pad_id),
        segments_T=_extend(batch.segments_T, missing_tokens, 0),
        positions_T=torch.cat([batch.positions_T, filler_positions]),
        sequence_T=torch.cat([batch.sequence_T, filler_of_token + sequences]),
        sequence_starts_S=torch.cat([batch.sequence_starts_S, filler_starts, empty_starts]),
        longest=shape.longest,
        masked_positions_K=_extend(batch.masked_positions_K, missing_masked, 0),
        labels_K=_extend(batch.labels_K, missing_masked, IGNORE_INDEX),
        pair_labels_S=_extend(batch.pair_labels_S, fillers + missing_sequences, IGNORE_INDEX),
        draws_K=draws_K,
        order_T=None if batch.order_T is None else _extend(batch.order_T, missing_tokens, -1),
    )


def _filler_lengths(batch: PackedBatch, shape: BatchShape) -> Tensor:
    """Return the length of each filler sequence."""
    # For padded rows: one filler for each row that is shorter than the longest.
    if shape.padded:
        end = torch.tensor([len(batch.ids_T)])
        lengths_S = torch.diff(batch.sequence_starts_S, append=end)
        return (shape.longest - lengths_S)[lengths_S < shape.longest]

    # Otherwise as few fillers as possible: whole ones, and the rest.
    tokens = shape.tokens
    if shape.most_tokens is not None and len(batch.ids_T) > tokens:
        tokens = shape.most_tokens
    whole, rest = divmod(tokens - len(batch.ids_T), shape.longest)
    lengths = [shape.longest] * whole
    if rest > 0:
        lengths.append(rest)
    return torch.tensor(lengths, dtype=torch.int64)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _double_until(expected: int, needed: int) -> int:
    """Double `expected` until it is at least `needed`, so that even unusual batches add only a few shapes."""
    while expected < needed:
        expected *= 2
    return expected


def _extend(values: Tensor, count: int, value: int) -> Tensor:
    """Append `value` `count` times."""
    return torch.cat([values, values.new_full((count,), value)])
