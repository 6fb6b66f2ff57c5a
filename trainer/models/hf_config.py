"""Builds the config.json of a shape, as the family's class in Hugging Face transformers reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from schemas.vocabulary import Vocabulary
from trainer.models.hf_tables import ARCHITECTURES
from trainer.models.shape import Activation, EncoderShape
from trainer.models.xlnet_hf import xlnet_config

ACTIVATION_NAMES: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def hf_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of config.json for the family's class in transformers."""
    if shape.two_streams:
        return xlnet_config(shape, vocabulary)

    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.positions,
        "pad_token_id": vocabulary.special_id("pad"),
        "tie_word_embeddings": shape.tied,
    }
    return config | FAMILY_KEYS[shape.family](shape, vocabulary)


def _bert_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    config: dict[str, Any] = {
        "type_vocab_size": shape.type_vocab_size,
        "hidden_act": ACTIVATION_NAMES[shape.activation],
        "hidden_dropout_prob": shape.hidden_dropout_prob,
        "attention_probs_dropout_prob": shape.attention_probs_dropout_prob,
        "layer_norm_eps": shape.norm_eps,
    }
    if shape.family in ("roberta", "albert", "gte"):  # BERT's published configs have neither
        config |= _first_and_last(vocabulary)
    return config


def _albert_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    # transformers can only share whole layers. Layers that share a sublayer are exported as separate layers.
    has_groups = shape.sharing == "all"
    groups = {
        "embedding_size": shape.embedding_size,
        "num_hidden_groups": shape.num_hidden_groups if has_groups else shape.num_hidden_layers,
        "inner_group_num": 1,
    }
    return _bert_keys(shape, vocabulary) | groups


def _modernbert_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    window_base = shape.rope_base if shape.window_rope_base is None else shape.window_rope_base
    windows = [shape.window_of(layer) is not None for layer in range(shape.num_hidden_layers)]
    return {
        **_first_and_last(vocabulary),
        "cls_token_id": vocabulary.special_id("cls"),
        "sep_token_id": vocabulary.special_id("sep"),
        "hidden_activation": ACTIVATION_NAMES[shape.activation],
        "classifier_activation": ACTIVATION_NAMES[shape.activation],
        "norm_eps": shape.norm_eps,
        "norm_bias": shape.norm_bias,
        "attention_bias": shape.attention_bias,
        "mlp_bias": shape.up_bias,
        "classifier_bias": shape.head_dense_bias,
        # As in the published config.json. transformers' default is "cls", a token that masked LM never trains.
        "classifier_pooling": "mean",
        "decoder_bias": shape.decoder_bias,
        "embedding_dropout": shape.hidden_dropout_prob,
        "mlp_dropout": 0.0,
        "attention_dropout": shape.attention_probs_dropout_prob,
        "local_attention": shape.window,
        "layer_types": ["sliding_attention" if has_window else "full_attention" for has_window in windows],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": shape.rope_base},
            "sliding_attention": {"rope_type": "default", "rope_theta": window_base},
        },
        # The same settings under the keys of transformers 4.
        "global_attn_every_n_layers": shape.global_every,
        "global_rope_theta": shape.rope_base,
        "local_rope_theta": window_base,
    }


def _eurobert_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        **_first_and_last(vocabulary),
        "mask_token_id": vocabulary.special_id("mask"),
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_size,
        "hidden_act": ACTIVATION_NAMES[shape.activation],
        "rms_norm_eps": shape.norm_eps,
        "attention_bias": shape.attention_bias,
        "mlp_bias": shape.up_bias,
        "attention_dropout": shape.attention_probs_dropout_prob,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
    }


def _esm_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        **_first_and_last(vocabulary),
        "mask_token_id": vocabulary.special_id("mask"),
        "hidden_dropout_prob": shape.hidden_dropout_prob,
        "attention_probs_dropout_prob": shape.attention_probs_dropout_prob,
        "layer_norm_eps": shape.norm_eps,
        "position_embedding_type": "rotary",
        "rope_theta": shape.rope_base,
        "emb_layer_norm_before": shape.embedding_norm,
        "token_dropout": shape.rescale_masked,
    }


def _rotated_bert_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base}}
    return _bert_keys(shape, vocabulary) | rope


def _electra_keys(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    return {"model_type": "electra", "embedding_size": shape.embedding_size} | _bert_keys(shape, vocabulary)


def _first_and_last(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of the tokens that begin and end a row."""
    return {"bos_token_id": vocabulary.special_id("cls"), "eos_token_id": vocabulary.special_id("sep")}


FAMILY_KEYS: dict[str, Callable[[EncoderShape, Vocabulary], dict[str, Any]]] = {
    "bert": _bert_keys,
    "roberta": _bert_keys,
    "albert": _albert_keys,
    "megatron-bert": _bert_keys,
    "modernbert": _modernbert_keys,
    "eurobert": _eurobert_keys,
    "esm": _esm_keys,
    "nomic_bert": _rotated_bert_keys,
    "gte": _rotated_bert_keys,
    "electra": _electra_keys,
    "electra_generator": _electra_keys,
}
