"""The shape of a smaller model that is to be tiled into a larger one (tiling.py), and checks that this is possible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import DataError, UsageError
from trainer.models.electra import GENERATOR_FOLDER
from trainer.models.hf_files import read_config
from trainer.models.shape import EncoderShape

GROWING_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "embedding_size",
    "num_hidden_groups",
)
"""Sizes that may be smaller in the folder's model. `warm_start` requires all other keys of config.json to be equal."""


class Shapes(NamedTuple):
    """The shape of the model to fill, and that of the smaller one whose weights fill it."""

    large: EncoderShape
    small: EncoderShape


def shapes_of_part(name: str, shapes: Shapes) -> Shapes:
    """Return the shapes of the part that a weight belongs to: ELECTRA's generator, unless it is the discriminator's."""
    large, small = shapes
    if large.generator is None or small.generator is None or name.startswith("discriminator."):
        return shapes
    return Shapes(large.generator, small.generator)


def shape_of_folder(folder: str, large: EncoderShape) -> EncoderShape:
    """Return the shape of a folder's model: the larger one's with the sizes of the folder's config.json.

    Raises DataError if a size is not a positive whole number.
    """
    small = _with_sizes_of(folder, large)
    if large.generator is None:
        return small

    # If the folder has no generator, assume one with the recipe's sizes on top of the folder's embeddings. Its own
    # weights stay NaN, so tiling.py skips them.
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

    # A folder holds layers that share only a sublayer as separate layers, and does not say which form a group.
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
    """Return a size from a config.json, or `absent` if the key is missing. Raises DataError unless it is above 0."""
    value = config.get(key, absent)
    if type(value) is not int or value < 1:
        raise DataError(f"{folder}/config.json: {key} must be a whole number above 0, found {value!r}.")
    return value


def check_family(folder: str, large: EncoderShape) -> None:
    """Raise UsageError if a folder's model is of another family, whose sizes cannot be compared."""
    theirs = read_config(folder).get("model_type", large.family)
    if theirs != large.family:
        raise UsageError(
            f"model.tile_from {folder} is of another family: model_type is {theirs!r}, the recipe makes it "
            f"{large.family!r}. Change model.family to fit the folder, or give another folder."
        )


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


def queries_of_group(shape: EncoderShape) -> int:
    """Return how many heads of queries share a head of keys and values."""
    return shape.num_attention_heads // shape.num_key_value_heads
