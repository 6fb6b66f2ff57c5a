"""Layer-wise rates: each layer has a lower learning rate than the layer above it.

The head has the full rate and the embeddings have the lowest one (Clark et al., ELECTRA, arXiv:2003.10555, appendix B).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from typing import Any

LAYER = re.compile(r"^.*?\.(?:layers?|h|blocks)\.\d+(?:\.\d+)?\.")
"""Matches the part of a parameter's name that names its layer, in transformers' models.

Examples: `bert.encoder.layer.3.`, `model.layers.3.`, and `funnel.encoder.blocks.1.0.`, the first layer of a block.
"""


def layer_groups(
    model: Any, rate: float, layer_decay: float, weight_decay: float, decaying: Collection[str]
) -> list[dict[str, Any]]:
    """Return an optimizer's groups of parameters, one for each depth with and without weight decay.

    rate: of the head. layer_decay: the factor between the rates of a layer and of the layer above it. decaying: the
    names of the parameters with weight decay.
    """
    depths = depths_of(model)
    head = max(depths.values())

    groups: dict[tuple[int, bool], list[Any]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[depths[name], name in decaying].append(parameter)

    settings = []
    for (depth, has_decay), parameters in sorted(groups.items(), key=lambda item: item[0]):
        of_depth = {"lr": rate * layer_decay ** (head - depth), "weight_decay": weight_decay if has_decay else 0.0}
        settings.append({"params": parameters, **of_depth})
    return settings


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
