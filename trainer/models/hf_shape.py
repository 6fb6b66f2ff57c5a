"""Reads the shape of a Hugging Face folder's model as [model] keys, for a recipe that continues its training.

`warm_start` compares the folder with the model that these keys build, down to every tensor. A difference that is not
read here is refused there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.errors import DataError, UsageError
from trainer.config.validate import FAMILIES_WITH
from trainer.models.families import FAMILIES
from trainer.models.hf_files import read_config, read_tokens
from trainer.models.parts import GENERATOR_FOLDER

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")

NAMES_IN_XLNET = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
}

KEYS = {
    "num_key_value_heads": "num_key_value_heads",
    "embedding_size": "embedding_size",
    "window": "local_attention",
    "global_every": "global_attn_every_n_layers",
    "tied": "tie_word_embeddings",
}
"""Keys of [model] that only some families have, with their names in config.json."""

NAMES_OF_EPS = ("layer_norm_eps", "norm_eps", "rms_norm_eps")

LONGEST_WITHOUT_POSITIONS = 512
"""Maximum tokens in a row if config.json has no limit: for XLNet, whose positions are relative."""


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
    for name in SIZES:
        model[name] = _size(config, NAMES_IN_XLNET[name] if family == "xlnet" else name, folder)
    model["max_position_embeddings"] = _longest_row(config, family, folder)

    for name, theirs in KEYS.items():
        if family in FAMILIES_WITH[name] and config.get(theirs) is not None:
            model[name] = config[theirs]
    eps = [config[name] for name in NAMES_OF_EPS if name in config]
    if eps:
        model["norm_eps"] = eps[0]

    tokens = read_tokens(folder)
    if tokens is not None and config.get("vocab_size", 0) > len(tokens):
        model["vocab_size"] = config["vocab_size"]

    model |= _rotations(config, family)
    if family == "albert":
        model |= _sharing(config)
    if family == "electra":
        model |= _generator(folder, model["hidden_size"])
    return model


def _size(config: dict[str, Any], name: str, folder: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise DataError(f"{folder}/config.json: {name} must be a whole number above 0, found {value!r}.")
    return value


def _longest_row(config: dict[str, Any], family: str, folder: str) -> int:
    """Return the maximum tokens in a row. RoBERTa's position table begins with two rows that no token uses."""
    if family == "xlnet":
        return LONGEST_WITHOUT_POSITIONS
    return _size(config, "max_position_embeddings", folder) - FAMILIES[family].first_position


def _rotations(config: dict[str, Any], family: str) -> dict[str, Any]:
    """Return the RoPE bases, which transformers 5 and 4 keep under different keys."""
    if family not in FAMILIES_WITH["rope_base"]:
        return {}

    parameters = config.get("rope_parameters") or {}
    everywhere = parameters.get("full_attention", parameters).get("rope_theta")
    in_windows = parameters.get("sliding_attention", {}).get("rope_theta")
    bases = {
        "rope_base": everywhere or config.get("global_rope_theta") or config.get("rope_theta"),
        "window_rope_base": in_windows or config.get("local_rope_theta"),
    }
    return {name: base for name, base in bases.items() if base is not None and family in FAMILIES_WITH[name]}


def _sharing(config: dict[str, Any]) -> dict[str, Any]:
    """Return what ALBERT's layers share. If there are as many groups as layers, they share nothing."""
    groups = config.get("num_hidden_groups", 1)
    if groups == config["num_hidden_layers"] > 1:
        return {"sharing": "none"}
    return {"num_hidden_groups": groups}


def _generator(folder: str, width: int) -> dict[str, Any]:
    """Return generator_size if the folder has an ELECTRA generator, or else nothing, so that the default applies."""
    generator = Path(folder) / GENERATOR_FOLDER
    if not generator.is_dir():
        return {}
    return {"generator_size": _size(read_config(str(generator)), "hidden_size", str(generator)) / width}
