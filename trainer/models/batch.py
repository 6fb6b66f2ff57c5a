"""The batch as the model sees it: S sequences laid end to end in T tokens, with the K tokens to predict.

Attention is the one place that has to know where sequences end; `SequenceOffsets` tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

IGNORE_INDEX = -100
"""The label of what has none: torch's cross-entropy ignores it, and so do all counts."""


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch. Integers are int64.

    ids_T: what the model sees. segments_T: 0 in A, 1 in B. positions_T: place in the sequence. sequence_T: number of
    the sequence. first_S: where each sequence begins. longest: L. masked_K: places to predict. labels_K: the true ids
    there. pair_labels_S: 0, 1, or -100 where there is no pair label.

    tokens, predicted and paired count what is real: text, labels and pair labels. What else there is fills a fixed
    shape: padding lies in sequences of its own, and its places to predict have the label -100.
    """

    ids_T: Tensor
    segments_T: Tensor
    positions_T: Tensor
    sequence_T: Tensor
    sequence_starts_S: Tensor
    longest: int
    masked_positions_K: Tensor
    labels_K: Tensor
    pair_labels_S: Tensor
    tokens: int
    predicted: int
    paired: int

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> PackedBatch:
        """The same batch in memory that a GPU can read while the CPU continues."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


class SequenceOffsets:
    """Where the sequences of a packed batch lie. Sequences of no tokens, which fill a fixed shape, lie at the end.

    longest: L, tokens of the longest sequence. ends_S1: (S + 1,) int32, 0, then where each sequence ends. places_T:
    (T,) int64, each token's place in a grid of S rows of L tokens, counted row by row. filled_S11L: (S, 1, 1, L) bool,
    the places of that grid that may be looked at; the first of each row may always, so that softmax has something to
    divide by in a sequence of no tokens.

    All are plain attributes without a way back to the host: torch.compile cannot read a cached_property, which takes a
    lock in Python 3.11, and a model without a grid computes them in a few small kernels a batch.
    """

    def __init__(self, batch: PackedBatch):
        self.longest = batch.longest

        ones_T = torch.ones_like(batch.sequence_T, dtype=torch.int32)
        counts_S1 = ones_T.new_zeros(len(batch.sequence_starts_S) + 1).index_add_(0, batch.sequence_T + 1, ones_T)
        self.ends_S1 = counts_S1.cumsum(0, dtype=torch.int32)

        self.places_T = batch.sequence_T * self.longest + batch.positions_T
        lengths_S1 = self.ends_S1.diff()[:, None]
        filled_SL = torch.arange(self.longest, device=lengths_S1.device) < lengths_S1.clamp(min=1)
        self.filled_S11L = filled_SL[:, None, None]
        self._lengths: list[int] | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens in each sequence that has any. The first call copies them to the host."""
        if self._lengths is None:
            self._lengths = [length for length in self.ends_S1.diff().tolist() if length]
        return self._lengths
