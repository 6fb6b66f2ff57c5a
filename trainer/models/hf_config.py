"""A family's config.json in Hugging Face transformers, written from a shape and read into the keys of [model].

One table holds the names for both directions. What reading does not find out, such as an activation, `hf_load` compares
with what the recipe would write.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.config.validate_model import FAMILIES_WITH
from trainer.models.electra import GENERATOR_FOLDER
from trainer.models.families import FAMILIES
from trainer.models.hf_files import read_config, read_tokens
from trainer.models.shape import EncoderShape

ARCHITECTURES = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "megatron-bert": "MegatronBertForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "eurobert": "EuroBertForMaskedLM",
    "esm": "EsmForMaskedLM",
    "nomic_bert": "NomicBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "electra": "ElectraForPreTraining",
    "electra_generator": "ElectraForMaskedLM",
    "xlnet": "XLNetLMHeadModel",
}
"""For each family, the class that has all of our heads."""

AUTO_CLASS_OF_HEADS = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "LMHeadModel": "AutoModelForCausalLM",
}
"""The Auto class that loads an architecture, by the end of the architecture's name.

AutoModelForPreTraining does not support most families that have only a masked-LM head.
"""

AUTO_CLASSES = {
    family: next(auto for ending, auto in AUTO_CLASS_OF_HEADS.items() if architecture.endswith(ending))
    for family, architecture in ARCHITECTURES.items()
}
"""For each family, the Auto class that loads its folders."""

# Keys of config.json, with the fields of EncoderShape whose values they have.

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "positions",
    "tie_word_embeddings": "tied",
}
_DROPOUTS = {
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
}
_BERT = {
    **_SIZES,
    **_DROPOUTS,
    "type_vocab_size": "type_vocab_size",
    "hidden_act": "activation",
    "layer_norm_eps": "norm_eps",
}

KEYS: dict[str, dict[str, str]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "albert": _BERT | {"embedding_size": "embedding_size"},
    "megatron-bert": _BERT,
    "modernbert": {
        **_SIZES,
        "hidden_activation": "activation",
        "classifier_activation": "activation",
        "norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "mlp_bias": "up_bias",
        "classifier_bias": "head_dense_bias",
        "decoder_bias": "decoder_bias",
        "embedding_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "local_attention": "window",
        "global_attn_every_n_layers": "global_every",
    },
    "eurobert": {
        **_SIZES,
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_size",
        "hidden_act": "activation",
        "rms_norm_eps": "norm_eps",
        "attention_bias": "attention_bias",
        "mlp_bias": "up_bias",
        "attention_dropout": "attention_probs_dropout_prob",
    },
    "esm": {
        **_SIZES,
        **_DROPOUTS,
        "layer_norm_eps": "norm_eps",
        "rope_theta": "rope_base",
        "emb_layer_norm_before": "embedding_norm",
        "token_dropout": "rescale_masked",
    },
    "nomic_bert": _BERT,
    "gte": _BERT,
    "electra": _BERT | {"embedding_size": "embedding_size"},
    "xlnet": {
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "d_head": "head_size",
        "d_inner": "intermediate_size",
        "ff_activation": "activation",
        "layer_norm_eps": "norm_eps",
        "dropout": "hidden_dropout_prob",
        "tie_word_embeddings": "tied",
    },
}

CONSTANTS: dict[str, dict[str, Any]] = {
    # As in the published config.json. transformers' default is "cls", a token that masked LM never trains.
    "modernbert": {"classifier_pooling": "mean", "mlp_dropout": 0.0},
    "esm": {"position_embedding_type": "rotary"},
    # A model that was trained without memory.
    "xlnet": {
        "attn_type": "bi",
        "untie_r": True,
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "mem_len": None,
        "reuse_len": None,
        "use_mems_eval": False,
        "use_mems_train": False,
        "summary_type": "last",
    },
}
"""Keys whose values are the same for every shape of a family."""

SpecialIds = dict[str, Literal["pad", "unk", "cls", "sep", "mask"]]

_FIRST_AND_LAST: SpecialIds = {"bos_token_id": "cls", "eos_token_id": "sep"}

SPECIAL_IDS: dict[str, SpecialIds] = {
    "roberta": _FIRST_AND_LAST,
    "albert": _FIRST_AND_LAST,
    "modernbert": {**_FIRST_AND_LAST, "cls_token_id": "cls", "sep_token_id": "sep"},
    "eurobert": {**_FIRST_AND_LAST, "mask_token_id": "mask"},
    "esm": {**_FIRST_AND_LAST, "mask_token_id": "mask"},
    "gte": _FIRST_AND_LAST,
    "xlnet": _FIRST_AND_LAST,
}
"""Keys with ids of special tokens, besides pad_token_id; BERT's published configs have none."""

ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}

LONGEST_WITHOUT_POSITIONS = 512
"""Maximum tokens in a row if config.json has no limit: for XLNet, whose positions are relative."""


