"""Verifies that an exported tokenizer builds training rows: the same ids and segments, with and without masks.

A training row is what the run's own vocabulary makes of text without special tokens, between [CLS] and [SEP]. In turn,
each token of the sample texts is replaced by the mask, in the row and in the text, as users write a blank. So a mask
stands before a space, a letter, a digit, punctuation, an ideograph, and at the end.

A run checks the rules of tokenizer.json before its first step (0.1 s of CPU time for 30,000 tokens, 3 s for 250,000),
and an export checks the files that it has written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from schemas import storage
from schemas.errors import CheckpointError, DataError
from schemas.vocabulary import TOKENIZER_FILE, VOCABULARY_FOLDER, Vocabulary
from trainer.data.batches import CLASSIFIER_SEGMENT
from trainer.export.tokenizer import with_training_rows
from trainer.models.shape import EncoderShape

PUNCTUATED = "{} {}, {} 7 {}5 ({}) {}-{}! {}\u4f60\u597d\u5417 \u5929\u6c14\u3002 {}'s {}: {} {}."
"""A text around words of the vocabulary."""

TEXTS = ("The cats walked home, didn't they?", "Caf\u00e9 3.14, na\u00efve \u4f60\u597d.")
"""Further texts, for vocabularies of few words."""

SHOWN = 4
"""How many tokens of a row that differs are shown."""


class Row(NamedTuple):
    """A text with a mask, or a pair of them, and the ids and segments of its training row."""

    texts: list[str]
    ids: list[int]
    segments: list[int]


Build = Callable[[list[str]], tuple[list[int], list[int] | None]]
"""Returns the ids of a text or a pair, and their segments, None for a model without segments."""


def check_rows(exported: Any, vocabulary_folder: Path, vocabulary: Vocabulary, shape: EncoderShape) -> None:
    """Raise CheckpointError if a tokenizer of transformers builds other rows than the model was trained on.

    vocabulary_folder: the run's vocabulary.
    """

    def build(texts: list[str]) -> tuple[list[int], list[int] | None]:
        row = exported(*texts, verbose=False)
        return row["input_ids"], row.get("token_type_ids")

    data = (vocabulary_folder / TOKENIZER_FILE).read_bytes()
    difference = _difference(build, data, vocabulary, shape)
    if difference:
        raise CheckpointError(
            f"The exported tokenizer builds other rows than the model was trained on: {difference}. Nothing was "
            "published. Train with a vocabulary of `clozeline vocab`, and report this."
        )


def check_exportable(folder: str, vocabulary: Vocabulary, shape: EncoderShape) -> None:
    """Raise DataError if no export of a model can have a tokenizer that builds the rows of a folder of pairs.

    Checks tokenizer.json alone, so transformers is not needed; without tokenizers, nothing is checked.
    """
    if find_spec("tokenizers") is None:
        return

    data = storage.read(storage.join(folder, VOCABULARY_FOLDER, TOKENIZER_FILE))
    exported = _tokenizer(with_training_rows(data, shape))

    def build(texts: list[str]) -> tuple[list[int], list[int] | None]:
        row = exported.encode(*texts)
        return row.ids, row.type_ids if shape.type_vocab_size > 1 else None

    difference = _difference(build, data, vocabulary, shape)
    if difference:
        raise DataError(
            f"{folder} was made with a tokenizer that an export of the model could not have: {difference}. Build the "
            "pairs with a vocabulary of `clozeline vocab`, or continue an encoder that has another tokenizer."
        )


def _difference(build: Build, tokenizer_json: bytes, vocabulary: Vocabulary, shape: EncoderShape) -> str | None:
    """Return how the first row that differs from training differs, for a message. tokenizer_json: the run's."""
    for row in _rows(_tokenizer(tokenizer_json), vocabulary, shape):
        ids, segments = build(row.texts)
        what, got, expected = "ids", ids, row.ids
        if ids == row.ids:
            if segments is None or segments == row.segments:
                continue
            what, got, expected = "segments", segments, row.segments

        differs = [ours != theirs for ours, theirs in zip_longest(got, expected)]
        begin = max(0, differs.index(True) - 1)
        shown = [numbers[begin : begin + SHOWN] for numbers in (got, expected)]
        if what == "ids":
            shown = [[vocabulary.tokens[i] if i < vocabulary.size else str(i) for i in ids] for ids in shown]
        return f"of {' and '.join(row.texts)!r} it makes the {what} ... {shown[0]}, expected {shown[1]}"
    return None


