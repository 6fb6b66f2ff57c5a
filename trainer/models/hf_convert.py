"""Converts weights and shapes to and from those of Hugging Face transformers.

For each family, a table maps the names of our modules to those of transformers' class, without the `.weight` or `.bias`
at the end. Query, key and value are one matrix here and three there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schemas.vocabulary import Vocabulary
from trainer.models.encoder import EncoderShape

ARCHITECTURES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "megatron-bert": "MegatronBertForPreTraining",
}
"""For each family, the class that has all of our heads; AutoModelForPreTraining opens it."""


@dataclass(frozen=True)
class WeightNames:
    """The names of a family's modules in transformers.

    base: the prefix of all modules except the heads.
    outside: our module -> theirs, for modules outside the layers.
    layer: the prefix of layer {}.
    inside: our module -> theirs, within a layer. Several names are the parts of one matrix of ours, in order.
    """

    base: str
    outside: dict[str, str]
    layer: str
    inside: dict[str, tuple[str, ...]]


def _embeddings_and_pooler(base: str) -> dict[str, str]:
    return {
        "encoder.embeddings.token": f"{base}.embeddings.word_embeddings",
        "encoder.embeddings.position": f"{base}.embeddings.position_embeddings",
        "encoder.embeddings.segment": f"{base}.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": f"{base}.embeddings.LayerNorm",
        "encoder.pooler": f"{base}.pooler.dense",
    }


_BERT_HEADS = {
    "mlm_head": "cls.predictions",
    "mlm_head.dense": "cls.predictions.transform.dense",
    "mlm_head.norm": "cls.predictions.transform.LayerNorm",
    "pair_head": "cls.seq_relationship",
}
_ROBERTA_HEADS = {
    "mlm_head": "lm_head",
    "mlm_head.dense": "lm_head.dense",
    "mlm_head.norm": "lm_head.layer_norm",
}
_ALBERT_HEADS = {
    "mlm_head": "predictions",
    "mlm_head.dense": "predictions.dense",
    "mlm_head.norm": "predictions.LayerNorm",
    "pair_head": "sop_classifier.classifier",
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

WEIGHT_NAMES = {
    "bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS,
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER,
    ),
    "roberta": WeightNames(
        base="roberta",
        outside=_embeddings_and_pooler("roberta") | _ROBERTA_HEADS,
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
        layer="albert.encoder.albert_layer_groups.{}.albert_layers.0",
        inside=_ALBERT_LAYER,
    ),
    "megatron-bert": WeightNames(
        base="bert",
        outside=_embeddings_and_pooler("bert") | _BERT_HEADS | {"encoder.norm": "bert.encoder.ln"},
        layer="bert.encoder.layer.{}",
        inside=_BERT_LAYER | {"attention_norm": ("attention.ln",), "norm": ("ln",)},
    ),
}


def hf_names(ours: str, family: str) -> list[str]:
    """Return transformers' names of the tensors that one tensor of ours is made of.

    Example: `hf_names("encoder.layers.3.up.bias", "albert")[0]` ends in `albert_layers.0.ffn.bias`.
    """
    names = WEIGHT_NAMES[family]
    module, kind = ours.rsplit(".", 1)
    if not module.startswith("encoder.layers."):
        return [f"{names.outside[module]}.{kind}"]

    _, _, number, inside = module.split(".", 3)
    layer = names.layer.format(number)
    return [f"{layer}.{part}.{kind}" for part in names.inside[inside]]


def to_hf(weights: dict[str, Tensor], family: str) -> dict[str, Tensor]:
    """Return our weights under transformers' names.

    The projection onto the vocabulary is tied to the embeddings there as it is here, and is not listed.
    """
    renamed: dict[str, Tensor] = {}
    for ours, weight in weights.items():
        names = hf_names(ours, family)
        for name, part in zip(names, weight.chunk(len(names)), strict=True):
            renamed[name] = part.contiguous()
    return renamed


def from_hf(tensors: dict[str, Tensor], ours: Iterable[str], family: str) -> dict[str, Tensor]:
    """Return the weights with the names `ours`, from tensors under transformers' names."""
    weights: dict[str, Tensor] = {}
    for name in ours:
        parts = [tensors[part] for part in hf_names(name, family)]
        weights[name] = torch.cat(parts)
    return weights


def hf_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the config.json of the family's class in transformers."""
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "type_vocab_size": shape.type_vocab_size,
        "hidden_act": "gelu_new" if shape.gelu == "tanh" else "gelu",
        "hidden_dropout_prob": shape.hidden_dropout_prob,
        "attention_probs_dropout_prob": shape.attention_probs_dropout_prob,
        "layer_norm_eps": shape.layer_norm_eps,
        "pad_token_id": vocabulary.special_id("pad"),
        "tie_word_embeddings": True,
    }

    if shape.family in ("roberta", "albert"):  # BERT's published configs have neither
        config["bos_token_id"] = vocabulary.special_id("cls")
        config["eos_token_id"] = vocabulary.special_id("sep")

    if shape.factorized:
        config["embedding_size"] = shape.embedding_size
        config["num_hidden_groups"] = shape.num_hidden_groups
        config["inner_group_num"] = 1
    return config
