"""A recipe's optimizer: AdamW, or LAMB and StableAdamW, which are Adam with a factor for each whole tensor.

With m and v the bias-corrected moments, r = m / (sqrt(v) + eps) + weight_decay * w, and a tensor w moves by
lr * factor * r. The factor depends on sums over the whole tensor.

Under ZeRO 1 and 2 each rank holds one contiguous part of a flat float32 tensor per group, in which matrices begin and
end anywhere. An optimizer that ignores this computes one factor for the whole part. Here the sums over a tensor's
pieces are added up over the ranks: one small all-reduce of float64 numbers for each group of parameters.

Shape suffixes: N elements of a piece, K quantities that are summed, P tensors of the model; 2, the norms of w and r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from trainer.config.sections import OptimizerSection
from trainer.distributed.deepspeed_internals import flat_slice_of, full_shape_of, is_in_flat_group
from trainer.distributed.torch_internals import multiply_all, norms_of
from trainer.models.encoder import Attention, Layer

RowCounts = Mapping[Tensor, Sequence[int]]
"""The number of rows of each matrix, in order, for parameters that stack several matrices."""

Updates = list[tuple[Tensor, Tensor]]
"""Tensors to update, each with its r."""


class Piece(NamedTuple):
    """All or part of whole tensor `number`: `size` elements from `start` on in the tensor that this rank updates."""

    number: int
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return a view of these elements, (N,)."""
        return tensor.view(-1)[self.start : self.start + self.size]


