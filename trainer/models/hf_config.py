"""A family's config.json in Hugging Face transformers, written from a shape and read into the keys of [model].

One table holds the names for both directions. What reading does not find out, such as an activation, `hf_load` compares
with what the recipe would write. Nothing here imports torch: recipes take their shape from a folder (config/load.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from schemas.errors import DataError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.models.families import FAMILIES, FAMILIES_WITH, GENERATOR_FOLDER
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

AUTO_CLASSES = {
    family: "AutoModelForPreTraining" if architecture.endswith("ForPreTraining") else "AutoModelForMaskedLM"
    for family, architecture in ARCHITECTURES.items()
} | {"xlnet": "AutoModelForCausalLM"}
"""For each family, the Auto class that loads its folders.

AutoModelForPreTraining does not support most families that have only a masked-LM head.
"""


class Special(NamedTuple):
    """The id of a special token."""

    role: Literal["pad", "unk", "cls", "sep", "mask"]


class Constant(NamedTuple):
    """A value that is the same for every shape of a family."""

    value: Any


Entry = str | Special | Constant | Callable[[EncoderShape], Any]
"""Where a key's value comes from. A text names a field of EncoderShape, and most of these fields are read back."""

ACTIVATION_NAMES = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def _activation(shape: EncoderShape) -> str:
    return ACTIVATION_NAMES[shape.activation]


def _groups(shape: EncoderShape) -> int:
    # transformers can only share whole layers. Layers that share a sublayer are exported as separate layers.
    return shape.num_hidden_groups if shape.sharing == "all" else shape.num_hidden_layers


def _rotation(shape: EncoderShape) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": shape.rope_base}


def _window_base(shape: EncoderShape) -> float | None:
    return shape.rope_base if shape.window_rope_base is None else shape.window_rope_base


def _rotations(shape: EncoderShape) -> dict[str, Any]:
    in_windows = {"rope_type": "default", "rope_theta": _window_base(shape)}
    return {"full_attention": _rotation(shape), "sliding_attention": in_windows}


def _layer_types(shape: EncoderShape) -> list[str]:
    windows = [shape.window_of(layer) for layer in range(shape.num_hidden_layers)]
    return ["full_attention" if window is None else "sliding_attention" for window in windows]


_SIZES: dict[str, Entry] = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "positions",
    "pad_token_id": Special("pad"),
    "tie_word_embeddings": "tied",
}
_BERT: dict[str, Entry] = {
    **_SIZES,
    "type_vocab_size": "type_vocab_size",
    "hidden_act": _activation,
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "layer_norm_eps": "norm_eps",
}
_FIRST_AND_LAST: dict[str, Entry] = {"bos_token_id": Special("cls"), "eos_token_id": Special("sep")}

KEYS: dict[str, dict[str, Entry]] = {
    "bert": _BERT,  # published configs have neither of _FIRST_AND_LAST
    "roberta": {**_BERT, **_FIRST_AND_LAST},
    "albert": {
        **_BERT,
        **_FIRST_AND_LAST,
        "embedding_size": "embedding_size",
        "num_hidden_groups": _groups,
        "inner_group_num": Constant(1),
    },
    "megatron-bert": _BERT,
    "modernbert": {
        **_SIZES,
        **_FIRST_AND_LAST,
        "cls_token_id": Special("cls"),
        "sep_token_id": Special("sep"),
        "hidden_activation": _activation,
        "classifier_activation": _activation,
        "norm_eps": "norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "mlp_bias": "up_bias",
        "classifier_bias": "head_dense_bias",
        # As in the published config.json. transformers' default is "cls", a token that masked LM never trains.
        "classifier_pooling": Constant("mean"),
        "decoder_bias": "decoder_bias",
        "embedding_dropout": "hidden_dropout_prob",
        "mlp_dropout": Constant(0.0),
        "attention_dropout": "attention_probs_dropout_prob",
        "local_attention": "window",
        "layer_types": _layer_types,
        "rope_parameters": _rotations,
        # The same settings under the keys of transformers 4.
        "global_attn_every_n_layers": "global_every",
        "global_rope_theta": "rope_base",
        "local_rope_theta": _window_base,
    },
    "eurobert": {
        **_SIZES,
        **_FIRST_AND_LAST,
        "mask_token_id": Special("mask"),
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_size",
        "hidden_act": _activation,
        "rms_norm_eps": "norm_eps",
        "attention_bias": "attention_bias",
        "mlp_bias": "up_bias",
        "attention_dropout": "attention_probs_dropout_prob",
        "rope_parameters": _rotation,
    },
    "esm": {
        **_SIZES,
        **_FIRST_AND_LAST,
        "mask_token_id": Special("mask"),
        "hidden_dropout_prob": "hidden_dropout_prob",
        "attention_probs_dropout_prob": "attention_probs_dropout_prob",
        "layer_norm_eps": "norm_eps",
        "position_embedding_type": Constant("rotary"),
        "rope_theta": "rope_base",
        "emb_layer_norm_before": "embedding_norm",
        "token_dropout": "rescale_masked",
    },
    "nomic_bert": {**_BERT, "rope_parameters": _rotation},
    "gte": {**_BERT, **_FIRST_AND_LAST, "rope_parameters": _rotation},
    "electra": {**_SIZES, "embedding_size": "embedding_size", **_BERT},
    "xlnet": {
        "vocab_size": "vocab_size",
        "d_model": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "d_head": "head_size",
        "d_inner": "intermediate_size",
        "ff_activation": _activation,
        "layer_norm_eps": "norm_eps",
        "dropout": "hidden_dropout_prob",
        "attn_type": Constant("bi"),
        "untie_r": Constant(True),
        "bi_data": Constant(False),
        "clamp_len": Constant(-1),
        "same_length": Constant(False),
        # The model was trained without memory.
        "mem_len": Constant(None),
        "reuse_len": Constant(None),
        "use_mems_eval": Constant(False),
        "use_mems_train": Constant(False),
        "summary_type": Constant("last"),
        "pad_token_id": Special("pad"),
        **_FIRST_AND_LAST,
        "tie_word_embeddings": "tied",
    },
}
"""For each family, the keys of config.json in the order in which they are written."""


