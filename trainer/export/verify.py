"""Verifies an exported folder: transformers must compute the same logits, and its tokenizer build the same rows.

transformers is imported only when a folder is checked. If it is not installed, nothing is checked.

Shape suffixes: T tokens, S sequences, K predicted positions, V vocabulary, 2 the classes of the pair head. One batch
holds one sequence, so S is 1, and all its tokens are predicted, so K is T. A discriminator's logits have no V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, DataError
from schemas.randomness import key, permutation
from schemas.vocabulary import TOKENIZER_FILE, VOCABULARY_FOLDER, Vocabulary
from trainer.data.batches import CLASSIFIER_SEGMENT
from trainer.export.tokenizer import with_training_rows
from trainer.models.batch import PackedBatch
from trainer.models.electra import PartModel
from trainer.models.hf_config import AUTO_CLASSES
from trainer.models.pretraining import PretrainingModel
from trainer.models.shape import EncoderShape
from trainer.models.xlnet import permutation_inputs

LARGEST_DIFFERENCE = 1e-4
"""The largest accepted difference of logits, divided by the largest logit if that is above 1. It is about ten times the
float32 rounding of 24 layers."""
LENGTHS = (1, 5, 17, 40)
"""The lengths, in tokens, of the rows whose logits are compared."""

PUNCTUATED = "{} {}, {} 7 {}5 ({}) {}-{}! {}\u4f60\u597d\u5417 \u5929\u6c14\u3002 {}'s {}: {} {}."
"""A text around words of the vocabulary."""

TEXTS = ("The cats walked home, didn't they?", "Caf\u00e9 3.14, na\u00efve \u4f60\u597d.")
"""Further texts, for vocabularies of few words."""

SHOWN = 4
"""How many tokens of a row that differs are shown."""


def check_export(folder: Path, model: PartModel, vocabulary: Vocabulary, vocabulary_folder: Path) -> float | None:
    """Return the largest relative difference between transformers' logits and ours, or None without transformers.

    vocabulary_folder: the run's. Raises CheckpointError if the difference is above LARGEST_DIFFERENCE or not finite, or
    if the tokenizer does not have the ids of the vocabulary or builds other rows than the model was trained on.
    """
    if find_spec("transformers") is None:
        return None

    check_rows(check_tokenizer(folder, vocabulary), vocabulary_folder, vocabulary, model.shape)
    exported = load_exported(folder, model.shape.family)
    differences = [difference(exported, model, row) for row in sample_rows(model, vocabulary)]

    # torch's maximum of values with a NaN is NaN, which Python's max could lose, and a comparison with NaN is False.
    largest = float(torch.tensor(differences, dtype=torch.float64).max())
    is_close = largest <= LARGEST_DIFFERENCE
    if not is_close:
        raise CheckpointError(
            f"The exported model is not the checkpoint's: transformers' logits differ from ours by {largest:.1e} of "
            f"the largest, expected at most {LARGEST_DIFFERENCE:.0e}. Nothing was published. Try the version of "
            "transformers in constraints.txt, and report this."
        )
    return largest


def load_exported(folder: Path, family: str) -> Any:
    """Return the model of a folder, loaded by the Auto class of its family, in float32, without a progress bar."""
    import transformers

    progress = transformers.utils.logging
    shows_progress = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    model = getattr(transformers, AUTO_CLASSES[family]).from_pretrained(folder, dtype=torch.float32).eval()
    if shows_progress:
        progress.enable_progress_bar()
    return model


def check_tokenizer(folder: Path, vocabulary: Vocabulary) -> Any:
    """Return the folder's tokenizer, loaded by AutoTokenizer.

    Raises CheckpointError if it cannot be loaded or gives a token another id than the vocabulary.
    """
    from transformers import AutoTokenizer

    advice = "Nothing was published. Restore the files of the run's vocabulary/ from the folder of pairs."
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer.get_vocab()
    except Exception as error:  # damaged files make transformers raise many kinds
        raise CheckpointError(
            f"transformers cannot load the exported tokenizer ({type(error).__name__}: {error}). {advice}"
        ) from error

    expected = {token: number for number, token in enumerate(vocabulary.tokens)}
    wrong = sorted(token for token in {*ids, *expected} if ids.get(token) != expected.get(token))
    if wrong:
        first = wrong[0]
        raise CheckpointError(
            f"The exported tokenizer gives {len(wrong):,} tokens other ids than the model was trained with: "
            f"{first!r} is {ids.get(first)}, expected {expected.get(first)}. {advice}"
        )
    return tokenizer


def sample_rows(model: PartModel, vocabulary: Vocabulary) -> list[PackedBatch]:
    """Return rows of random tokens, each in its own batch. They are the same in every export with this vocabulary.

    Of rows of several tokens, one in the middle is the mask, because ESM scales embeddings by the share of masks.
    """
    generator = torch.Generator().manual_seed(key(0, "rows to compare") >> 1)
    ordinary_ids = torch.from_numpy(vocabulary.ordinary_ids.copy())  # the vocabulary's own array is read-only
    longest = model.shape.max_position_embeddings

    rows = []
    for length in LENGTHS:
        places_T = torch.randint(len(ordinary_ids), (min(length, longest),), generator=generator)
        ids_T = ordinary_ids[places_T]
        if len(ids_T) > 1:
            ids_T[len(ids_T) // 2] = vocabulary.special_id("mask")
        rows.append(one_row_batch(ids_T, model.shape.type_vocab_size))
    return rows


def one_row_batch(ids_T: Tensor, segments: int) -> PackedBatch:
    """Return a batch of one sequence whose tokens are all predicted. The second half has the family's last segment."""
    length = len(ids_T)
    positions_T = torch.arange(length)
    zero_S = torch.zeros(1, dtype=torch.int64)
    return PackedBatch(
        ids_T=ids_T,
        segments_T=(positions_T >= length // 2).long() * max(0, segments - 1),
        positions_T=positions_T,
        sequence_T=torch.zeros_like(ids_T),
        sequence_starts_S=zero_S,
        longest=length,
        masked_positions_K=positions_T,
        labels_K=ids_T,
        pair_labels_S=zero_S,
        tokens=length,
        predicted=length,
        paired=1,
    )


@torch.inference_mode()
def difference(exported: Any, model: PartModel, batch: PackedBatch) -> float:
    """Return the largest absolute difference of the two models' logits, divided by the largest logit if above 1."""
    if isinstance(model, PretrainingModel) and model.shape.two_streams:
        both = logit_pairs(exported, model, batch)
        return float(torch.stack([relative_difference(logits, ours) for logits, ours in both]).max())

    inputs = {"input_ids": batch.ids_T[None], "attention_mask": torch.ones_like(batch.ids_T[None])}
    if model.shape.type_vocab_size > 1:
        inputs["token_type_ids"] = batch.segments_T[None]
    output = exported(**inputs).to_tuple()

    mlm_KV, pair_S2 = model.logits(batch)
    expected = [mlm_KV[None]]
    if pair_S2 is not None:
        expected.append(pair_S2)

    pairs = zip(output[: len(expected)], expected, strict=True)
    return float(torch.stack([relative_difference(logits, ours) for logits, ours in pairs]).max())


@torch.inference_mode()
def logit_pairs(exported: Any, model: PretrainingModel, batch: PackedBatch) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of XLNet's logits, transformers' and ours: (T, V) of the content stream, (K, V) of the query stream.

    Every second token of the batch's row is a target. The order of prediction depends only on the row's length. A row
    of one token has no targets, and only the first pair.
    """
    inputs = {"input_ids": batch.ids_T[None], "token_type_ids": batch.segments_T[None]}
    theirs_TV = exported(**inputs).logits[0]
    ours_TV = model.mlm_head(model.encoder(batch), model.encoder.embeddings.token.weight)
    pairs = [(theirs_TV, ours_TV)]

    targets_K = torch.arange(1, batch.tokens, 2)
    if len(targets_K) == 0:
        return pairs

    order_T = torch.full_like(batch.ids_T, -1)
    order_T[targets_K] = torch.from_numpy(permutation(len(targets_K), batch.tokens))
    permuted = replace(batch, masked_positions_K=targets_K, predicted=len(targets_K), order_T=order_T)

    theirs_KV = exported(**inputs, **permutation_inputs(order_T, targets_K)).logits[0]
    ours_KV, _ = model.logits(permuted)
    return [*pairs, (theirs_KV, ours_KV)]


def relative_difference(logits: Tensor, expected: Tensor) -> Tensor:
    """Return the largest absolute difference, divided by the largest expected value if that is above 1, as ()."""
    scale = expected.abs().max().clamp(min=1)
    return (logits - expected).abs().max() / scale


# The rows of the tokenizer
#
# A training row is what the run's own vocabulary makes of text without special tokens, between [CLS] and [SEP]. In
# turn, each token of the sample texts is replaced by the mask, in the row and in the text, as users write a blank. So a
# mask stands before a space, a letter, a digit, punctuation, an ideograph, and at the end.


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

    path = storage.join(folder, VOCABULARY_FOLDER, TOKENIZER_FILE)
    data = storage.read(path)
    try:
        exported = _tokenizer(with_training_rows(data, shape))
    except Exception as error:  # the library raises no narrower class
        raise DataError(
            f"{path}: the tokenizers library cannot read it ({error}). Copy it again, or make the pairs again."
        ) from error

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
    space = vocabulary.kind.is_byte_level  # every word of pairs begins with one
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
        precedes_part = next_begin == end < len(text) and vocabulary.kind.inside_word and text[end].isalnum()
        if is_whole and not follows_space and not precedes_part:
            masked = text[:begin] + vocabulary.tokens[mask_id] + text[end:]
            yield masked, [*ids[:place], mask_id, *ids[place + 1 :]]


def _row(texts: list[str], ids: list[list[int]], vocabulary: Vocabulary, shape: EncoderShape) -> Row:
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
