"""Converts weights to and from those of Hugging Face transformers: a table of names for each family, and dimensions.

Names in the tables leave out the `.weight` or `.bias` at the end. Several names on the right are the parts of one of
our matrices, in order: query, key and value are one matrix here and three in most classes of transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.models.shape import EncoderShape

DECODER = "mlm_head.decoder"
"""The module of ours that exists only in an untied head."""

FEED_FORWARD = ("up", "down", "norm")
"""The modules of a layer that model.sharing "feed_forward" shares; "attention" shares the others."""

XLNET_MATRICES = ("q", "k", "v", "o", "r")
XLNET_BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
"""XLNet's weights in which transformers has heads as a separate dimension. Here heads are concatenated."""


class Part(NamedTuple):
    """A tensor of transformers: the rows `start` to `start + rows` of one of ours."""

    name: str
    start: int
    rows: int


@dataclass(frozen=True)
class WeightNames:
    """The names of a family's modules in transformers.

    base: the prefix of all modules except the heads.
    outside: our module -> theirs, for modules outside the layers.
    decoder: their projection onto the vocabulary. We have a matrix for it only if it is not tied.
    layer: the prefix of a layer's modules, with {} for the layer's number.
    inside: our module -> theirs, within a layer.
    """

    base: str
    outside: dict[str, str]
    decoder: str
    layer: str
    inside: Mapping[str, tuple[str, ...]]


def _embeddings_and_pooler(base: str) -> dict[str, str]:
    return {
        "encoder.embeddings.token": f"{base}.embeddings.word_embeddings",
        "encoder.embeddings.position": f"{base}.embeddings.position_embeddings",
        "encoder.embeddings.segment": f"{base}.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": f"{base}.embeddings.LayerNorm",
        "encoder.pooler": f"{base}.pooler.dense",
    }


def _masked_lm_head(projection: str, transform: str, norm: str = "LayerNorm") -> dict[str, str]:
    """Return a masked-LM head's names. projection: the module with the bias of the vocabulary. transform: before it."""
    return {
        "mlm_head": projection,
        "mlm_head.dense": f"{transform}.dense",
        "mlm_head.norm": f"{transform}.{norm}",
    }


_BERT_HEADS = _masked_lm_head("cls.predictions", "cls.predictions.transform") | {"pair_head": "cls.seq_relationship"}
_ROBERTA_HEADS = _masked_lm_head("lm_head", "lm_head", norm="layer_norm")
_ALBERT_HEADS = _masked_lm_head("predictions", "predictions") | {"pair_head": "sop_classifier.classifier"}
_ELECTRA_HEADS = _masked_lm_head("generator_lm_head", "generator_predictions") | {
    "encoder.widen": "electra.embeddings_project",
    "dense": "discriminator_predictions.dense",
    "prediction": "discriminator_predictions.dense_prediction",
}

_BERT_LAYER = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "norm": ("output.LayerNorm",),
}
_ALBERT_LAYER = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.out": ("attention.dense",),
    "attention_norm": ("attention.LayerNorm",),
    "up": ("ffn",),
    "down": ("ffn_output",),
    "norm": ("full_layer_layer_norm",),
}
_LLAMA_LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_POST_NORMS = {"attention_norm": ("post_attention_layernorm",), "norm": ("post_mlp_layernorm",)}

