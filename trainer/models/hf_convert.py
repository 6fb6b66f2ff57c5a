"""Converts weights to and from those of Hugging Face transformers, using the names in hf_tables.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.models.hf_tables import WEIGHT_NAMES
from trainer.models.shape import EncoderShape
from trainer.models.xlnet_hf import our_weight, their_dimensions

DECODER = "mlm_head.decoder"
"""The module of ours that exists only in an untied head."""

FEED_FORWARD = ("up", "down", "norm")
"""The modules of a layer that model.sharing "feed_forward" shares; "attention" shares the others."""


class Part(NamedTuple):
    """A tensor of transformers: the rows `start` to `start + rows` of one of ours."""

    name: str
    start: int
    rows: int


def hf_parts(ours: str, rows: int, shape: EncoderShape) -> list[list[Part]]:
    """Return the tensors of transformers that make up our tensor `ours`: a list of parts for each copy of it.

    rows: of our tensor. There is one copy, unless layers share the tensor in a way that transformers does not support.
    """
    module, _, kind = ours.rpartition(".")
    copies = []
    for names in _modules_of(module, shape):
        parts = []
        start = 0
        for name, part_rows in zip(names, _rows_of_parts(module, len(names), rows, shape), strict=True):
            parts.append(Part(f"{name}.{kind}", start, part_rows))
            start += part_rows
        copies.append(parts)
    return copies


def to_hf(weights: dict[str, Tensor], shape: EncoderShape) -> dict[str, Tensor]:
    """Return our weights under transformers' names.

    A tied projection onto the vocabulary is not listed: transformers ties it to the embeddings, too.
    """
    renamed: dict[str, Tensor] = {}
    for ours, weight in weights.items():
        first, *copies = hf_parts(ours, len(weight), shape)
        for part in first:
            rows = weight.narrow(0, part.start, part.rows)
            dimensions = their_dimensions(part.name, tuple(rows.shape), shape)
            renamed[part.name] = rows.contiguous().view(dimensions)
        # safetensors refuses tensors that share memory.
        for part in (part for parts in copies for part in parts):
            renamed[part.name] = weight.narrow(0, part.start, part.rows).clone()
    return renamed


def from_hf(tensors: dict[str, Tensor], ours: Iterable[str], shape: EncoderShape) -> dict[str, Tensor]:
    """Return the weights with the names `ours`, from tensors under transformers' names, all of which must exist."""
    weights: dict[str, Tensor] = {}
    for name in ours:
        # Only the names matter here, so the number of rows may be 0.
        first_copy = hf_parts(name, 0, shape)[0]
        weights[name] = torch.cat([our_weight(part.name, tensors[part.name], shape) for part in first_copy])
    return weights


def constant_tensors(shape: EncoderShape) -> dict[str, Tensor]:
    """Return the tensors that transformers' class has and our model lacks, by name, with their initial values.

    ESM's class has a head that predicts contacts of amino acids from attention. It is trained separately, so it is 0.
    """
    if shape.family != "esm":
        return {}
    exponents = torch.arange(0, shape.head_size, 2).float() / shape.head_size
    return {
        "esm.contact_head.regression.weight": torch.zeros(1, shape.num_hidden_layers * shape.num_attention_heads),
        "esm.contact_head.regression.bias": torch.zeros(1),
        "esm.rotary_embeddings.inv_freq": 1.0 / shape.rope_base**exponents,  # type: ignore[operator]
    }


def _modules_of(module: str, shape: EncoderShape) -> list[list[str]]:
    """Return transformers' names for one of our modules: the names of its parts, for each copy."""
    names = WEIGHT_NAMES[shape.family]
    if module == DECODER:
        return [[names.decoder]]
    if not module.startswith("encoder.layers."):
        return [[names.outside[module]]]

    _, _, number, inside = module.split(".", 3)
    copies = []
    for copy in range(_copies_of(inside, shape)):
        layer = names.layer.format(int(number) + copy)
        copies.append([f"{layer}.{part}" for part in names.inside[inside]])
    return copies


def _copies_of(inside: str, shape: EncoderShape) -> int:
    """Return the number of transformers' layers that one module of our layers fills: several if it is shared."""
    shared = "feed_forward" if inside in FEED_FORWARD else "attention"
    return shape.layers_per_group if shape.sharing == shared else 1


def _rows_of_parts(module: str, parts: int, rows: int, shape: EncoderShape) -> list[int]:
    """Return the rows of each part of a module's tensor."""
    if module.endswith("attention.qkv") and parts == 3:
        keys = shape.num_key_value_heads * shape.head_size
        return [shape.hidden_size, keys, keys]
    return [rows // parts] * parts