class Pieces:
    """The pieces that this rank holds of all whole tensors in some parameter groups.

    Whole tensors are numbered in the order of the groups' parameters, whether this rank holds them or not, so a number
    means the same tensor on every rank.

    sizes: the number of elements of each whole tensor. of_tensor: the pieces in each tensor that this rank updates.
    is_sharded: whether each rank has different pieces (ZeRO 1 and 2); otherwise every rank has all tensors in full.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.of_tensor: dict[Tensor, list[Piece]] = {}
        self.is_sharded = False

    def add(self, tensors: list[Tensor], place: int, parameter: Any, rows: Sequence[int]) -> None:
        """Add the parameter at `place` in its group.

        tensors: those that the group holds now. Without ZeRO these are the parameters. ZeRO has one flat tensor for the
        whole group. rows: of each matrix that the parameter stacks, each of which counts as a whole tensor; one number
        if it stacks none.
        """
        # Elements `first` to `first + size` of the parameter lie from `start` on in `tensor`.
        if is_in_flat_group(parameter):
            self.is_sharded = True
            tensor = tensors[0]
            start, first, size = flat_slice_of(parameter)
        else:
            tensor = tensors[place]
            start, first, size = 0, 0, parameter.numel()

        pieces = self.of_tensor.setdefault(tensor, [])
        begin = 0
        for count in rows:
            end = begin + count * (parameter.numel() // sum(rows))
            held_begin = max(begin, first)
            held_end = min(end, first + size)
            if held_begin < held_end:
                pieces.append(Piece(len(self.sizes), start + held_begin - first, held_end - held_begin))
            self.sizes.append(end - begin)
            begin = end


class Moments(NamedTuple):
    """The moments of a tensor after this update, which are its state, and their divisors for bias correction."""

    m: Tensor
    v: Tensor
    divisor_of_m: float
    divisor_of_v: float


class WholeTensorOptimizer(torch.optim.Optimizer):
    """Adam's moments, and sums over whole tensors, for whole parameters and for ZeRO's flat groups.

    Its state has AdamW's names: step, exp_avg and exp_avg_sq. `step` is a Python int, because reading a tensor back
    from a GPU would synchronize once per parameter.

    found_inf: a float32 scalar on the weights' device, or None. If it is 1, an update changes neither weights nor
    moments, and the host need not know. Whoever sets it must call `take_back_update` after a 1, before the next update.
    """

    counts_on_host = True
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        row_counts: RowCounts | None = None,
    ):
        """row_counts: of parameters that stack several matrices, each of which has its own factor."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapts": True})

        # DeepSpeed replaces the tensors in `param_groups` with its own, so the model's parameters are kept here.
        self._parameters_of_groups = [(group, list(group["params"])) for group in self.param_groups]
        self._row_counts: RowCounts = row_counts or {}
        self._numbers: dict[tuple[int, ...], Tensor] = {}
        self._located: Pieces | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyrefly: ignore[bad-override]
        """Make one update, unless it is skipped. Overwrites gradients. A collective call if weights are sharded."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight, r in self.scaled_directions(weights, group):
                weight.add_(r, alpha=-group["lr"])

    def scaled_directions(self, weights: list[Tensor], group: dict[str, Any]) -> Updates:
        """Update the moments and return each weight with its factor times r, or with 0 if the update is skipped."""
        raise NotImplementedError

    def take_back_update(self) -> None:
        """Correct the count of updates after one that `found_inf` skipped."""
        for state in self.state.values():
            state["step"] -= 1

    def pieces(self) -> Pieces:
        """Return the pieces of all tensors that have a factor: those of groups with `adapts` set."""
        if self._located is None:
            self._located = Pieces()
            for group, parameters in self._parameters_of_groups:
                if group["adapts"]:
                    for place, parameter in enumerate(parameters):
                        self._located.add(group["params"], place, parameter, self._row_counts.get(parameter, [1]))
        return self._located

    def update_moments(self, weight: Tensor, group: dict[str, Any]) -> Moments:
        """Add a tensor's gradient to its moments. If the update is skipped, the gradient is set to 0."""
        assert weight.grad is not None
        gradient = weight.grad
        beta_1, beta_2 = group["betas"]

        state = self.state[weight]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        state["step"] += 1
        steps = state["step"]

        # A skipped update keeps both moments: it adds a gradient of 0 with weight 0, because 0 times a NaN is NaN.
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
        return Moments(m, v, 1 - beta_1**steps, 1 - beta_2**steps)

    @staticmethod
    def direction(weight: Tensor, moments: Moments, group: dict[str, Any]) -> Tensor:
        """Return r, which is written over the weight's gradient to save memory."""
        assert weight.grad is not None

        # Both moments are corrected for the bias of starting at 0.
        denominator = moments.v.sqrt().div_(moments.divisor_of_v**0.5).add_(group["eps"])
        r = weight.grad.copy_(moments.m).div_(moments.divisor_of_m).div_(denominator)
        return r.add_(weight, alpha=group["weight_decay"])

    def summed_squares(self, values: list[Updates]) -> Tensor:
        """Return the sum of squares of each whole tensor, (K, P) float64, over all ranks. Collective if sharded.

        values: for each of the K quantities, the same tensors to update, each paired with a tensor of equal size to
        sum. The P whole tensors are those of all groups; the sums of those that are not in `values` are 0.
        """
        pieces = self.pieces()
        weights = [weight for weight, _ in values[0]]
        numbers = [piece.number for weight in weights for piece in pieces.of_tensor[weight]]
        slices: list[Tensor] = []
        for quantity in values:
            slices += [piece.of(value) for weight, value in quantity for piece in pieces.of_tensor[weight]]

        device = weights[0].device
        squares_KP = torch.zeros(len(values), len(pieces.sizes), dtype=torch.float64, device=device)
        if slices:
            norms = norms_of(slices).double()
            squares_KP.index_add_(1, self._on_device(numbers, device), norms.square().view(len(values), -1))
        return _sum_over_ranks(squares_KP) if pieces.is_sharded else squares_KP

    def _on_device(self, numbers: list[int], device: torch.device) -> Tensor:
        """Return the numbers on a device. They are the same in every step, so they are copied only once."""
        key = tuple(numbers)
        if key not in self._numbers:
            self._numbers[key] = torch.tensor(key, device=device)
        return self._numbers[key]

    def multiply_by_tensor(self, updates: Updates, factor_P: Tensor) -> None:
        """Multiply each whole tensor's r by its factor, or by 0 if the update is skipped."""
        if self.found_inf is not None:
            factor_P = factor_P * (1 - self.found_inf)

        factors = factor_P.unbind()
        held = [(piece, r) for weight, r in updates for piece in self.pieces().of_tensor[weight]]
        if held:
            multiply_all([piece.of(r) for piece, r in held], [factors[piece.number] for piece, _ in held])


