"""Computes the pseudo-log-likelihood of a sentence under a masked language model.

Each token is masked in turn, and the log-probabilities of the masked tokens are summed (Salazar et al., Masked Language
Model Scoring, arXiv:1910.14659). A word of several tokens then scores too high, because its other tokens give the
masked one away. By default, the later tokens of the same word are therefore masked as well (Kauf and Ivanova, A Better
Way to Do Masked Language Model Scoring, arXiv:2305.10588, "PLL-word-l2r").

Shape suffixes: R rows of a batch, T tokens of a row, H width, V tokens of the vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schemas.errors import DataError
from trainer.finetune.opening import longest_row

TOKENS_AT_ONCE = 8192
"""Maximum tokens per batch."""

ROWS_AT_ONCE = 512
"""Maximum rows per batch. Each row has float32 logits over the vocabulary."""


@dataclass(frozen=True)
class MaskedRow:
    """A sentence with some tokens masked.

    sentence: the index of the sentence. ids: with special tokens. place: the position to predict. target: its token id.
    """

    sentence: int
    ids: tuple[int, ...]
    place: int
    target: int


def max_tokens(config: Any, tokenizer: Any) -> int:
    """Return the maximum number of tokens in a sentence, by the tokenizer and by the encoder's positions."""
    positions = longest_row(config)
    return tokenizer.model_max_length if positions is None else min(tokenizer.model_max_length, positions)


def masked_rows(sentences: Sequence[str], tokenizer: Any, within_words: bool, longest: int) -> list[MaskedRow]:
    """Return one row for each token of each sentence, except special tokens.

    within_words: also mask the later tokens of the same word, as the tokenizer's pre-tokenization defines words.
    longest: the maximum number of tokens in a row.
    Raises DataError for a longer sentence. If it were truncated, its score could not be compared with the other one's.
    """
    encoding = tokenizer(list(sentences), return_special_tokens_mask=True, truncation=False)
    rows = []
    for number in range(len(sentences)):
        ids = encoding["input_ids"][number]
        if len(ids) > longest:
            start = sentences[number][:60]
            raise DataError(
                f"the sentence that begins with {start!r} has {len(ids)} tokens, but the encoder reads at most "
                f"{longest}. Leave out its pair."
            )
        is_special = encoding["special_tokens_mask"][number]
        words = encoding.word_ids(number)
        end_of_word = {word: place for place, word in enumerate(words)}  # the last of its tokens stays
        for place, target in enumerate(ids):
            if is_special[place]:
                continue
            last = end_of_word[words[place]] if within_words else place
            hidden = [tokenizer.mask_token_id] * (last - place + 1)
            rows.append(MaskedRow(number, (*ids[:place], *hidden, *ids[last + 1 :]), place, target))
    return rows


def batches_by_length(rows: Sequence[MaskedRow]) -> Iterator[list[int]]:
    """Yield the indices of the rows of each batch. Rows of a batch have the same length, so there is no padding."""
    by_length: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_length.setdefault(len(row.ids), []).append(number)

    for length, numbers in sorted(by_length.items(), reverse=True):
        size = max(1, min(ROWS_AT_ONCE, TOKENS_AT_ONCE // length))
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size]


@torch.inference_mode()
def log_likelihoods(model: Any, tokenizer: Any, sentences: Sequence[str], within_words: bool) -> list[float]:
    """Return the pseudo-log-likelihood of each sentence, in nats. The model must be in evaluation mode.

    within_words: as in `masked_rows`. Raises DataError for a sentence that is too long for the encoder.
    """
    rows = masked_rows(sentences, tokenizer, within_words, max_tokens(model.config, tokenizer))
    device = next(model.parameters()).device

    found = [0.0] * len(rows)
    for numbers in batches_by_length(rows):
        batch = [rows[number] for number in numbers]
        ids_RT = torch.tensor([row.ids for row in batch], device=device)
        places_R = torch.tensor([row.place for row in batch], device=device)
        targets_R = torch.tensor([row.target for row in batch], device=device)
        logits_RV = logits_at(model, ids_RT, places_R)
        log_probabilities_R = logits_RV.float().log_softmax(dim=-1).gather(1, targets_R[:, None])[:, 0]
        for number, value in zip(numbers, log_probabilities_R.tolist(), strict=True):
            found[number] = value

    # Sum in the order of tokens, so that a sum does not depend on how rows were batched.
    sums = [0.0] * len(sentences)
    for row, value in zip(rows, found, strict=True):
        sums[row.sentence] += value
    return sums


def logits_at(model: Any, ids_RT: Tensor, places_R: Tensor) -> Tensor:
    """Return the logits (R, V) at one position of each row. places_R: these positions."""
    with only_at(model, places_R):
        logits = model(input_ids=ids_RT, attention_mask=torch.ones_like(ids_RT)).logits
    # MobileBERT's head does not call the layer that it names.
    return logits if logits.dim() == 2 else at(places_R, logits)


def at(places_R: Tensor, values_RTX: Tensor) -> Tensor:
    return values_RTX[torch.arange(len(places_R), device=values_RTX.device), places_R]


@contextlib.contextmanager
def only_at(model: Any, places_R: Tensor) -> Iterator[None]:
    """Make the model compute logits over the vocabulary only at one position of each row, if it can.

    Logits at all positions would take most of the memory and, in a small model, most of the time. In transformers,
    `get_output_embeddings` returns the last layer of the head; a hook passes it only the vectors (R, H) needed.
    """
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, torch.nn.Linear):
        yield
        return

    handle = decoder.register_forward_pre_hook(lambda module, arguments: (at(places_R, arguments[0]),))
    try:
        yield
    finally:
        handle.remove()