def _tokenizer(tokenizer_json: bytes) -> Any:
    """Return a tokenizer that neither cuts nor pads rows, as published ones may."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _rows(own: Any, vocabulary: Vocabulary, shape: EncoderShape) -> Iterator[Row]:
    """Yield the rows of all sample texts: each as it is, and as a pair, with each mask in turn."""
    words = [word for word in map(vocabulary.readable, vocabulary.ordinary_ids.tolist()) if word.isalpha()]
    words = sorted(words, key=len, reverse=True)[: PUNCTUATED.count("{}")] or ["word"]
    places = (words * PUNCTUATED.count("{}"))[: PUNCTUATED.count("{}")]
    texts = (PUNCTUATED.format(*places), *TEXTS)

    plain = [_encoded(own, vocabulary, text)[0] for text in texts]
    for text, ids in zip(texts, plain, strict=True):
        yield _row([text], [ids], vocabulary, shape)
        for masked_text, masked_ids in _masked(own, vocabulary, text):
            yield _row([masked_text], [masked_ids], vocabulary, shape)
            yield _row([masked_text, TEXTS[0]], [masked_ids, plain[1]], vocabulary, shape)


def _encoded(own: Any, vocabulary: Vocabulary, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the ids of a text in the middle of training rows, and their offsets in the text."""
    space = vocabulary.model == "bytebpe"  # every word of pairs begins with one
    encoding = own.encode(f" {text}" if space else text, add_special_tokens=False)
    return encoding.ids, [(max(0, begin - space), max(0, end - space)) for begin, end in encoding.offsets]


def _masked(own: Any, vocabulary: Vocabulary, text: str) -> Iterator[tuple[str, list[int]]]:
    """Yield a text and its ids with one token replaced by the mask, for each token that is a run of whole characters.

    Two cases cannot be written as text: in WordPiece `##ing` after a mask, and in the other models a space before it.
    """
    mask_id = vocabulary.special_id("mask")
    ids, offsets = _encoded(own, vocabulary, text)
    for place, (begin, end) in enumerate(offsets):
        before, last = offsets[place - 1] if place > 0 else (0, 0)
        next_begin = offsets[place + 1][0] if place + 1 < len(ids) else len(text)
        is_whole = last <= begin < end <= next_begin and text[begin:end].strip() and not text[last:begin].strip()
        follows_space = place > 0 and not text[before:last].strip()
        precedes_part = next_begin == end < len(text) and vocabulary.model == "wordpiece" and text[end].isalnum()
        if is_whole and not follows_space and not precedes_part:
            masked = text[:begin] + vocabulary.tokens[mask_id] + text[end:]
            yield masked, [*ids[:place], mask_id, *ids[place + 1 :]]


def _row(texts: list[str], ids: list[list[int]], vocabulary: Vocabulary, shape: EncoderShape) -> Row:
    """Return the training row of one segment or two."""
    cls_id = vocabulary.special_id("cls")
    sep_id = vocabulary.special_id("sep")
    row = [*ids[0], sep_id]
    segments = [0] * len(row)
    for second in ids[1:]:
        between = [sep_id] * (vocabulary.separators - 1)
        row += [*between, *second, sep_id]
        segments += [0] * len(between) + [1] * (len(second) + 1)

    if shape.two_streams:
        return Row(texts, [*row, cls_id], [*segments, CLASSIFIER_SEGMENT])
    return Row(texts, [cls_id, *row], [0, *segments])
