"""The same weights under the names that transformers gives them, so that an export needs no code of ours to load."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from schemas.vocabulary import Vocabulary
from trainer.models.encoder import EncoderShape


def bert_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """config.json of transformers' BertForPreTraining."""
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward,
        "max_position_embeddings": shape.max_positions,
        "type_vocab_size": shape.segments,
        "hidden_act": "gelu",
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.attention_dropout,
        "layer_norm_eps": shape.norm_eps,
        "initializer_range": 0.02,
        "pad_token_id": vocabulary.special_id("pad"),
        "tie_word_embeddings": True,
    }


_OUTSIDE_LAYERS = {
    "encoder.embeddings.token.weight": "bert.embeddings.word_embeddings.weight",
    "encoder.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "encoder.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "mlm_head.dense": "cls.predictions.transform.dense",
    "mlm_head.norm": "cls.predictions.transform.LayerNorm",
    "mlm_head.bias": "cls.predictions.bias",
    "pair_head": "cls.seq_relationship",
}
_IN_A_LAYER = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}


def bert_weights(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Our weights under transformers' names; the decoder is tied to the embeddings there as it is here."""
    renamed: dict[str, Tensor] = {}
    for ours, theirs in _OUTSIDE_LAYERS.items():
        renamed.update(_with_suffixes(weights, ours, theirs))
    for i in range(layers):
        layer, target = f"encoder.layers.{i}", f"bert.encoder.layer.{i}"
        for ours, theirs in _IN_A_LAYER.items():
            renamed.update(_with_suffixes(weights, f"{layer}.{ours}", f"{target}.{theirs}"))
        for kind in ("weight", "bias"):
            parts = weights[f"{layer}.attention.qkv.{kind}"].chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                renamed[f"{target}.attention.self.{name}.{kind}"] = part.contiguous()
    return renamed


def _with_suffixes(weights: dict[str, Tensor], ours: str, theirs: str) -> dict[str, Tensor]:
    """A single tensor, or the weight and bias of a module."""
    if ours in weights:
        return {theirs: weights[ours]}
    return {f"{theirs}.{kind}": weights[f"{ours}.{kind}"] for kind in ("weight", "bias")}
