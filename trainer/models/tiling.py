"""Initializes a model with tiles of a smaller model's weights, so that a wider model computes what that one does.

In every dimension, the smaller tensor lies in the middle of the larger one and repeats toward both ends, as in Warner
et al. (arXiv:2412.13663, section 2.2): queries, keys and values separately and in whole heads, and so the two halves of
a gated feed-forward network. Layer i of L is a tile of layer round(i * l / L) of the smaller model's l layers. Columns
of matrices are divided among the duplicates of a place, as in Net2Net (arXiv:1511.05641; docs/decisions.md has why).

Shape suffixes: P places along a dimension of the larger tensor, each holding a place along the smaller one's. B blocks.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from schemas.errors import UsageError
from schemas.vocabulary import Vocabulary
from trainer.config.schema import ModelSection
from trainer.config.validate import faults_of_model, refuse
from trainer.models.electra import parts_of
from trainer.models.families import encoder_shape
from trainer.models.hf_config import REQUIRED, model_of_folder
from trainer.models.hf_load import warm_start_model
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape
from trainer.models.starting_weights import model_of

GROWING = (*REQUIRED, "num_key_value_heads", "embedding_size", "num_hidden_groups")
EQUAL = ("head_size", "queries_of_key", "factorized")
"""Sizes that may be smaller in the folder's model, and fields of its shape that must be the recipe's."""

SPREAD = 0.2
"""The largest relative deviation of a duplicate's share from an equal one: two duplicates have 0.4 and 0.6."""


@torch.no_grad()
def tile_model(model: PretrainingModel, section: ModelSection, folder: str, vocabulary: Vocabulary) -> list[str]:
    """Fill all parts of a model, which [model] describes, with tiles of the weights of a folder.

    Returns the heads and parts that the folder lacks, which keep their initial weights. Raises UsageError if the
    folder's model cannot be tiled into this one, and what `warm_start_model` raises. The model is then unchanged.
    """
    sizes = {key: size for key, size in model_of_folder(folder).items() if key in (*GROWING, "generator_size")}
    small_section = section.model_copy(update=sizes)
    refuse(faults_of_model(small_section), f"model.tile_from {folder}")
    small = model_of(encoder_shape(small_section, vocabulary.size, vocabulary.special_id("mask")))
    parts = [(part, parts_of(small)[name]) for name, part in parts_of(model).items() if Path(folder, name).exists()]
    for part, small_part in parts:
        check_sizes(part.shape, small_part.shape, folder)

    # Weights that the folder lacks stay NaN and are skipped below. `warm_start_model` refuses folders that hold a NaN.
    for parameter in small.parameters():
        nn.init.constant_(parameter, torch.nan)
    absent = warm_start_model(small, folder, vocabulary)

    for part, small_part in parts:
        # With remove_duplicate=False, a module that several layers share is listed under each layer's name.
        sources = dict(small_part.named_parameters(remove_duplicate=False))
        for name, parameter in part.named_parameters():
            source = sources.get(source_name(name, part.shape, small_part.shape))
            if source is not None and not source.isnan().any():
                parameter.copy_(tile(name, source, parameter, small_part.shape))
    return absent


def check_sizes(large: EncoderShape, small: EncoderShape, folder: str) -> None:
    """Raise UsageError unless the larger model can be made of tiles of the folder's."""
    faults = []
    for name in (*GROWING, *EQUAL):
        theirs, ours = getattr(small, name), getattr(large, name)
        if theirs > ours or (name in EQUAL and theirs != ours):
            faults.append(f"{name} is {theirs}, the recipe makes it {ours}")
    if faults:
        raise UsageError(
            f"model.tile_from {folder} cannot be tiled into the recipe's model: {'; '.join(faults)}. Give another "
            "folder, or change [model]: no size may be below the folder's, hidden_size / num_attention_heads and "
            "num_attention_heads / num_key_value_heads must be equal, and embedding_size may differ from hidden_size "
            "only if it does there."
        )


