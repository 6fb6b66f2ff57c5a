"""The tokenizer files of an export: those of the run's vocabulary, adapted to the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError
from schemas.vocabulary import TOKENIZER_FILE
from trainer.export.row_format import with_training_rows
from trainer.models.shape import EncoderShape

TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_CLASS = "PreTrainedTokenizerFast"
"""The class with which transformers, 4 or later, uses tokenizer.json unchanged."""

TOKENIZER_PATH_KEYS = (
    "name_or_path",
    "_name_or_path",
    "tokenizer_file",
    "vocab_file",
    "special_tokens_map_file",
    "cache_dir",
    "is_local",
    "local_files_only",
)
"""Keys of a tokenizer_config.json in which transformers keeps what was so on the machine that wrote it."""


def tokenizer_files(vocabulary: Path, shape: EncoderShape) -> dict[str, bytes]:
    """Return the content of the tokenizer files of a run's vocabulary, by name, adapted to the model.

    vocabulary: the folder. Raises DataError if tokenizer_config.json is not a JSON object.
    """
    files = {name: storage.read(str(vocabulary / name)) for name in storage.names(str(vocabulary))}
    config = exported_tokenizer_config(vocabulary / TOKENIZER_CONFIG, shape)
    files[TOKENIZER_FILE] = with_training_rows(files[TOKENIZER_FILE], shape)
    files[TOKENIZER_CONFIG] = (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode()
    return files


def exported_tokenizer_config(path: Path, shape: EncoderShape) -> dict[str, Any]:
    """Return a tokenizer_config.json for a model of this shape, with the other keys of the one at `path`, if any.

    model_max_length makes `truncation=True` cut rows to the model's maximum. token_type_ids are listed for models with
    segments; otherwise transformers would leave them out for ALBERT, and segment B would be read as segment A.
    """
    content = _read_tokenizer_config(path)
    config = portable_config(content) | {"tokenizer_class": TOKENIZER_CLASS}
    if shape.two_streams:
        config["padding_side"] = "left"  # the last token of every row is [CLS], which a classifier reads
    config["model_max_length"] = shape.max_position_embeddings
    config["model_input_names"] = ["input_ids", "attention_mask"]
    if shape.type_vocab_size > 1:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return config


def portable_config(content: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json that any machine and transformers 4 can open, too.

    transformers 5 writes the class TokenizersBackend, which 4 does not have.
    """
    config = {name: value for name, value in content.items() if name not in TOKENIZER_PATH_KEYS}
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = TOKENIZER_CLASS
    return config


def _read_tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}

    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise DataError(
            f"{path} is not the JSON of a tokenizer ({error}). Restore the file from the vocabulary's folder."
        ) from error
    return content