WEIGHT_NAMES = {
    "bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS,
        decoder="cls.predictions.decoder",
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "roberta": WeightNames(
        base="roberta",
        outside=_embeddings_and_pooler("roberta") | _ROBERTA_HEADS,
        decoder="lm_head.decoder",
        layer="roberta.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "albert": WeightNames(
        base="albert",
        outside=_embeddings_and_pooler("albert")
        | _ALBERT_HEADS
        | {
            "encoder.widen": "albert.encoder.embedding_hidden_mapping_in",
            "encoder.pooler": "albert.pooler",
        },
        decoder="predictions.decoder",
        layer="albert.encoder.albert_layer_groups.{}.albert_layers.0",
        inside=_ALBERT_LAYER,
    ),
    "megatron-bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS | {"encoder.norm": "bert.encoder.ln"},
        decoder="cls.predictions.decoder",
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER | {"attention_norm": ("attention.ln",), "norm": ("ln",)},
    ),
    "modernbert": WeightNames(
        base="model",
        outside={
            "encoder.embeddings.token": "model.embeddings.tok_embeddings",
            "encoder.embeddings.norm": "model.embeddings.norm",
            "encoder.norm": "model.final_norm",
            "mlm_head": "decoder",
            "mlm_head.dense": "head.dense",
            "mlm_head.norm": "head.norm",
        },
        decoder="decoder",
        layer="model.layers.{}",
        inside={
            "attention.qkv": ("attn.Wqkv",),
            "attention.out": ("attn.Wo",),
            "attention_norm": ("attn_norm",),
            "up": ("mlp.Wi",),
            "down": ("mlp.Wo",),
            "norm": ("mlp_norm",),
        },
    ),
    "eurobert": WeightNames(
        base="model",
        outside={
            "encoder.embeddings.token": "model.embed_tokens",
            "encoder.norm": "model.norm",
            "mlm_head": "lm_head",
        },
        decoder="lm_head",
        layer="model.layers.{}",
        inside=_LLAMA_LAYER | {"attention_norm": ("input_layernorm",), "norm": ("post_attention_layernorm",)},
    ),
    "esm": WeightNames(
        base="esm",
        outside=_embeddings_and_pooler("esm") | _ROBERTA_HEADS | {"encoder.norm": "esm.encoder.emb_layer_norm_after"},
        decoder="lm_head.decoder",
        layer="esm.encoder.layer.{}",
        inside=_BERT_LAYER | {"attention_norm": ("attention.LayerNorm",), "norm": ("LayerNorm",)},
    ),
    "nomic_bert": WeightNames(
        base="nomic_bert",
        outside=_embeddings_and_pooler("nomic_bert")
        | _BERT_HEADS
        | {"mlm_head.norm": "cls.predictions.transform.layer_norm"},
        decoder="cls.predictions.decoder",
        layer="nomic_bert.layers.{}",
        inside=_LLAMA_LAYER | _POST_NORMS,
    ),
    "gte": WeightNames(
        base="gte",
        outside=_embeddings_and_pooler("gte") | _ROBERTA_HEADS | {"mlm_head": "lm_head.decoder"},
        decoder="lm_head.decoder",
        layer="gte.layers.{}",
        inside=_LLAMA_LAYER | _POST_NORMS,
    ),
    "electra": WeightNames(
        base="electra",
        outside=_embeddings_and_pooler("electra") | _ELECTRA_HEADS,
        decoder="generator_lm_head",
        layer="electra.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "xlnet": WeightNames(
        base="transformer",
        outside={
            "encoder": "transformer",
            "encoder.embeddings.token": "transformer.word_embedding",
            "mlm_head": "lm_loss",
        },
        decoder="lm_loss",
        layer="transformer.layer.{}",
        inside={
            "attention": ("rel_attn",),
            "attention_norm": ("rel_attn.layer_norm",),
            "up": ("ff.layer_1",),
            "down": ("ff.layer_2",),
            "norm": ("ff.layer_norm",),
        },
    ),
}
WEIGHT_NAMES["electra_generator"] = WEIGHT_NAMES["electra"]
"""Each of ELECTRA's two parts has a separate folder, with one of the two heads."""


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
    if module.endswith("attention.qkv") and parts == 3:
        keys = shape.num_key_value_heads * shape.head_size
        return [shape.hidden_size, keys, keys]
    return [rows // parts] * parts


def their_dimensions(name: str, ours: tuple[int, ...], shape: EncoderShape) -> tuple[int, ...]:
    """Return the dimensions that a weight has in transformers. name: theirs. ours: the weight's dimensions here."""
    if not shape.two_streams:
        return ours

    last = name.rpartition(".")[2]
    heads = (shape.num_attention_heads, shape.head_size)
    if last in XLNET_MATRICES:
        return (ours[0], *heads)
    if last in XLNET_BIASES:
        return heads
    if last == "seg_embed":
        return (2, *heads)
    if last == "mask_emb":
        return (1, 1, shape.hidden_size)
    return ours


def our_weight(name: str, theirs: Tensor, shape: EncoderShape) -> Tensor:
    """Return a weight of transformers, reshaped to the dimensions that it has here. name: theirs."""
    if not shape.two_streams:
        return theirs
    if name.rpartition(".")[2] in XLNET_BIASES:
        return theirs.flatten()
    return theirs.flatten(1) if theirs.dim() > 2 else theirs