def hf_config(shape: EncoderShape, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of config.json for the family's class in transformers."""

    def value_of(entry: Entry) -> Any:
        if isinstance(entry, str):
            return getattr(shape, entry)
        if isinstance(entry, Special):
            return vocabulary.special_id(entry.role)
        return entry.value if isinstance(entry, Constant) else entry(shape)

    family = "electra" if shape.family == "electra_generator" else shape.family
    config = {"architectures": [ARCHITECTURES[shape.family]], "model_type": family}
    return config | {key: value_of(entry) for key, entry in KEYS[family].items()}


# Read back

SAME_MODELS = {"xlm-roberta": "roberta", "camembert": "roberta"}
"""Families of transformers that have the weights of another, which the trainer has and exports."""

LONGEST_WITHOUT_POSITIONS = 512
"""Maximum tokens in a row if config.json has no limit: for XLNet, whose positions are relative."""

REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
READ = (*REQUIRED, "num_key_value_heads", "embedding_size", "window", "global_every", "tied", "norm_eps")
"""Keys of [model] with the names of fields in KEYS. Those of FAMILIES_WITH are read for their families only."""


def read_family_config(folder: str) -> dict[str, Any]:
    """Return config.json with the name of the trainer's family. Raises what `read_config` raises."""
    config = read_config(folder)
    family = str(config.get("model_type"))
    return config | {"model_type": SAME_MODELS[family]} if family in SAME_MODELS else config


def model_of_folder(folder: str) -> dict[str, Any]:
    """Return the keys of [model] that build a folder's model, without dropout; vocab_size only if rows are spare.

    Raises UsageError if there is no config.json or the trainer lacks its family, and DataError if a size is missing.
    """
    config = read_family_config(folder)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UsageError(
            f"{folder} is of the family {family!r}, which the trainer does not have, so its pretraining cannot be "
            f"continued. Families: {', '.join(FAMILIES)}."
        )

    model: dict[str, Any] = {"family": family}
    for theirs, ours in KEYS[family].items():
        if ours in REQUIRED:
            model[str(ours)] = _size(config, theirs, folder)
        elif ours in READ and family in FAMILIES_WITH.get(str(ours), FAMILIES) and config.get(theirs) is not None:
            model[str(ours)] = config[theirs]

    model["max_position_embeddings"] = LONGEST_WITHOUT_POSITIONS
    if family != "xlnet":  # RoBERTa's position table begins with two rows that no token uses
        positions = _size(config, "max_position_embeddings", folder)
        model["max_position_embeddings"] = positions - FAMILIES[family].first_position

    tokens = read_tokens(folder)
    if tokens is not None and "vocab_size" in config and _size(config, "vocab_size", folder) > len(tokens):
        model["vocab_size"] = config["vocab_size"]

    model |= _rope_bases(config, family, folder)
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


def _rope_bases(config: dict[str, Any], family: str, folder: str) -> dict[str, Any]:
    """Return the RoPE bases, which transformers 5 and 4 keep under different keys."""
    parameters = config.get("rope_parameters") or {}
    try:
        everywhere = parameters.get("full_attention", parameters).get("rope_theta")
        in_windows = parameters.get("sliding_attention", {}).get("rope_theta")
    except AttributeError as error:
        raise DataError(f"{folder}/config.json: rope_parameters must be a table of tables or of numbers.") from error
    bases = {
        "rope_base": everywhere or config.get("global_rope_theta") or config.get("rope_theta"),
        "window_rope_base": in_windows or config.get("local_rope_theta"),
    }
    return {name: base for name, base in bases.items() if base is not None and family in FAMILIES_WITH[name]}