class Lamb(WholeTensorOptimizer):
    """LAMB (You et al., arXiv:1904.00962, algorithm 2): a matrix's step scales with its norm.

    A matrix w moves by lr * |w| / |r| * r, or by lr * r if one of the norms is 0. |w| / |r| is called the trust ratio.
    Biases and layer norms (groups with adapts = False) always move by lr * r, as in google-research/albert and NVIDIA's
    FusedLAMB. Gradients come clipped by their global norm, as in NVIDIA's code. Google's code differs in that it does
    not correct the moments' bias.
    """

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


class StableAdamW(WholeTensorOptimizer):
    """StableAdamW (Wortsman et al., arXiv:2304.13013, algorithm 2): AdamW with update clipping.

    With g the gradient of a tensor, its step is divided by max(1, RMS), where

        RMS = sqrt(mean of g^2 / max(v, eps^2))    over the tensor's elements

    is about 1 as long as v estimates g^2 well, and large when gradients have just grown, which is when AdamW makes its
    worst steps (the paper attributes the idea to Adafactor, arXiv:1804.04235). Weight decay is divided as well, as in
    the paper and in optimi, the library that ModernBERT trains with. A tensor is a parameter of this model, so query,
    key and value together have one RMS, as in ModernBERT's Wqkv.

    The paper folds the bias correction into the decay rates, which gives the same number as dividing by 1 - beta^t.
    """

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
            self._sizes_P = torch.tensor(self.pieces().sizes, dtype=torch.float64, device=device)
        return self._sizes_P


def _root_ratio(weight: Tensor, moments: Moments, eps: float) -> Tensor:
    assert weight.grad is not None
    root_of_v = moments.v.sqrt().div_(moments.divisor_of_v**0.5).clamp_(min=eps)
    return root_of_v.reciprocal_().mul_(weight.grad)


def _sum_over_ranks(values: Tensor) -> Tensor:
    """Sum over ranks, through the accelerator because an offloaded optimizer's values are on the host. Collective."""
    accelerator: Any = get_accelerator()
    on_accelerator = values.to(accelerator.current_device_name())
    dist.all_reduce(on_accelerator)
    return on_accelerator.to(values.device)


# The optimizer of a recipe


def build_optimizer(model: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over a model's parameters.

    The learning rate is 0 until one is set, because DeepSpeed may make an update while it builds an engine.

    Whatever it is, its `step` must change nothing where `found_inf` is 1, by which a bad step is skipped
    (trainer/anomaly.py), and a state that is saved must be named in `MOMENTS` (trainer/distributed/zero.py). torch's
    fused optimizers and those on WholeTensorOptimizer keep to the first.
    """
    groups = parameter_groups(model, section.weight_decay)

    if section.kind == "stable_adamw":
        return StableAdamW(groups, 0.0, section.betas, section.eps)

    if section.kind == "lamb":
        _, vectors = groups
        vectors["adapts"] = False
        return Lamb(groups, 0.0, section.betas, section.eps, stacked_matrices(model))

    # fused: one kernel updates all parameters, on CPUs as well.
    return torch.optim.AdamW(groups, lr=0.0, betas=section.betas, eps=section.eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two groups: matrices, which are decayed, and vectors, which are not.

    Vectors are biases and layer norms; google-research/bert excludes the same ones.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # If ZeRO has partitioned it already, a parameter is an empty placeholder that knows its full shape.
    matrices = [parameter for parameter in parameters if len(full_shape_of(parameter)) > 1]
    vectors = [parameter for parameter in parameters if len(full_shape_of(parameter)) <= 1]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def stacked_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """Return, for each parameter that stacks several matrices, the number of rows of each matrix.

    This model stacks query, key and value in one parameter, and also the two halves of a gated feed-forward layer. They
    multiply the same input but are separate matrices: the published BERT, ALBERT and RoBERTa have a parameter for each.
    """
    stacked: dict[Tensor, list[int]] = {}
    for module in model.modules():
        if isinstance(module, Attention):
            queries = module.out.in_features
            others = (module.qkv.out_features - queries) // 2
            stacked[module.qkv.weight] = [queries, others, others]
        elif isinstance(module, Layer) and module.gated:
            inner = module.down.in_features
            stacked[module.up.weight] = [inner, inner]
    return stacked
