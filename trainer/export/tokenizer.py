"""The tokenizer files of an export: those of the run's vocabulary, adapted so that they build training rows.

Training rows differ in three ways from what many a tokenizer.json does with text:

1. Only the first word of a text gets a space that the text lacks. A tokenizer that adds it to every piece of text
   between special tokens makes `<mask>`, a lone space and `.` of "<mask>.".
2. The mask stands for a word with the space before it, so that the tokenizer removes that space from the text.
3. Every row is [CLS] A [SEP] B [SEP] with segments 0 and 1, or XLNet's A [SEP] B [SEP] [CLS], whatever the vocabulary.

The ids of text without special tokens stay the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError
from schemas.vocabulary import TOKENIZER_FILE, Vocabulary, parse_vocabulary
from schemas.vocabulary_kinds import SENTENCEPIECE_SPACE
from trainer.data.batches import CLASSIFIER_SEGMENT
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


Rules = dict[str, Any]
"""A part of a tokenizer.json, such as its pre_tokenizer."""


def tokenizer_files(vocabulary: Path, shape: EncoderShape) -> dict[str, bytes]:
    """Return the content of the tokenizer files of a run's vocabulary, by name, adapted to the model.

    vocabulary: the folder. Raises DataError if tokenizer_config.json is not a JSON object.
    """
    files = {name: storage.read(str(vocabulary / name)) for name in storage.names(str(vocabulary))}
    try:
        config = _exported_config(json.loads(files.get(TOKENIZER_CONFIG, b"{}")), shape)
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{vocabulary / TOKENIZER_CONFIG} is not the JSON of a tokenizer ({error}). Restore the file from the "
            "vocabulary's folder."
        ) from error

    files[TOKENIZER_FILE] = with_training_rows(files[TOKENIZER_FILE], shape)
    files[TOKENIZER_CONFIG] = (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode()
    return files


def _exported_config(content: dict[str, Any], shape: EncoderShape) -> dict[str, Any]:
    """Return a tokenizer_config.json for a model of this shape, with the other keys of the vocabulary's.

    model_max_length makes `truncation=True` cut rows to the model's maximum. token_type_ids are listed for models with
    segments; otherwise transformers would leave them out for ALBERT, and segment B would be read as segment A.
    """
    config = portable_config(content) | {"tokenizer_class": TOKENIZER_CLASS}
    config.pop("added_tokens_decoder", None)  # would undo what `with_training_rows` says of the mask
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


# ---- tokenizer.json ----


def with_training_rows(data: bytes, shape: EncoderShape) -> bytes:
    """Return a tokenizer.json that builds rows as a model of this shape was trained on. data: the vocabulary's."""
    content = json.loads(data)
    vocabulary = parse_vocabulary(data, TOKENIZER_FILE)
    kind = vocabulary.kind
    if kind.is_byte_level:
        content["pre_tokenizer"] = _with_one_space(content["pre_tokenizer"])
    elif kind.word_start == SENTENCEPIECE_SPACE:
        content |= _with_one_mark(content["normalizer"], content["pre_tokenizer"])

    if kind.word_start:
        for token in content["added_tokens"]:
            token["lstrip"] |= token["id"] == vocabulary.special_id("mask")

    content["post_processor"] = _post_processor(vocabulary, shape)
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _steps(rules: Rules | None, key: str) -> list[Rules]:
    """Return the steps of a normalizer or pre-tokenizer, which is one step, a sequence of them under `key`, or None."""
    if rules is None:
        return []
    return rules[key] if rules["type"] == "Sequence" else [rules]


def _with_one_space(pre_tokenizer: Rules) -> Rules:
    """Return byte-level rules that add a space before the first word of a text, and before no other piece of it."""
    steps = [
        step | {"add_prefix_space": False} if step["type"] == "ByteLevel" else step
        for step in _steps(pre_tokenizer, "pretokenizers")
    ]
    return {"type": "Sequence", "pretokenizers": [_metaspace(" ", split=False), *steps]}


def _with_one_mark(normalizer: Rules | None, pre_tokenizer: Rules) -> Rules:
    """Return sentencepiece's normalizer and pre-tokenizer with a mark before the first word and after each white space.

    Where the pre-tokenizer removes white space first, it cannot tell where a word was glued to a special token, so the
    normalizer makes one space of all white space instead.
    """
    steps = _steps(pre_tokenizer, "pretokenizers")
    if [step["type"] for step in steps] == ["WhitespaceSplit", "Metaspace"]:
        one_space = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
        no_last_space = {"type": "Strip", "strip_left": False, "strip_right": True}
        normalizers = [*_steps(normalizer, "normalizers"), one_space, no_last_space]
        normalizer = {"type": "Sequence", "normalizers": normalizers}
    elif [step["type"] for step in steps] != ["Metaspace"]:
        return {}

    return {"normalizer": normalizer, "pre_tokenizer": _metaspace(SENTENCEPIECE_SPACE, split=True)}


def _metaspace(mark: str, split: bool) -> Rules:
    return {"type": "Metaspace", "replacement": mark, "prepend_scheme": "first", "split": split}


def _post_processor(vocabulary: Vocabulary, shape: EncoderShape) -> Rules:
    """Return the rule for special tokens and segments. Offsets of byte-level tokens leave spaces out."""
    cls = vocabulary.tokens[vocabulary.special_id("cls")]
    sep = vocabulary.tokens[vocabulary.special_id("sep")]

    def special(token: str, segment: int) -> Rules:
        return {"SpecialToken": {"id": token, "type_id": segment}}

    a = {"Sequence": {"id": "A", "type_id": 0}}
    b = {"Sequence": {"id": "B", "type_id": 1}}
    first = [a, special(sep, 0)]
    second = [special(sep, 0)] * (vocabulary.separators - 1) + [b, special(sep, 1)]
    before, after = [special(cls, 0)], []
    if shape.two_streams:
        before, after = [], [special(cls, CLASSIFIER_SEGMENT)]

    rows = {
        "type": "TemplateProcessing",
        "single": [*before, *first, *after],
        "pair": [*before, *first, *second, *after],
        "special_tokens": {
            token: {"id": token, "ids": [vocabulary.tokens.index(token)], "tokens": [token]} for token in (cls, sep)
        },
    }
    if not vocabulary.kind.is_byte_level:
        return rows
    trim = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "processors": [trim, rows]}
