"""The batch as the model sees it: S sequences laid end to end in T tokens, K of which are to be predicted.

Only attention needs to know where sequences end. It gets that from `SequenceOffsets`.

Shape suffixes: T tokens, S sequences, K masked tokens, L tokens of the longest sequence. S1 means S + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

IGNORE_INDEX = -100
"""The label of a position or sequence without a label. It is torch's default, which cross-entropy ignores."""


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch. All tensors are int64.

    ids_T: the token ids that the model sees.
    segments_T: 0 in segment A, 1 in B.
    positions_T: each token's position within its sequence.
    sequence_T: the number of each token's sequence.
    sequence_starts_S: where each sequence begins.
    longest: L, the number of tokens in the longest sequence, or more.
    masked_positions_K: the tokens to predict, as indices into ids_T.
    labels_K: their true ids.
    pair_labels_S: 0 or 1, or IGNORE_INDEX without a pair label.
    tokens, predicted, paired: how many tokens, labels and pair labels are real. The rest is padding (data/batches.py):
        its tokens form separate sequences, and its labels are IGNORE_INDEX.
    causal: a token attends only to itself and to earlier tokens of its sequence.
    draws_K: random numbers in [0, 2**63), from which ELECTRA's replacement tokens are sampled; None in other models.
    order_T: XLNet only, otherwise None. -1 for a token that all tokens of its sequence see; for any other, its place in
        the order of prediction, and only tokens later in that order see it (trainer/data/permutations.py).
    most_targets: XLNet only: the largest number of tokens to predict in a sequence; 0 if unknown.
    mask_id: the id of [MASK] if tokens to predict may be replaced by it; None in causal language modeling and in XLNet.
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
    causal: bool = False
    draws_K: Tensor | None = None
    order_T: Tensor | None = None
    most_targets: int = 0
    mask_id: int | None = None

    def to(self, device: torch.device) -> PackedBatch:
        """Return the batch on a device. Copies from pinned memory run asynchronously."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> PackedBatch:
        """Return the batch in pinned memory, which a GPU can read while the CPU continues."""
        return self._map(Tensor.pin_memory)

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _map(self, function: Callable[[Tensor], Tensor]) -> PackedBatch:
        return replace(self, **{name: function(tensor) for name, tensor in self.tensors().items()})


class SequenceOffsets:
    """Where the sequences of a packed batch lie, in the forms that the attention kernels need.

    Sequences without tokens, which pad a batch to a fixed shape, come last.

    longest: L, the number of tokens in the longest sequence, or more.
    sequence_T: (T,) int64: the number of each token's sequence.
    ends_S1: (S + 1,) int32: 0, then where each sequence ends. Flash attention's `cu_seqlens`.
    grid_places_T: (T,) int64: each token's place in a grid of S rows of L tokens, counted row by row.
    causal: as in the batch.
    grid_mask_S11L: (S, 1, 1, L) bool: which places of that grid may be attended to. The first place of a row always
        may, so that softmax does not divide by zero in a sequence without tokens.

    All are plain attributes, computed without a copy to the host. A cached_property would compute the grid's only when
    a kernel uses a grid, but torch.compile cannot trace it, because it takes a lock in Python 3.11. The cost is a few
    small kernels per batch.
    """

    def __init__(self, batch: PackedBatch):
        self.longest = batch.longest
        self.sequence_T = batch.sequence_T
        self.causal = batch.causal

        # Count the tokens of each sequence, shifted by one place, so that the running sum starts with 0.
        ones_T = torch.ones_like(batch.sequence_T, dtype=torch.int32)
        counts_S1 = ones_T.new_zeros(len(batch.sequence_starts_S) + 1).index_add_(0, batch.sequence_T + 1, ones_T)
        self.ends_S1 = counts_S1.cumsum(0, dtype=torch.int32)

        # Each sequence is a row of `longest` places, and its tokens take the first of them.
        self.grid_places_T = batch.sequence_T * self.longest + batch.positions_T

        # A place may be attended to if it lies within its sequence; the first always may (see above).
        lengths_S = self.ends_S1.diff()
        places_L = torch.arange(self.longest, device=lengths_S.device)
        mask_SL = places_L < lengths_S.clamp(min=1)[:, None]
        self.grid_mask_S11L = mask_SL[:, None, None]

        self._lengths: list[int] | None = None

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in each sequence that has any. The first call copies them to the host."""
        if self._lengths is None:
            self._lengths = [length for length in self.ends_S1.diff().tolist() if length > 0]
        return self._lengths
