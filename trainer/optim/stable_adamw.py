"""StableAdamW (Wortsman et al., arXiv:2304.13013, algorithm 2), exact under ZeRO: AdamW with update clipping.

With m and v the bias-corrected moments of a tensor w and g its gradient, its step is divided by max(1, RMS), where

    RMS = sqrt(mean of g^2 / max(v, eps^2))    over the tensor's elements

is about 1 as long as v estimates g^2 well, and large when gradients have just grown, which is when AdamW makes its
worst steps (the paper attributes the idea to Adafactor, arXiv:1804.04235). Weight decay is divided as well, as in the
paper and in optimi, the library that ModernBERT trains with. A tensor is a parameter of this model, so query, key and
value together have one RMS, as in ModernBERT's Wqkv.

The paper folds the bias correction into the decay rates, which gives the same number as dividing by 1 - beta^t.

Shape suffixes: P tensors.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from trainer.optim.whole_tensors import Moments, Updates, WholeTensorOptimizer


class StableAdamW(WholeTensorOptimizer):
    """StableAdamW for whole parameters and for ZeRO's flat groups."""

    _sizes_P: Tensor | None = None

    def scaled_directions(self, weights: list[Tensor], group: dict[str, Any]) -> Updates:
        """Return each weight with r / max(1, RMS), or with 0 if the update is skipped."""
        updates: Updates = []
        ratios: Updates = []
        for weight in weights:
            moments = self.update_moments(weight, group)
            ratios.append((weight, _root_ratio(weight, moments, group["eps"])))
            updates.append((weight, self.direction(weight, moments, group)))

        (squares_P,) = self.summed_squares([ratios])
        rms_P = (squares_P / self._sizes(squares_P.device)).sqrt()
        self.multiply_by_tensor(updates, rms_P.clamp(min=1.0).reciprocal().float())
        return updates

    def _sizes(self, device: torch.device) -> Tensor:
        """Return the number of elements of each whole tensor, (P,) float64, copied to the device once."""
        if self._sizes_P is None:
            sizes = [prod(shape) for shape in self.pieces().shapes]
            self._sizes_P = torch.tensor(sizes, dtype=torch.float64, device=device)
        return self._sizes_P


def _root_ratio(weight: Tensor, moments: Moments, eps: float) -> Tensor:
    """Return g / max(sqrt(v), eps) for each element."""
    assert weight.grad is not None
    root_of_v = moments.v.sqrt().div_(moments.divisor_of_v**0.5).clamp_(min=eps)
    return root_of_v.reciprocal_().mul_(weight.grad)
