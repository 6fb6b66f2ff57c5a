"""Initializes a model with tiles of a smaller model's weights, so that a wider model computes what that one does.

    model.tile_from = "FOLDER"    a Hugging Face folder of the same family and vocabulary, with no size above the
                                  recipe's

The mapping of values follows Warner et al. (arXiv:2412.13663, section 2.2, "center tiling" with wraparound, after
Microsoft's Phi; AnswerDotAI/ModernBERT, src/bert_layers), with the depth rule of Gopher (Rae et al., arXiv:2112.11446):

    width   in every dimension, the smaller tensor lies in the middle of the larger one and repeats toward both ends
    depth   layer i of L is a tile of layer round(i * l / L) of the smaller model's l layers

Queries, keys and values are tiled separately, and so are the two halves of a gated feed-forward network. Attention is
tiled in whole heads, which have the same size in both models, so that rotations (RoPE) apply to the values that were
learned with them. The source tiles single values instead, which gives the same if a whole number of heads is added on
each side.

The source does not rescale, so at twice the width every sum is twice as large. Here duplicates of a place share its
column, as in Net2Net (Chen, Goodfellow and Shlens, arXiv:1511.05641):

    matrices        each column is multiplied by its share; the shares of one place's duplicates sum to 1
    embeddings      are not divided, because a token reads a whole row. A tied decoder also sums over their columns, so
                    its input is divided instead, through the weight and the bias of the norm before it

So every matrix product is preserved at any growth. Norms are preserved only if all places have equally many duplicates:
at a whole multiple of the width and at the same depth, the larger model computes what the smaller one does. The shares
are unequal, so that duplicates diverge in training (`shares`, `divide_columns`).

Where the smaller model has no weight, the larger one keeps its initial weights: for heads that the folder lacks, and
for the norm that ModernBERT's first layer does not have, in other layers that are tiled from that layer.

Shape suffixes: P places along a dimension of the larger tensor, each holding a place along the smaller one's. H heads
of keys and values.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from schemas.vocabulary import Vocabulary
from trainer.models.electra import GENERATOR_FOLDER
from trainer.models.hf_load import warm_start_model
from trainer.models.pretraining import PretrainingModel, model_of
from trainer.models.shape import EncoderShape
from trainer.models.tiling_shapes import (
    Shapes,
    check_family,
    check_sizes,
    queries_of_group,
    shape_of_folder,
    shapes_of_part,
)

IN_LAYER = re.compile(r"(.*encoder\.layers\.)(\d+)(\..*)")
"""The name of a layer's weight, in three groups: before the layer's number, the number, and after it."""

SPREAD = 0.2
"""The largest relative deviation of a duplicate's share from an equal one: two duplicates have 0.4 and 0.6."""


