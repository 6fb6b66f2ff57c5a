"""Initializes a model with tiles of a smaller one's weights, as ModernBERT-large was from ModernBERT-base.

    model.tile_from = "FOLDER"    a Hugging Face folder: the same family and vocabulary, no size above the recipe's

The rule is that of Warner et al. (arXiv:2412.13663, section 2.2, "center tiling" with wraparound, after Microsoft's
Phi; AnswerDotAI/ModernBERT, src/bert_layers), whose depth is that of Gopher (Rae et al., arXiv:2112.11446):

    width   a tensor lies in the middle of the larger one, and repeats from there to both ends, in every dimension
    depth   of L layers, layer i is a tile of layer round(i * l / L) of the smaller model's l

Queries, keys and values are tiled one by one, and so are the two halves of a gated feed-forward network. Attention is
tiled in whole heads, which are as wide in both models, so that rotations (RoPE) meet the values that were learned for
them. The source tiles values instead, which is the same where the heads on both sides of the middle are whole.
Nothing is rescaled, as in the source.
So at twice the width the first loss is above that of fresh weights (docs/measurements.md).

Where the smaller model has no weight, the larger one keeps its initial ones: heads that a folder lacks, and the norm
that ModernBERT's first layer does not have, in other layers that are made from it.

Shape suffixes: P places along a dimension of the larger tensor, whose values are places along the smaller one's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.models.hf_files import read_config
from trainer.models.parts import GENERATOR_FOLDER
from trainer.models.pretraining import PretrainingModel, model_of
from trainer.models.shape import EncoderShape
from trainer.models.warm_start import warm_start_model

GROWING_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "embedding_size",
    "num_hidden_groups",
)
"""Sizes that the folder's model may have smaller. `warm_start` compares all other keys of its config.json."""

IN_LAYER = re.compile(r"(.*encoder\.layers\.)(\d+)(\..*)")
"""The name of a layer's weight: what is before the layer's number, the number, and what is after it."""


class Shapes(NamedTuple):
    """The shape of a model that is filled, and that of the smaller one whose weights it is filled with."""

    large: EncoderShape
    small: EncoderShape


