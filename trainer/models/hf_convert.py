"""The same weights under the names that transformers gives them, in both directions, and its config.json.

One table for each family: our module -> theirs, without the `.weight` or `.bias` behind it. Query, key and value are
one matrix here and three there.
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
"""The class of each family with all of our heads; what AutoModelForPreTraining opens."""


@dataclass(frozen=True)
class Names:
    """base: what all but the heads' names begin with. outside: modules outside the layers. layer: where layer {} is.
    inside: modules in a layer; three names are the parts of one matrix of ours, in order.
    """

    base: str
    outside: dict[str, str]
    layer: str
    inside: dict[str, str]


def _around_layers(base: str) -> dict[str, str]:
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
_BERT_LAYER = {
    "attention.qkv": "attention.self.query attention.self.key attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
NAMES = {
    "bert": Names("bert", _around_layers("bert") | _BERT_HEADS, "bert.encoder.layer.{}", _BERT_LAYER),
    "roberta": Names(
        "roberta",
        _around_layers("roberta")
        | {"mlm_head": "lm_head", "mlm_head.dense": "lm_head.dense", "mlm_head.norm": "lm_head.layer_norm"},
        "roberta.encoder.layer.{}",
        _BERT_LAYER,
    ),
    "albert": Names(
        "albert",
        _around_layers("albert")
        | {
            "encoder.widen": "albert.encoder.embedding_hidden_mapping_in",
            "encoder.pooler": "albert.pooler",
            "mlm_head": "predictions",
            "mlm_head.dense": "predictions.dense",
            "mlm_head.norm": "predictions.LayerNorm",
            "pair_head": "sop_classifier.classifier",
        },
        "albert.encoder.albert_layer_groups.{}.albert_layers.0",
        {
            "attention.qkv": "attention.query attention.key attention.value",
            "attention.out": "attention.dense",
            "attention_norm": "attention.LayerNorm",
            "up": "ffn",
            "down": "ffn_output",
            "norm": "full_layer_layer_norm",
        },
    ),
    "megatron-bert": Names(
        "bert",
        _around_layers("bert") | _BERT_HEADS | {"encoder.norm": "bert.encoder.ln"},
        "bert.encoder.layer.{}",
        _BERT_LAYER | {"attention_norm": "attention.ln", "norm": "ln"},
    ),
}


def their_names(ours: str, family: str) -> list[str]:
    """Example: `their_names("encoder.layers.3.up.bias", "albert")[0]` ends in `albert_layers.0.ffn.bias`."""
    names, (module, kind) = NAMES[family], ours.rsplit(".", 1)
    if not module.startswith("encoder.layers."):
        return [f"{names.outside[module]}.{kind}"]
    _, _, number, inside = module.split(".", 3)
    return [f"{names.layer.format(number)}.{part}.{kind}" for part in names.inside[inside].split()]


def to_theirs(weights: dict[str, Tensor], family: str) -> dict[str, Tensor]:
    """Our weights under their names. The decoder is tied to the embeddings there as it is here, and not listed."""
    renamed: dict[str, Tensor] = {}
    for ours, weight in weights.items():
        names = their_names(ours, family)
        renamed.update(zip(names, (part.contiguous() for part in weight.chunk(len(names))), strict=True))
    return renamed


def to_ours(tensors: dict[str, Tensor], ours: Iterable[str], family: str) -> dict[str, Tensor]:
    """The weights called `ours`, out of tensors under their names."""
    return {name: torch.cat([tensors[part] for part in their_names(name, family)]) for name in ours}


def config_of(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json of the family's class in transformers."""
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
    if shape.family in ("roberta", "albert"):  # BERT's published configs name neither
        config |= {"bos_token_id": vocabulary.special_id("cls"), "eos_token_id": vocabulary.special_id("sep")}
    if shape.factorised:
        config |= {
            "embedding_size": shape.embedding_size,
            "num_hidden_groups": shape.num_hidden_groups,
            "inner_group_num": 1,
        }
    return config
