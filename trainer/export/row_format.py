"""Makes an exported tokenizer build the rows that the model was trained on.

Training rows differ in three ways from what many a tokenizer.json does with text:

1. Only the first word of a text gets a space that the text lacks. A tokenizer that adds it to every piece of text
   between special tokens makes `<mask>`, a lone space and `.` of "<mask>.".
2. The mask stands for a word with the space before it, so that the tokenizer removes that space from the text.
3. Every row is [CLS] A [SEP] B [SEP] with segments 0 and 1, or XLNet's A [SEP] B [SEP] [CLS], whatever the vocabulary.

The ids of text without special tokens stay the same.
"""

from __future__ import annotations

import json
from typing import Any

from schemas.vocabulary import SENTENCEPIECE_SPACE, TOKENIZER_FILE, Vocabulary, parse_vocabulary
from trainer.data.permuted import CLASSIFIER_SEGMENT
from trainer.models.shape import EncoderShape

Rules = dict[str, Any]
"""A part of a tokenizer.json, such as its pre_tokenizer."""


def with_training_rows(data: bytes, shape: EncoderShape) -> bytes:
    """Return a tokenizer.json that builds rows as a model of this shape was trained on. data: the vocabulary's."""
    content = json.loads(data)
    vocabulary = parse_vocabulary(data, TOKENIZER_FILE)
    if vocabulary.model == "bytebpe":
        content["pre_tokenizer"] = _with_one_space(content["pre_tokenizer"])
    elif vocabulary.model == "unigram":
        content |= _with_one_mark(content["normalizer"], content["pre_tokenizer"])

    if vocabulary.model != "wordpiece":
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
    if vocabulary.model != "bytebpe":
        return rows
    trim = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "processors": [trim, rows]}