def source_name(name: str, large: EncoderShape, small: EncoderShape) -> str:
    """Return the name of the smaller model's weight that the weight `name` of the larger one is a tile of."""
    match = re.search(r"\.layers\.(\d+)\.", name)
    if match is None:
        return name

    layers, small_layers = (s.num_hidden_groups if s.sharing == "all" else s.num_hidden_layers for s in (large, small))
    # If the smaller model has half the layers or fewer, the last ones could round up to a layer that does not exist.
    layer = min(round(int(match[1]) * small_layers / layers), small_layers - 1)
    return name.replace(match[0], f".layers.{layer}.")


def tile(name: str, source: Tensor, like: Tensor, small: EncoderShape) -> Tensor:
    """Return a tensor of the size of `like` made of tiles of `source`. name: of both weights. small: of the source."""
    sizes = zip(like.shape, source.shape, strict=True)
    places = [places_along(name, axis, pair, small) for axis, pair in enumerate(sizes)]
    tiled = source
    for axis, places_P in enumerate(places):
        tiled = tiled.index_select(axis, places_P)

    # The last axis has the columns of a matrix; a norm's weight or bias has only this axis.
    shares_P = shares(places[-1])
    last_norm = "mlm_head.norm" if small.head_transform else "encoder.norm"
    if source.dim() == 2 and ".embeddings." not in name:
        # Every other row has the shares in reverse. With equal ones, a duplicate's gradient would be a multiple of the
        # other's, and Adam, whose steps do not depend on the scale, would keep them together.
        tiled[0::2] *= shares_P
        tiled[1::2] *= shares(places[-1].flip(0)).flip(0)
    elif small.tied and name.rpartition(".")[0] == last_norm:
        tiled *= shares_P  # a tied decoder sums over the columns of the embeddings, which are not divided
    return tiled


def places_along(name: str, axis: int, sizes: tuple[int, int], small: EncoderShape) -> Tensor:
    """Return (P,): the smaller tensor's place for each place along an axis. sizes: P, and the smaller tensor's size."""
    module = name.rpartition(".")[0]
    heads = small.queries_of_key
    if module.endswith("attention.qkv") and axis == 0:
        large_rows, key_rows = (size // (heads + 2) for size in sizes)
        keys_P = tile_places(large_rows, key_rows, small.head_size)
        queries_P = tile_places(heads * large_rows, heads * key_rows, heads * small.head_size)
        return torch.cat([queries_P, heads * key_rows + keys_P, (heads + 1) * key_rows + keys_P])
    if module.endswith("attention.out") and axis == 1:
        return tile_places(*sizes, heads * small.head_size)
    if module.endswith(".up") and axis == 0 and small.gated:
        half_P = tile_places(sizes[0] // 2, sizes[1] // 2)
        return torch.cat([half_P, half_P + sizes[1] // 2])
    return tile_places(*sizes)


def tile_places(size: int, small_size: int, block: int = 1) -> Tensor:
    """Return (P,), repeated from the middle in whole blocks: `tile_places(7, 3)` -> `[1, 2, 0, 1, 2, 0, 1]`."""
    return (torch.arange(size) - (size - small_size) // block // 2 * block) % small_size


def shares(places_P: Tensor) -> Tensor:
    """Return (P,): the unequal share that each duplicate has of its place. `[1, 0, 1]` -> `[0.4, 1.0, 0.6]`."""
    # order_P: the number of each duplicate among those of its place. A stable sort keeps duplicates in order.
    sorted_P, sources_P = places_P.sort(stable=True)
    order_P = torch.empty_like(places_P)
    order_P[sources_P] = torch.arange(len(places_P)) - torch.searchsorted(sorted_P, sorted_P)

    # From -1 for the first duplicate to 1 for the last one, and 0 for a place without duplicates.
    count_P = torch.bincount(places_P)[places_P]
    from_middle_P = (2 * order_P - (count_P - 1)) / (count_P - 1).clamp(min=1)
    return (1 + SPREAD * from_middle_P) / count_P
