"""LAMB (You et al., arXiv:1904.00962, algorithm 2), exact under ZeRO: Adam whose step on a matrix scales with its norm.

With m and v the bias-corrected moments and r = m / (sqrt(v) + eps) + weight_decay * w, a matrix w moves by
lr * |w| / |r| * r, or by lr * r if one of the norms is 0. |w| / |r| is called the trust ratio. Biases and layer norms
(groups with adapts = False) always move by lr * r, as in google-research/albert and NVIDIA's FusedLAMB. Gradients come
clipped by their global norm, as NVIDIA's do. Google's code differs in that it does not correct the moments' bias.

Under ZeRO 1 and 2 each rank holds one contiguous part of a flat float32 tensor per group, in which matrices begin and
end anywhere. An optimizer that does not know this takes one ratio for the whole part, which is not LAMB. This one sums
the squared norms of each matrix's pieces over the ranks: two float64 per matrix in one small all-reduce per step.

Shape suffixes: M matrices; 2, the norms of w and r.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from trainer.distributed.torch_internals import multiply_all, norms_of
from trainer.distributed.zero import flat_slice_of, is_in_flat_group

Updates = list[tuple[Tensor, Tensor]]
"""Tensors to update, each with its r."""


@dataclass(frozen=True)
class MatrixSlice:
    """All or part of matrix number `matrix`: elements `start` to `start + size - 1` of a flattened tensor."""

    matrix: int
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return a view of these elements."""
        return tensor.view(-1)[self.start : self.start + self.size]


@dataclass(frozen=True)
class HeldElements:
    """What this rank updates of a parameter.

    The `size` elements of the flattened parameter from `first` on lie in `tensor` from `start` on.
    """

    tensor: Tensor
    start: int
    first: int
    size: int


