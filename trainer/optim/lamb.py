"""LAMB (You et al., arXiv:1904.00962, algorithm 2): Adam whose step on a matrix is as long as the matrix is large.

With r = m / (sqrt(v) + eps) + weight_decay * w, the moments m and v corrected for their bias, a matrix w moves by
lr * |w| / |r| * r, and by lr * r where a norm is 0. Biases and layer norms (groups with adapts = False) always move by
lr * r, as in google-research/albert and NVIDIA's FusedLAMB. Gradients come clipped by their global norm, as NVIDIA's
do; Google's code differs in leaving the bias of the moments as it is.

Under ZeRO 1 and 2 a rank holds a flat float32 part of each group, in which matrices begin and end anywhere. One ratio
for such a part, which is what an optimizer that knows nothing of it takes, is not LAMB. Here the squared norms of the
pieces are added up over the ranks, two float64 a matrix in one small all-reduce a step.

Letters: M matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from trainer.distributed.zero import flat_slice_of, is_in_flat_group

Updates = list[tuple[Tensor, Tensor]]  # tensors that are updated, and the r of each


@dataclass(frozen=True)
class MatrixSlice:
    """All or a part of matrix number `matrix`: `size` elements of a tensor laid flat, from `start` on."""

    matrix: int
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.view(-1)[self.start : self.start + self.size]


class Lamb(torch.optim.Optimizer):
    """Its state has AdamW's names: step, exp_avg and exp_avg_sq.

    `step` is a Python int: a tensor on a GPU would have to be read back, one synchronization a parameter.
    """

    counts_on_host = True

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        stacked: dict[Tensor, int],
    ):
        """`stacked` says how many matrices a parameter holds one above the other, where it is more than one."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapts": True})
        self._groups = [(group, list(group["params"])) for group in self.param_groups]
        self._stacked = stacked
        self._pieces: dict[Tensor, list[MatrixSlice]] = {}
        self._matrices, self._sharded = 0, False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update. A collective call where parameters are sharded; the gradients are written over."""
        if not self._pieces:
            self._locate()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            updates = [(weight, self._direction(weight, weight.grad, group)) for weight in weights]
            if group["adapts"]:
                self._scale(updates)
            for weight, r in updates:
                weight.add_(r, alpha=-group["lr"])

    def _locate(self) -> None:
        """Find the matrices in the tensors that DeepSpeed has put in the place of the model's own."""
        for group, parameters in self._groups:
            for place, parameter in enumerate(parameters if group["adapts"] else []):
                tensor, start, first, size = _held(group["params"], place, parameter)
                count = self._stacked.get(parameter, 1)
                cut = _cut(start, first, size, parameter.numel() // count)
                numbered = [MatrixSlice(self._matrices + matrix, at, length) for matrix, at, length in cut]
                self._pieces.setdefault(tensor, []).extend(numbered)
                self._matrices += count
                self._sharded |= is_in_flat_group(parameter)

    def _direction(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """r of a tensor, where its gradient was."""
        state, (beta_1, beta_2) = self.state[weight], group["betas"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        steps = state["step"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta_1)
        v.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        scale = v.sqrt().div_((1 - beta_2**steps) ** 0.5).add_(group["eps"])
        return gradient.copy_(m).div_(1 - beta_1**steps).div_(scale).add_(weight, alpha=group["weight_decay"])

    def _scale(self, updates: Updates) -> None:
        """Multiply each matrix's r by |w| / |r|, the norms being those of the whole matrix."""
        device = updates[0][0].device
        pieces = [(piece, weight, r) for weight, r in updates for piece in self._pieces[weight]]
        squares_2M = torch.zeros(2, self._matrices, dtype=torch.float64, device=device)
        for piece, *tensors in pieces:
            norms_2 = torch.stack([torch.linalg.vector_norm(piece.of(tensor)) for tensor in tensors])
            squares_2M[:, piece.matrix] += norms_2.double().square()
        if self._sharded:
            accelerator: Any = get_accelerator()
            at_hand_2M = squares_2M.to(accelerator.current_device_name())  # an offloaded optimizer's are on the host
            dist.all_reduce(at_hand_2M)
            squares_2M = at_hand_2M.to(device)
        w_M, r_M = squares_2M.sqrt()
        ratio_M = torch.where((w_M > 0) & (r_M > 0), w_M / r_M, 1.0).float()
        for piece, _, r in pieces:
            piece.of(r).mul_(ratio_M[piece.matrix])


def _held(tensors: list[Tensor], place: int, parameter: Any) -> tuple[Tensor, int, int, int]:
    """(tensor, start in it, first element of the parameter, number of elements) of what this rank updates.

    Without ZeRO that is the parameter itself or its float32 copy. ZeRO has one flat tensor for a whole group.
    """
    if not is_in_flat_group(parameter):
        return tensors[place], 0, 0, parameter.numel()
    return tensors[0], *flat_slice_of(parameter)


def _cut(start: int, first: int, size: int, length: int) -> Iterator[tuple[int, int, int]]:
    """(matrix, start, size) of elements first to first + size - 1 of matrices of `length`, stored from `start` on."""
    while size:
        matrix, inside = divmod(first, length)
        taken = min(size, length - inside)
        yield matrix, start, taken
        start, first, size = start + taken, first + taken, size - taken