def hf_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of config.json for the family's class in transformers."""
    family = "electra" if shape.family == "electra_generator" else shape.family
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[shape.family]], "model_type": family}
    for theirs, ours in KEYS[family].items():
        value = getattr(shape, ours)
        config[theirs] = ACTIVATION_NAMES[value] if ours == "activation" else value

    special_ids: SpecialIds = {"pad_token_id": "pad", **SPECIAL_IDS.get(family, {})}
    config |= {theirs: vocabulary.special_id(role) for theirs, role in special_ids.items()}
    return config | CONSTANTS.get(family, {}) | _groups(shape) | _rotations(shape)


def _groups(shape: EncoderShape) -> dict[str, Any]:
    """Return ALBERT's groups. transformers can only share whole layers; others are exported as separate layers."""
    if shape.family != "albert":
        return {}
    groups = shape.num_hidden_groups if shape.sharing == "all" else shape.num_hidden_layers
    return {"num_hidden_groups": groups, "inner_group_num": 1}


def _rotations(shape: EncoderShape) -> dict[str, Any]:
    """Return the RoPE bases, and ModernBERT's windows. ESM's only key is in the table."""
    if shape.rope_base is None or shape.family == "esm":
        return {}
    everywhere = {"rope_type": "default", "rope_theta": shape.rope_base}
    if shape.family != "modernbert":
        return {"rope_parameters": everywhere}

    window_base = shape.rope_base if shape.window_rope_base is None else shape.window_rope_base
    windows = [shape.window_of(layer) is not None for layer in range(shape.num_hidden_layers)]
    return {
        "layer_types": ["sliding_attention" if has_window else "full_attention" for has_window in windows],
        "rope_parameters": {
            "full_attention": everywhere,
            "sliding_attention": {"rope_type": "default", "rope_theta": window_base},
        },
        # The same settings under the keys of transformers 4.
        "global_rope_theta": shape.rope_base,
        "local_rope_theta": window_base,
    }


# Read back


REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
READ = (*REQUIRED, "num_key_value_heads", "embedding_size", "window", "global_every", "tied", "norm_eps")
"""Keys of [model] with the names of fields in KEYS. Those of FAMILIES_WITH are read for their families only."""


def model_of_folder(folder: str) -> dict[str, Any]:
    """Return the keys of [model] that build a folder's model, without dropout; vocab_size only if rows are spare.

    Raises UsageError if there is no config.json or the trainer lacks its family, and DataError if a size is missing.
    """
    config = read_config(folder)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UsageError(
            f"{folder} is of the family {family!r}, which the trainer does not have, so its pretraining cannot be "
            f"continued. Families: {', '.join(FAMILIES)}."
        )

    model: dict[str, Any] = {"family": family}
    for theirs, ours in KEYS[family].items():
        if ours in REQUIRED:
            model[ours] = _size(config, theirs, folder)
        elif ours in READ and family in FAMILIES_WITH.get(ours, FAMILIES) and config.get(theirs) is not None:
            model[ours] = config[theirs]

    model["max_position_embeddings"] = LONGEST_WITHOUT_POSITIONS
    if family != "xlnet":  # RoBERTa's position table begins with two rows that no token uses
        positions = _size(config, "max_position_embeddings", folder)
        model["max_position_embeddings"] = positions - FAMILIES[family].first_position

    tokens = read_tokens(folder)
    if tokens is not None and config.get("vocab_size", 0) > len(tokens):
        model["vocab_size"] = config["vocab_size"]

    model |= _rope_bases(config, family)
    if family == "albert":
        groups = config.get("num_hidden_groups", 1)
        shares_nothing = groups == config["num_hidden_layers"] > 1
        model |= {"sharing": "none"} if shares_nothing else {"num_hidden_groups": groups}

    generator = Path(folder) / GENERATOR_FOLDER
    if family == "electra" and generator.is_dir():  # without one, the default size applies
        width = _size(read_config(str(generator)), "hidden_size", str(generator))
        model["generator_size"] = width / model["hidden_size"]
    return model


def _size(config: dict[str, Any], name: str, folder: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise DataError(f"{folder}/config.json: {name} must be a whole number above 0, found {value!r}.")
    return value


def _rope_bases(config: dict[str, Any], family: str) -> dict[str, Any]:
    """Return the RoPE bases, which transformers 5 and 4 keep under different keys."""
    parameters = config.get("rope_parameters") or {}
    everywhere = parameters.get("full_attention", parameters).get("rope_theta")
    in_windows = parameters.get("sliding_attention", {}).get("rope_theta")
    bases = {
        "rope_base": everywhere or config.get("global_rope_theta") or config.get("rope_theta"),
        "window_rope_base": in_windows or config.get("local_rope_theta"),
    }
    return {name: base for name, base in bases.items() if base is not None and family in FAMILIES_WITH[name]}