def tile_model(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill all parts of a model with tiles of a folder's weights. Returns what the folder lacks, which stays as it is.

    Raises UsageError if the folder's model is larger in a size or cannot be tiled into this one, and otherwise as
    `warm_start_model` does. The model is then unchanged.
    """
    shapes = Shapes(model.shape, shape_of_folder(folder, model.shape))
    check_sizes(shapes, folder)
    if model.shape.replaced_tokens:
        check_sizes(shapes_of_part("encoder", shapes), f"{folder}/{GENERATOR_FOLDER}")

    # Weights that the folder lacks stay NaN. Those that it has are finite, or it is refused.
    small = model_of(shapes.small)
    for parameter in small.parameters():
        nn.init.constant_(parameter, torch.nan)
    absent = warm_start_model(small, folder, vocabulary)

    # Layers that share a module have its weights under the names of each.
    sources = {name: parameter.detach() for name, parameter in small.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shapes_here = shapes_of_part(name, shapes)
            source = sources.get(source_name(name, shapes_here))
            if source is not None and not source.isnan().any():
                parameter.copy_(tile(name, source, parameter.shape, shapes_here))
    return absent


# The smaller model


def shape_of_folder(folder: str, large: EncoderShape) -> EncoderShape:
    """Return the shape of a folder's model: the larger one's with the sizes of the folder's config.json.

    Raises DataError if a size is not a positive whole number.
    """
    small = _with_sizes_of(folder, large)
    if large.generator is None:
        return small

    # A folder without a generator has one that stays NaN, on top of the folder's embeddings.
    generator_folder = Path(folder) / GENERATOR_FOLDER
    generator = replace(large.generator, embedding_size=small.embedding_size)
    if generator_folder.exists():
        generator = _with_sizes_of(str(generator_folder), large.generator)
    generator = replace(generator, factorized=generator.embedding_size != generator.hidden_size)
    return replace(small, factorized=small.embedding_size != small.hidden_size, generator=generator)


def _with_sizes_of(folder: str, large: EncoderShape) -> EncoderShape:
    config = read_config(folder)
    hidden_size = _size(config, "hidden_size", large.hidden_size, folder)
    layers = _size(config, "num_hidden_layers", large.num_hidden_layers, folder)
    heads = _size(config, "num_attention_heads", large.num_attention_heads, folder)

    # Layers that share only a sublayer are separate ones in a folder, which does not tell the groups.
    groups = {"none": layers, "all": _size(config, "num_hidden_groups", large.num_hidden_groups, folder)}
    return replace(
        large,
        num_hidden_layers=layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=_size(config, "num_key_value_heads", heads, folder),
        intermediate_size=_size(config, "intermediate_size", large.intermediate_size, folder),
        embedding_size=_size(config, "embedding_size", hidden_size, folder),
        num_hidden_groups=groups.get(large.sharing, large.num_hidden_groups),
    )


def _size(config: dict[str, Any], key: str, absent: int, folder: str) -> int:
    """Return a size from a config.json, or `absent` if it is not there."""
    value = config.get(key, absent)
    if type(value) is not int or value < 1:
        raise DataError(f"{folder}/config.json: {key} must be a whole number above 0, found {value!r}.")
    return value


def check_sizes(shapes: Shapes, folder: str) -> None:
    """Raise UsageError unless the larger model can be made of tiles of the folder's."""
    large, small = shapes
    larger = []
    for name in GROWING_SIZES:
        if getattr(small, name) > getattr(large, name):
            larger.append(f"{name} is {getattr(small, name)}, the recipe makes it {getattr(large, name)}")
    if larger:
        raise UsageError(
            f"model.tile_from {folder} is larger than the recipe's model: {'; '.join(larger)}. Give a folder that is "
            "smaller or equal in each size, or raise the sizes in [model]."
        )

    faults = []
    if large.head_size != small.head_size or small.hidden_size % small.num_attention_heads:
        faults.append(
            f"its heads have {small.hidden_size / small.num_attention_heads:g} values, the recipe's {large.head_size}. "
            "Keep hidden_size / num_attention_heads, and let the number of heads grow"
        )
    if queries_of_group(large) != queries_of_group(small):
        faults.append(
            f"{queries_of_group(small)} heads share a head of keys there, {queries_of_group(large)} in the recipe. "
            "Keep num_attention_heads / num_key_value_heads"
        )
    if large.factorized != small.factorized:
        faults.append(
            "only one of the two has a matrix between embeddings and layers. Let both have embedding_size below "
            "hidden_size, or neither"
        )
    if small.num_hidden_layers % small.num_hidden_groups:
        faults.append(
            f"its {small.num_hidden_layers} layers are not {small.num_hidden_groups} equal groups. Change "
            "num_hidden_groups"
        )
    if faults:
        raise UsageError(f"model.tile_from {folder} cannot be tiled into the recipe's model: {'; '.join(faults)}.")


# Which weights of the smaller model


def shapes_of_part(name: str, shapes: Shapes) -> Shapes:
    """Return the shapes that a weight belongs to: those of ELECTRA's generator, if it is not the discriminator's."""
    large, small = shapes
    if large.generator is None or small.generator is None or name.startswith("discriminator."):
        return shapes
    return Shapes(large.generator, small.generator)


def source_name(name: str, shapes: Shapes) -> str:
    """Return the name of the weight of the smaller model that this one is a tile of."""
    match = IN_LAYER.fullmatch(name)
    if match is None:
        return name

    before, number, after = match.groups()
    layers = [shape.num_hidden_groups if shape.sharing == "all" else shape.num_hidden_layers for shape in shapes]
    return f"{before}{source_layer(int(number), *layers)}{after}"


def source_layer(layer: int, layers: int, small_layers: int) -> int:
    """Return the layer of the smaller model that a layer is a tile of."""
    # With less than half of the layers, the last ones would be rounded up to a layer that there is not.
    return min(round(layer * small_layers / layers), small_layers - 1)


def queries_of_group(shape: EncoderShape) -> int:
    """Return how many heads of queries share a head of keys and values."""
    return shape.num_attention_heads // shape.num_key_value_heads


def tile(name: str, source: Tensor, dimensions: torch.Size, shapes: Shapes) -> Tensor:
    """Return a tensor of these dimensions made of tiles of the smaller model's. name: of the weight in our model."""
    tiled = source
    for axis, size in enumerate(dimensions):
        places_P = places_along(name, axis, (size, source.shape[axis]), shapes)
        tiled = tiled.index_select(axis, places_P)
    return tiled


def places_along(name: str, axis: int, sizes: tuple[int, int], shapes: Shapes) -> Tensor:
    """Return (P,): the place in the smaller tensor for each place along an axis. sizes: P, and that of the smaller."""
    module = name.rpartition(".")[0]
    if module.endswith("attention.qkv") and axis == 0:
        return qkv_places(shapes)

    # The output's matrix has a column for each value of a head, in the order of the queries.
    if module.endswith("attention.out") and axis == 1:
        return head_places(shapes, queries_of_group(shapes.small))

    if module.endswith(".up") and axis == 0 and shapes.large.gated:
        half_P = tile_places(sizes[0] // 2, sizes[1] // 2)
        return torch.cat([half_P, half_P + sizes[1] // 2])
    return tile_places(*sizes)


def qkv_places(shapes: Shapes) -> Tensor:
    """Return (P,) for the rows of queries, keys and values, which lie one below the other."""
    small = shapes.small
    query_rows = small.num_attention_heads * small.head_size
    key_rows = small.num_key_value_heads * small.head_size

    queries_P = head_places(shapes, queries_of_group(small))
    keys_P = head_places(shapes, 1)
    return torch.cat([queries_P, keys_P + query_rows, keys_P + query_rows + key_rows])


def head_places(shapes: Shapes, together: int) -> Tensor:
    """Return (P,) for whole heads, of which so many stay together: those that share a head of keys."""
    width = together * shapes.small.head_size
    places_H = tile_places(shapes.large.num_key_value_heads, shapes.small.num_key_value_heads)
    return (places_H[:, None] * width + torch.arange(width)).flatten()


def tile_places(size: int, small_size: int) -> Tensor:
    """Return (P,) for a dimension: the smaller one lies in the middle and repeats from there to both ends.

    Example: `tile_places(7, 3)` -> `[1, 2, 0, 1, 2, 0, 1]`.
    """
    first = (size - small_size) // 2
    return (torch.arange(size) - first) % small_size
