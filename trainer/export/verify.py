"""Verifies an exported folder: transformers must compute the same logits, and its tokenizer build the same rows.

transformers is imported only when a folder is checked. If it is not installed, nothing is checked.

Shape suffixes: T tokens, S sequences, K predicted positions, V vocabulary, 2 the classes of the pair head. One batch
holds one sequence, so S is 1, and all its tokens are predicted, so K is T. A discriminator's logits have no V.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import CheckpointError
from schemas.randomness import key, permutation
from schemas.vocabulary import Vocabulary
from trainer.export.verify_rows import check_rows
from trainer.models.batch import PackedBatch
from trainer.models.electra import PartModel
from trainer.models.hf_config import AUTO_CLASSES
from trainer.models.pretraining import PretrainingModel
from trainer.models.xlnet import permutation_inputs

LARGEST_DIFFERENCE = 1e-4
"""The largest accepted difference of logits, divided by the largest logit if that is above 1. It is about ten times the
float32 rounding of 24 layers."""
LENGTHS = (1, 5, 17, 40)
"""The lengths, in tokens, of the rows that are compared."""


def check_export(folder: Path, model: PartModel, vocabulary: Vocabulary, vocabulary_folder: Path) -> float | None:
    """Return the largest relative difference between transformers' logits and ours, or None without transformers.

    vocabulary_folder: the run's. Raises CheckpointError if the difference is above LARGEST_DIFFERENCE or not finite, or
    if the tokenizer does not have the ids of the vocabulary or builds other rows than the model was trained on.
    """
    if find_spec("transformers") is None:
        return None

    check_rows(check_tokenizer(folder, vocabulary), vocabulary_folder, vocabulary, model.shape)
    import transformers

    auto_class = getattr(transformers, AUTO_CLASSES[model.shape.family])
    with without_progress_bars():
        exported = auto_class.from_pretrained(folder, dtype=torch.float32).eval()
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


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars within the block, unless HF_HUB_DISABLE_PROGRESS_BARS says what to do."""
    from transformers.utils import logging as transformers_logging

    is_shown = transformers_logging.is_progress_bar_enabled()
    if not is_shown or "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ:
        yield
        return

    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


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
    """Return rows of random tokens, each in its own batch. They are the same in every export with this vocabulary."""
    generator = torch.Generator().manual_seed(key(0, "rows to compare") >> 1)
    ordinary_ids = torch.from_numpy(vocabulary.ordinary_ids.copy())  # the vocabulary's own array is read-only
    longest = model.shape.max_position_embeddings

    rows = []
    for length in LENGTHS:
        places_T = torch.randint(len(ordinary_ids), (min(length, longest),), generator=generator)
        rows.append(one_row_batch(ordinary_ids[places_T], model.shape.type_vocab_size))
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
        return float(torch.stack([_relative_difference(logits, ours) for logits, ours in both]).max())

    inputs = {"input_ids": batch.ids_T[None], "attention_mask": torch.ones_like(batch.ids_T[None])}
    if model.shape.type_vocab_size > 1:
        inputs["token_type_ids"] = batch.segments_T[None]
    output = exported(**inputs).to_tuple()

    mlm_KV, pair_S2 = model.logits(batch)
    expected = [mlm_KV[None]]
    if pair_S2 is not None:
        expected.append(pair_S2)

    pairs = zip(output[: len(expected)], expected, strict=True)
    return float(torch.stack([_relative_difference(logits, ours) for logits, ours in pairs]).max())


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


def _relative_difference(logits: Tensor, expected: Tensor) -> Tensor:
    scale = expected.abs().max().clamp(min=1)
    return (logits - expected).abs().max() / scale
