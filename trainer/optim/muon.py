"""Muon (https://kellerjordan.github.io/posts/muon) for hidden matrices and AdamW for all others, exact under ZeRO.

With g the gradient of a matrix W, a step is

    m <- momentum * m + (1 - momentum) * g
    u <- (1 - momentum) * g + momentum * m                        Nesterov's momentum
    W <- W - lr * (0.2 * sqrt(max(rows, columns)) * orthogonal(u) + weight_decay * W)

where `orthogonal` is Newton-Schulz (orthogonalize.py). The factor gives an update the root mean square of AdamW's usual
updates, so that AdamW's learning rates and weight decay carry over and one optimizer.lr serves all parameters (Liu et
al., "Moonlight", arXiv:2502.16982, section 2.2).

A matrix is orthogonalized as a whole, on one rank (exchange.py). Its momentum stays where ZeRO has put it. In
checkpoints, a hidden matrix has one moment, `exp_avg`, and all other parameters have AdamW's two.

Shape suffixes: N elements of one matrix, laid flat; B matrices of R rows and C columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod, sqrt
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from trainer.config.schema import OptimizerSection
from trainer.distributed.collectives import run_on_all_ranks
from trainer.logs import logger
from trainer.optim.exchange import Exchange, Plan
from trainer.optim.orthogonalize import orthogonalize
from trainer.optim.pieces import Pieces, RowCounts

SCALE = 0.2
"""Root mean square of AdamW's updates, as measured in arXiv:2502.16982 (0.2 to 0.4)."""

MOMENTUM = 0.95
"""Keller Jordan's value, used unless the recipe sets optimizer.muon_momentum."""

ELEMENTS_AT_ONCE = 1 << 24
"""The most elements of same-shaped matrices that are orthogonalized together: 64 MB, which fills a GPU."""


class Muon(torch.optim.AdamW):
    """AdamW, except for one group of hidden matrices, which are updated by Muon.

    found_inf: as in torch's fused optimizers. If it is 1, an update changes neither weights nor state.
    one_moment: the parameters that have no second moment.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], section: OptimizerSection, row_counts: RowCounts):
        """groups: the first has the hidden matrices, the others are for AdamW. row_counts: of stacked matrices."""
        super().__init__(groups, lr=0.0, betas=section.betas, eps=section.eps, fused=True)
        self._momentum = MOMENTUM if section.muon_momentum is None else section.muon_momentum
        self._row_counts = row_counts
        self._group = self.param_groups[0]

        # DeepSpeed replaces the tensors in the group with its own, so the model's parameters are kept here.
        self._parameters: list[Tensor] = list(self._group["params"])
        self.one_moment = frozenset(self._parameters)
        self._pieces: Pieces | None = None
        self._exchange: Exchange | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Make one update, unless it is skipped. Overwrites gradients of matrices. A collective call."""
        # ZeRO 1 and 2 call this once for each group.
        groups = self.param_groups
        others = [group for group in groups if group is not self._group]
        if len(others) < len(groups):
            self._move_matrices()

        # AdamW updates every group in `param_groups`, so the hidden matrices are taken out for its call.
        if others:
            self.param_groups = others
            super().step()
            self.param_groups = groups

    def _move_matrices(self) -> None:
        group = self._group
        weights = [weight for weight in group["params"] if weight.grad is not None]
        for weight in weights:
            self._add_momentum(weight)

        # The orthogonalized matrices replace the momentum in the gradients' memory.
        pieces, exchange = self._located()
        held = [(piece, piece.of(weight.grad)) for weight in weights for piece in pieces.of_tensor[weight]]
        exchange.transform(held, self._orthogonalize_all)

        for weight in weights:
            update = weight.grad.add_(weight, alpha=group["weight_decay"])
            if self.found_inf is not None:
                update.mul_(1 - self.found_inf)
            weight.add_(update, alpha=-group["lr"])

    def _add_momentum(self, weight: Tensor) -> None:
        """Add a gradient to a tensor's momentum, and overwrite it with Nesterov's u.

        A skipped update does not change the momentum.
        """
        assert weight.grad is not None
        gradient = weight.grad

        # A skipped update adds a gradient of 0 with weight 0, because 0 times a NaN would be NaN.
        weight_of_gradient: float | Tensor = 1 - self._momentum
        if self.found_inf is not None:
            gradient.masked_fill_(self.found_inf.bool(), 0.0)
            weight_of_gradient = (1 - self._momentum) * (1 - self.found_inf)

        state = self.state[weight]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight)
        state["exp_avg"].lerp_(gradient, weight_of_gradient)
        gradient.lerp_(state["exp_avg"], self._momentum)

    def _located(self) -> tuple[Pieces, Exchange]:
        """Return the pieces of matrices on this rank, and the exchange. A collective call in the first update."""
        if self._pieces is None or self._exchange is None:
            self._pieces = Pieces()
            self._pieces.add_group(self._group["params"], self._parameters, self._row_counts)
            self._exchange = _exchange_of(self._pieces)
        return self._pieces, self._exchange

    def _orthogonalize_all(self, owned: dict[int, Tensor]) -> None:
        """Orthogonalize and scale the matrices that this rank owns, in place."""
        assert self._pieces is not None
        for shape, values in _batches(owned, self._pieces.shapes):
            scale = SCALE * sqrt(max(shape))
            matrices_BRC = torch.stack([values_N.view(shape) for values_N in values])
            for values_N, matrix_RC in zip(values, orthogonalize(_on_accelerator(matrices_BRC)), strict=True):
                values_N.copy_(matrix_RC.flatten().mul_(scale))


def _exchange_of(pieces: Pieces) -> Exchange:
    """Agree on which rank owns which matrix, and log how many bytes that sends. A collective call."""
    ranks = dist.get_world_size()
    held = [piece for of_tensor in pieces.of_tensor.values() for piece in of_tensor]
    if pieces.is_sharded:
        plan = Plan.sharded(run_on_all_ranks(lambda: held), len(pieces.shapes))
    else:
        plan = Plan.replicated(held, pieces.shapes, ranks)

    if dist.get_rank() == 0 and ranks > 1:
        logger.info("Muon: %d matrices; ranks exchange %s bytes a step.", len(pieces.shapes), f"{plan.traffic():,}")
    accelerator: Any = get_accelerator()
    return Exchange(plan, pieces.shapes, dist.get_rank(), torch.device(accelerator.current_device_name()))


def _batches(owned: dict[int, Tensor], shapes: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], list[Tensor]]]:
    """Yield lists of matrices of the same shape, each as long as is orthogonalized at once."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for number, values_N in owned.items():
        by_shape[shapes[number]].append(values_N)

    for shape, values in by_shape.items():
        size = max(1, ELEMENTS_AT_ONCE // prod(shape))
        for first in range(0, len(values), size):
            yield shape, values[first : first + size]


def _on_accelerator(values: Tensor) -> Tensor:
    """Return values on the accelerator, where products are fast; those of an offloaded optimizer are on the host."""
    accelerator: Any = get_accelerator()
    return values.to(accelerator.current_device_name())