def tile_model(model: PretrainingModel, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill all parts of a model with tiles of a folder's weights.

    Returns the names of the heads and parts that the folder lacks, which keep their initial weights. Raises UsageError
    if the folder's model is of another family, is larger in any size or cannot be tiled into this one, and everything
    that `warm_start_model` raises. The model is then unchanged.
    """
    check_family(folder, model.shape)
    shapes = Shapes(model.shape, shape_of_folder(folder, model.shape))
    check_sizes(shapes, folder)
    if model.shape.replaced_tokens:
        check_sizes(shapes_of_part("encoder", shapes), f"{folder}/{GENERATOR_FOLDER}")

    # Weights that the folder lacks stay NaN and are skipped below. `warm_start_model` refuses folders that hold a NaN.
    small = model_of(shapes.small)
    for parameter in small.parameters():
        nn.init.constant_(parameter, torch.nan)
    absent = warm_start_model(small, folder, vocabulary)

    # With remove_duplicate=False, a module that several layers share is listed under each layer's name.
    sources = {name: parameter.detach() for name, parameter in small.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shapes_here = shapes_of_part(name, shapes)
            source = sources.get(source_name(name, shapes_here))
            if source is not None and not source.isnan().any():
                parameter.copy_(tile(name, source, parameter.shape, shapes_here))
    return absent


# Which weights of the smaller model


def source_name(name: str, shapes: Shapes) -> str:
    """Return the name of the smaller model's weight that the weight `name` of the larger one is a tile of."""
    match = IN_LAYER.fullmatch(name)
    if match is None:
        return name

    before, number, after = match.groups()
    layers = [shape.num_hidden_groups if shape.sharing == "all" else shape.num_hidden_layers for shape in shapes]
    return f"{before}{source_layer(int(number), *layers)}{after}"


def source_layer(layer: int, layers: int, small_layers: int) -> int:
    """Return the layer of the smaller model, counted from 0, that a layer is a tile of."""
    # If the smaller model has half the layers or fewer, the last ones could round up to a layer that does not exist.
    return min(round(layer * small_layers / layers), small_layers - 1)


def tile(name: str, source: Tensor, dimensions: torch.Size, shapes: Shapes) -> Tensor:
    """Return a tensor of these dimensions made of tiles of `source`. name: of the weight in the larger model."""
    places = [places_along(name, axis, (size, source.shape[axis]), shapes) for axis, size in enumerate(dimensions)]
    tiled = source
    for axis, places_P in enumerate(places):
        tiled = tiled.index_select(axis, places_P)

    # The last axis has the columns of a matrix; a norm's weight or bias has only this axis.
    if is_matrix(name, source):
        divide_columns(tiled, places[-1])
    elif is_before_tied_decoder(name, shapes.small):
        tiled *= shares(places[-1])
    return tiled


def places_along(name: str, axis: int, sizes: tuple[int, int], shapes: Shapes) -> Tensor:
    """Return (P,): the smaller tensor's place for each place along an axis. sizes: P, and the smaller tensor's size."""
    module = name.rpartition(".")[0]
    if module.endswith("attention.qkv") and axis == 0:
        return qkv_places(shapes)

    # The output matrix has one column for each value of each query head, in the order of the heads.
    if module.endswith("attention.out") and axis == 1:
        return head_places(shapes, queries_of_group(shapes.small))

    if module.endswith(".up") and axis == 0 and shapes.large.gated:
        half_P = tile_places(sizes[0] // 2, sizes[1] // 2)
        return torch.cat([half_P, half_P + sizes[1] // 2])
    return tile_places(*sizes)


def qkv_places(shapes: Shapes) -> Tensor:
    """Return (P,) for the rows of the QKV matrix: all queries, then all keys, then all values."""
    small = shapes.small
    query_rows = small.num_attention_heads * small.head_size
    key_rows = small.num_key_value_heads * small.head_size

    queries_P = head_places(shapes, queries_of_group(small))
    keys_P = head_places(shapes, 1)
    return torch.cat([queries_P, keys_P + query_rows, keys_P + query_rows + key_rows])


def head_places(shapes: Shapes, together: int) -> Tensor:
    """Return (P,) for whole heads. `together` consecutive heads, which share a head of keys, stay together."""
    width = together * shapes.small.head_size
    places_H = tile_places(shapes.large.num_key_value_heads, shapes.small.num_key_value_heads)
    return (places_H[:, None] * width + torch.arange(width)).flatten()


def tile_places(size: int, small_size: int) -> Tensor:
    """Return (P,) for a dimension: the smaller one lies in the middle and repeats toward both ends.

    Example: `tile_places(7, 3)` -> `[1, 2, 0, 1, 2, 0, 1]`.
    """
    first = (size - small_size) // 2
    return (torch.arange(size) - first) % small_size


# The share that each duplicate has of its place


def is_matrix(name: str, source: Tensor) -> bool:
    """Return whether a weight is a matrix that multiplies vectors, and not a table of embeddings."""
    return source.dim() == 2 and ".embeddings." not in name


def is_before_tied_decoder(name: str, shape: EncoderShape) -> bool:
    """Return whether a weight or bias belongs to the norm whose output a tied decoder reads."""
    last_norm = "mlm_head.norm" if shape.head_transform else "encoder.norm"
    return shape.tied and name.rpartition(".")[0] == last_norm


def divide_columns(matrix: Tensor, places_P: Tensor) -> None:
    """Multiply the columns of a matrix by their shares, in place.

    Every other row has the shares in reverse order. With the same shares in all rows, the gradient of one duplicate
    would be a constant multiple of the other's, and because Adam's steps do not depend on the gradient's scale, both
    would take the same first steps.
    """
    matrix[0::2] *= shares(places_P)
    matrix[1::2] *= shares(places_P.flip(0)).flip(0)


def shares(places_P: Tensor) -> Tensor:
    """Return (P,) float32: the share that each duplicate has of its place. Those of one place sum to 1.

    Shares grow with the order of duplicates, in equal steps. If they were equal, duplicates would have equal gradients
    and stay equal forever. Net2Net adds noise to prevent that; unequal shares keep the sums exact.

    Example: `shares(tensor([1, 0, 1]))` -> `[0.4, 1.0, 0.6]`.
    """
    count_P = torch.bincount(places_P)[places_P]

    # order_P: the number of each duplicate among those of its place. A stable sort keeps duplicates in order.
    sorted_P = places_P.argsort(stable=True)
    first_P = torch.searchsorted(places_P[sorted_P], places_P[sorted_P])
    order_P = torch.empty_like(places_P)
    order_P[sorted_P] = torch.arange(len(places_P)) - first_P

    # From -1 for the first duplicate to 1 for the last one, and 0 for a place without duplicates.
    from_middle_P = (2 * order_P - (count_P - 1)) / (count_P - 1).clamp(min=1)
    return (1 + SPREAD * from_middle_P) / count_P
