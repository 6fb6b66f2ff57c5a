"""Updates bf16 models at stage 1 in place of DeepSpeed, without device reads and with an overlapped reduction.

DeepSpeed 0.19 copies all gradients into buckets and reduces them only after the last backward pass, measures and clips
parameter by parameter on all ranks, and reads the norm twice. No option changes this (docs/measurements.md has the
figures). DeepSpeed's memory layout and checkpoints stay as they are.

A hook adds each gradient to its place in a flat float32 tensor. In the last micro-batch, a piece of that tensor (a
bucket) is reduced in place as soon as all gradients in it are complete, while the backward pass computes those of the
layers below.

Buckets are reduced in one fixed order, because all ranks must make the same collective calls: from the last parameter
to the first, as a backward pass completes them, and groups in the optimizer's order.

Shape suffixes: N elements of a flat tensor with all parameters of a group, M elements that this rank updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor, nn

from trainer.distributed.deepspeed_internals import (
    FlatGroup,
    basic_optimizer,
    flat_groups,
    gather_bf16_weights,
    has_flat_gradients,
    replace_accumulation,
    replace_update,
    set_gradient_norm,
)
from trainer.models.encoder import parameters_of_unshared_layers

BUCKET_ELEMENTS = 16 * 2**20
"""64 MB of gradients: large enough for a network's full speed, and small enough that little is left after the last."""

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing by it, as in torch.nn.utils.clip_grad_norm_ and DeepSpeed."""


def replace_bf16_updates(engine: DeepSpeedEngine, max_norm: float, bucket_elements: int) -> None:
    """Take over the updates of a bf16 engine at stage 1; does nothing for any other.

    max_norm: the largest norm of the whole gradient; 0 disables clipping.
    """
    if has_flat_gradients(engine):
        replace_update(engine, OverlappedGradients(engine, max_norm, bucket_elements).update)


@dataclass
class Bucket:
    """Neighboring gradients that are reduced by one call.

    gradients_N: a view of their flat tensor. size: how many parameters they belong to. missing: how many of these do
    not have their gradient of the last micro-batch yet.
    """

    gradients_N: Tensor
    size: int
    missing: int


class OverlappedGradients:
    """The gradients and the update at stage 1."""

    def __init__(self, engine: DeepSpeedEngine, max_norm: float, bucket_elements: int):
        self._engine = engine
        self._max_norm = max_norm
        self._groups = flat_groups(engine)
        replace_accumulation(engine)

        # Each parameter's place in a flat tensor.
        self._sums: dict[nn.Parameter, Tensor] = {}

        # In the order in which they are reduced.
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[nn.Parameter, Bucket] = {}
        self._reduced = 0
        self._calls: list[Any] = []

        for group in self._groups:
            self._sums |= dict(zip(group.parameters, places_in(group), strict=True))
            if engine.world_size > 1:
                self._cut_into_buckets(group, bucket_elements)
        used_once = parameters_of_unshared_layers(engine.module)  # type: ignore[arg-type]
        for parameter in self._sums:
            if parameter not in used_once:
                parameter.grad_dtype = torch.float32  # in which autograd adds up what all uses contribute
            parameter.register_post_accumulate_grad_hook(self._add)

    @torch.no_grad()
    def update(self) -> None:
        """Wait for the reduction, clip, update this rank's part of the weights, and gather all parts."""
        self._finish_reduction()

        norm = self._norm()
        set_gradient_norm(self._engine.optimizer, norm)
        for group in self._groups:
            if self._max_norm:
                group.part_M.mul_((self._max_norm / (norm + CLIP_EPSILON)).clamp(max=1.0))
            group.weights_M.grad = group.part_M

        basic_optimizer(self._engine).step()
        gather_bf16_weights(self._engine)
        for group in self._groups:
            group.gradients_N.zero_()

    def _cut_into_buckets(self, group: FlatGroup, bucket_elements: int) -> None:
        """Cut a group's gradients, from the last parameter to the first, into buckets of whole parameters."""
        end = sum(parameter.numel() for parameter in group.parameters)
        begin = end
        members: list[nn.Parameter] = []

        for parameter in reversed(group.parameters):
            begin -= parameter.numel()
            members.append(parameter)
            is_first_of_group = begin == 0
            if end - begin < bucket_elements and not is_first_of_group:
                continue

            bucket = Bucket(group.gradients_N[begin:end], len(members), len(members))
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(members, bucket)
            end = begin
            members = []

    def _add(self, parameter: nn.Parameter) -> None:
        """Add a gradient to its sum, and reduce buckets that are complete. Autograd calls this once a backward pass."""
        assert parameter.grad is not None
        self._sums[parameter].add_(parameter.grad)
        parameter.grad = None

        if self._buckets and self._engine.is_gradient_accumulation_boundary():
            self._complete(parameter)

    def _complete(self, parameter: nn.Parameter) -> None:
        """Start the reduction of complete buckets, after a parameter's last gradient of a step."""
        self._bucket_of[parameter].missing -= 1
        while self._reduced < len(self._buckets) and self._buckets[self._reduced].missing == 0:
            self._reduce_next()

    def _reduce_next(self) -> None:
        bucket = self._buckets[self._reduced]
        self._reduced += 1
        self._calls.append(dist.all_reduce(bucket.gradients_N, async_op=True))

    def _finish_reduction(self) -> None:
        """Reduce the remaining buckets, such as those of parameters without a gradient, and wait for all calls."""
        while self._reduced < len(self._buckets):
            self._reduce_next()
        for call in self._calls:
            call.wait()

        self._calls = []
        self._reduced = 0
        for bucket in self._buckets:
            bucket.missing = bucket.size

    def _norm(self) -> Tensor:
        """Return the norm of the whole gradient, the same on every rank. Each part is measured on one rank only."""
        norms = torch.stack([torch.linalg.vector_norm(group.part_M) for group in self._groups])
        square = norms.double().square().sum()
        if self._engine.world_size > 1:
            dist.all_reduce(square)
        return square.sqrt().float()


def places_in(group: FlatGroup) -> list[Tensor]:
    """Return views of a group's flat gradients, one for each parameter and of its shape."""
    sizes = [parameter.numel() for parameter in group.parameters]
    views = group.gradients_N[: sum(sizes)].split(sizes)
    return [view_N.view(parameter.shape) for parameter, view_N in zip(group.parameters, views, strict=True)]
