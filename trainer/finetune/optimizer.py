"""AdamW for fine-tuning, with warmup and linear decay to 0 (Devlin et al., arXiv:1810.04805, A.3).

With layer-wise decay each layer has a lower learning rate than the layer above it: the head has the full rate and the
embeddings have the lowest one (Clark et al., ELECTRA, arXiv:2003.10555, appendix B).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from trainer.finetune.task import TaskTrainingSection

LAYER = re.compile(r"^.*?\.(?:layers?|h|blocks)\.\d+(?:\.\d+)?\.")
"""Matches the part of a parameter's name that names its layer, in transformers' models.

Examples: `bert.encoder.layer.3.`, `model.layers.3.`, and `funnel.encoder.blocks.1.0.`, the first layer of a block.
"""

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def build_optimizer(model: Any, training: TaskTrainingSection) -> torch.optim.AdamW:
    """Return AdamW over all parameters. Biases and norms have no weight decay."""
    depths = depths_of(model)
    head = max(depths.values())

    groups: dict[tuple[int, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[depths[name], has_weight_decay(name, parameter)].append(parameter)

    settings = []
    for (depth, decays), parameters in sorted(groups.items(), key=lambda item: item[0]):
        full_rate = training.lr * training.layer_decay ** (head - depth)
        decay = training.weight_decay if decays else 0.0
        settings.append({"params": parameters, "lr": full_rate, "full_rate": full_rate, "weight_decay": decay})
    return torch.optim.AdamW(settings, betas=BETAS, eps=EPSILON)


def has_weight_decay(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter has weight decay. All but biases and norms do, as in google-research/bert.

    Some biases are not vectors, such as XLNet's r_w_bias of shape (heads, head size), so biases are recognized by name,
    as in transformers.
    """
    return parameter.ndim > 1 and "bias" not in name


def depths_of(model: Any) -> dict[str, int]:
    """Return the depth of each parameter: 0 for embeddings, 1 for the first layer, and layers + 1 for the head.

    Encoder parameters that belong neither to a layer nor to the embeddings (a final norm, a pooler) have the depth of
    the last layer. ALBERT's shared layers all have depth 1.
    """
    encoder = f"{model.base_model_prefix}."
    names = [name for name, _ in model.named_parameters()]
    in_encoder = [name for name in names if name.startswith(encoder)]
    in_order = dict.fromkeys(found[0] for name in in_encoder if (found := LAYER.match(name)))
    depth_by_layer = {layer: depth for depth, layer in enumerate(in_order, start=1)}
    last = max(1, len(depth_by_layer))  # ALBERT's layers have no numbers

    depths = {}
    for name in names:
        found = LAYER.match(name)
        if not name.startswith(encoder):
            depths[name] = last + 1
        elif found:
            depths[name] = depth_by_layer[found[0]]
        elif "embed" in name:
            depths[name] = 0
        else:
            depths[name] = last
    return depths


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int, warmup_ratio: float) -> float:
    """Set the learning rates of all groups for `step`, from 1 to `steps`. Returns the fraction of the full rate."""
    share = rate_share(step, steps, warmup_ratio)
    for group in optimizer.param_groups:
        group["lr"] = group["full_rate"] * share
    return share


def rate_share(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the fraction of the full rate at a step: it rises to 1 over the warmup, and would be 0 at `steps` + 1."""
    warmup = int(warmup_ratio * steps)
    if step <= warmup:
        return step / warmup
    return (steps + 1 - step) / (steps + 1 - warmup)
