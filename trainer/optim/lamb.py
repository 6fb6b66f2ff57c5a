"""LAMB (You et al., arXiv:1904.00962, algorithm 2), exact under ZeRO: Adam whose step on a matrix scales with its norm.

With m and v the bias-corrected moments and r = m / (sqrt(v) + eps) + weight_decay * w, a matrix w moves by
lr * |w| / |r| * r, or by lr * r if one of the norms is 0. |w| / |r| is called the trust ratio. Biases and layer norms
(groups with adapts = False) always move by lr * r, as in google-research/albert and NVIDIA's FusedLAMB. Gradients come
clipped by their global norm, as in NVIDIA's code. Google's code differs in that it does not correct the moments' bias.

Under ZeRO 1 and 2 each rank holds one contiguous part of a flat float32 tensor per group, in which matrices begin and
end anywhere. An optimizer that ignores this computes one ratio for the whole part, which is not LAMB. This one sums the
squared norms of each matrix's pieces over the ranks (whole_tensors.py).

Shape suffixes: P matrices; 2, the norms of w and r.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.distributed.torch_internals import multiply_all
from trainer.optim.whole_tensors import Updates, WholeTensorOptimizer


class Lamb(WholeTensorOptimizer):
    """LAMB for whole parameters and for ZeRO's flat groups."""

    def scaled_directions(self, weights: list[Tensor], group: dict[str, Any]) -> Updates:
        """Return each weight with r times its trust ratio, or with 0 if the update is skipped."""
        updates: Updates = []
        for weight in weights:
            moments = self.update_moments(weight, group)
            updates.append((weight, self.direction(weight, moments, group)))

        if group["adapts"]:
            self._apply_trust_ratios(updates)
        elif self.found_inf is not None:
            multiply_all([r for _, r in updates], 1 - self.found_inf)
        return updates

    def _apply_trust_ratios(self, updates: Updates) -> None:
        """Multiply each matrix's r by |w| / |r|, with the norms of the whole matrix over all ranks."""
        weights = [(weight, weight) for weight, _ in updates]
        squares_2P = self.summed_squares([weights, updates])

        w_P, r_P = squares_2P.sqrt()
        ratio_P = torch.where((w_P > 0) & (r_P > 0), w_P / r_P, 1.0).float()
        self.multiply_by_tensor(updates, ratio_P)
