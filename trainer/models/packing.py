"""The batch as the model sees it: S sequences laid end to end in T tokens, with the K tokens to predict.

Attention is the one place that has to know where sequences end. `PaddedView` spreads the tokens over an (S, L) grid
for it and collects them again, which is exact and, without a kernel for packed sequences, the fastest there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


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
    first_S: Tensor
    longest: int
    masked_K: Tensor
    labels_K: Tensor
    pair_labels_S: Tensor
    tokens: int
    predicted: int
    paired: int

    def to(self, device: torch.device) -> PackedBatch:
        """The same batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> PackedBatch:
        """The same batch in memory that a GPU can read while the CPU goes on."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


class PaddedView:
    """The (S, L) grid of a packed batch: where each token lies in it, and which places hold one."""

    def __init__(self, batch: PackedBatch):
        self.shape = (len(batch.first_S), batch.longest)
        self.place_T = batch.sequence_T * batch.longest + batch.positions_T
        filled = torch.zeros(self.shape[0] * self.shape[1], dtype=torch.bool, device=batch.ids_T.device)
        filled[self.place_T] = True
        self.mask_S11L = filled.view(self.shape[0], 1, 1, self.shape[1])

    def spread(self, x_TN: Tensor) -> Tensor:
        """(T, N) -> (S, L, N), zeros where no token lies."""
        grid = x_TN.new_zeros(self.shape[0] * self.shape[1], x_TN.shape[1])
        return grid.index_copy(0, self.place_T, x_TN).view(*self.shape, -1)

    def collect(self, x_SLN: Tensor) -> Tensor:
        """(S, L, N) -> (T, N), the tokens alone."""
        return x_SLN.reshape(self.shape[0] * self.shape[1], -1).index_select(0, self.place_T)