class Lamb(torch.optim.Optimizer):
    """LAMB for whole parameters and for ZeRO's flat groups.

    Its state has AdamW's names: step, exp_avg and exp_avg_sq. `step` is a Python int: reading a tensor back from a GPU
    would synchronize once per parameter.

    found_inf: a float32 number on the weights' device, or None. If it is 1, an update changes neither weights nor
    moments; the host need not know. Whoever sets it calls `take_back_update` when it was 1, before the next update.
    """

    counts_on_host = True
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        stacked: dict[Tensor, int],
    ):
        """`stacked` gives the number of equal matrices that a parameter stacks, where it is more than one."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapts": True})

        # DeepSpeed replaces the tensors in `param_groups` by its own, so the model's parameters are kept here.
        self._parameters_of_groups = [(group, list(group["params"])) for group in self.param_groups]
        self._stacked = stacked

        # Filled in by _locate_matrices.
        self._pieces: dict[Tensor, list[MatrixSlice]] = {}
        self._matrices = 0
        self._is_sharded = False
        self._matrices_of_pieces: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Make one update, unless it is skipped. Overwrites gradients. A collective call if weights are sharded."""
        if not self._pieces:
            self._locate_matrices()

        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            updates = [(weight, self._direction(weight, weight.grad, group)) for weight in weights]

            if group["adapts"]:
                self._apply_trust_ratios(updates)
            elif self.found_inf is not None:
                multiply_all([r for _, r in updates], 1 - self.found_inf)

            for weight, r in updates:
                weight.add_(r, alpha=-group["lr"])

    def take_back_update(self) -> None:
        """Correct the count of updates after one that `found_inf` skipped."""
        for state in self.state.values():
            state["step"] -= 1

    def _locate_matrices(self) -> None:
        """Find the pieces of all matrices in the tensors that DeepSpeed has put in place of the parameters.

        Matrices are numbered in the order of the groups' parameters, whether they are held here or not, so a number
        means the same matrix on every rank.
        """
        for group, parameters in self._parameters_of_groups:
            if not group["adapts"]:
                continue

            for place, parameter in enumerate(parameters):
                held = _held_elements(group["params"], place, parameter)
                count = self._stacked.get(parameter, 1)
                matrix_size = parameter.numel() // count

                pieces = list(_pieces_by_matrix(held, matrix_size, self._matrices))
                self._pieces.setdefault(held.tensor, []).extend(pieces)
                self._matrices += count
                if is_in_flat_group(parameter):
                    self._is_sharded = True

    def _direction(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Update the moments and return r, which is written over the gradient to save memory."""
        beta_1, beta_2 = group["betas"]

        state = self.state[weight]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        steps = state["step"]

        # A skipped update keeps both moments: it adds a gradient of 0 with weight 0. (0 times a NaN would be NaN.)
        weight_of_gradient: float | Tensor = 1 - beta_1
        decay: float | Tensor = beta_2
        if self.found_inf is not None:
            gradient.masked_fill_(self.found_inf.bool(), 0.0)
            weight_of_gradient = (1 - beta_1) * (1 - self.found_inf)
            decay = torch.where(self.found_inf.bool(), 1.0, beta_2)

        m = state["exp_avg"]
        m.lerp_(gradient, weight_of_gradient)
        v = state["exp_avg_sq"]
        v.mul_(decay).addcmul_(gradient, gradient, value=1 - beta_2)

        # Both moments are corrected for starting at 0.
        denominator = v.sqrt().div_((1 - beta_2**steps) ** 0.5).add_(group["eps"])
        r = gradient.copy_(m).div_(1 - beta_1**steps).div_(denominator)
        return r.add_(weight, alpha=group["weight_decay"])

    def _apply_trust_ratios(self, updates: Updates) -> None:
        """Multiply each matrix's r by |w| / |r|, with the norms of the whole matrix over all ranks.

        A skipped update has a ratio of 0.
        """
        device = updates[0][0].device
        pieces = [
            (piece.matrix, piece.of(weight), piece.of(r)) for weight, r in updates for piece in self._pieces[weight]
        ]
        matrices = [matrix for matrix, _, _ in pieces]
        slices_of_w = [slice_of_w for _, slice_of_w, _ in pieces]
        slices_of_r = [slice_of_r for _, _, slice_of_r in pieces]

        # The squared norm of a matrix is the sum over its pieces, here and on other ranks.
        squares_2M = torch.zeros(2, self._matrices, dtype=torch.float64, device=device)
        if pieces:
            norms = norms_of(slices_of_w + slices_of_r)
            squares_2M.index_add_(1, self._on_device(matrices, device), norms.double().square().view(2, -1))
        if self._is_sharded:
            squares_2M = _sum_over_ranks(squares_2M)

        w_M, r_M = squares_2M.sqrt()
        ratio_M = torch.where((w_M > 0) & (r_M > 0), w_M / r_M, 1.0).float()
        if self.found_inf is not None:
            ratio_M = ratio_M * (1 - self.found_inf)

        ratios = ratio_M.unbind()
        if pieces:
            multiply_all(slices_of_r, [ratios[matrix] for matrix in matrices])

    def _on_device(self, matrices: list[int], device: torch.device) -> Tensor:
        """Return the numbers of matrices as a tensor, copied to the device once: they are the same in every step."""
        if self._matrices_of_pieces is None:
            self._matrices_of_pieces = torch.tensor(matrices, device=device)
        return self._matrices_of_pieces


def _sum_over_ranks(values: Tensor) -> Tensor:
    """Sum over ranks, by way of the accelerator: an offloaded optimizer's values are on the host. A collective call."""
    accelerator: Any = get_accelerator()
    on_accelerator = values.to(accelerator.current_device_name())
    dist.all_reduce(on_accelerator)
    return on_accelerator.to(values.device)


def _held_elements(tensors: list[Tensor], place: int, parameter: Any) -> HeldElements:
    """Return what this rank updates of the parameter at `place` in its group.

    `tensors` are those that the group holds now. Without ZeRO there is one for each parameter: the parameter itself or
    its float32 copy. ZeRO has one flat tensor for the whole group.
    """
    if not is_in_flat_group(parameter):
        return HeldElements(tensors[place], start=0, first=0, size=parameter.numel())

    start, first, size = flat_slice_of(parameter)
    return HeldElements(tensors[0], start, first, size)


def _pieces_by_matrix(held: HeldElements, matrix_size: int, first_matrix: int) -> Iterator[MatrixSlice]:
    """Cut held elements where one stacked matrix ends and the next begins. Matrices count from `first_matrix`.

    Example: of matrices of 10 elements each, the 12 elements from element 5 on are 5 of matrix 0 and 7 of matrix 1.
    """
    start = held.start
    first = held.first
    size = held.size

    while size:
        matrix, offset_in_matrix = divmod(first, matrix_size)
        taken = min(size, matrix_size - offset_in_matrix)
        yield MatrixSlice(first_matrix + matrix, start, taken)

        start += taken
        first += taken
        size -= taken
