"""Targets and their order are those of a plain loop over words, and have the properties that training relies on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.mask_draws import ORDER_STREAM, STREAM_SIZE
from schemas.masking import KINDS, Masking, RowsToMask
from schemas.ragged import offsets_of
from schemas.randomness import numbers, uniforms
from schemas.vocabulary import Vocabulary, read_vocabulary
from trainer.data.permutations import (
    CONTEXT_STREAM,
    PLACE_IN_ORDER_STREAM,
    SEEN_BY_ALL,
    SPAN_LENGTH_STREAM,
    draw_targets,
)

SPAN_SHARES = 1 / np.arange(1, 6) / (1 / np.arange(1, 6)).sum()
"""Of spans of 1 to 5 words."""
WORD, PIECE = "word", "piece"
SPECIALS = {"[SEP]": "sep", "[CLS]": "cls", "[UNK]": "unk"}


@pytest.fixture(scope="module")
def vocabulary(vocab: Path) -> Vocabulary:
    return read_vocabulary(str(vocab))


def rows_of(tokens: list[list[str]], keys: list[int], vocabulary: Vocabulary) -> RowsToMask:
    """Rows of words, further pieces of words and special tokens. Which word it is makes no difference."""
    flat = [token for row in tokens for token in row]
    ids = [vocabulary.special_id(SPECIALS[t]) if t in SPECIALS else int(vocabulary.ordinary_ids[7]) for t in flat]  # type: ignore[arg-type]
    return RowsToMask(
        ids_T=np.array(ids, dtype=np.uint16),
        offsets_B1=offsets_of(np.array([len(row) for row in tokens])),
        word_starts_T=np.array([token == WORD for token in flat]),
        keys_B=np.array(keys, dtype=np.uint64),
    )


ROW = st.lists(st.sampled_from([WORD, WORD, WORD, PIECE, PIECE, *SPECIALS]), min_size=1, max_size=60)
BATCH = st.lists(st.tuples(ROW, st.integers(0, 2**64 - 1)), min_size=1, max_size=5)


def draw(stream: int, key: int, counter: int) -> float:
    return float(uniforms(np.uint64(key), counter + stream * STREAM_SIZE)[0])


def number(stream: int, key: int, counter: int) -> int:
    return int(numbers(np.uint64(key), counter + stream * STREAM_SIZE)[0])


def words_of(row: list[str]) -> list[list[int]]:
    """The places of each word's tokens."""
    words: list[list[int]] = []
    for place, token in enumerate(row):
        if token in SPECIALS:
            continue
        follows_a_word = place > 0 and row[place - 1] not in SPECIALS
        if token == PIECE and follows_a_word:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def targets_of_row(row: list[str], key: int, prob: float) -> set[int]:
    """One word after the other, as the module's docstring says."""
    words = words_of(row)
    left = max(1, round(len(row) * prob))
    taken: set[int] = set()
    position = 0
    spans = 0
    while left > 0:
        n = 1 + int((draw(SPAN_LENGTH_STREAM, key, spans) >= np.cumsum(SPAN_SHARES)[:-1]).sum())
        n = min(n, left)
        before = int(draw(CONTEXT_STREAM, key, spans) * n / prob)
        following = [i for i, word in enumerate(words) if word[0] >= position + before]
        span: list[int] = []
        for i in following[:n]:
            is_beside = not span or words[i][0] == span[-1] + 1
            if not is_beside or len(span) + len(words[i]) > left:
                break
            span += words[i]
        if not span:
            break
        taken |= set(span)
        left -= len(span)
        position = span[-1] + 1 + max(0, int(len(span) / prob) - before)
        spans += 1

    others = [word for word in words if word[0] not in taken]
    for word in sorted(others, key=lambda word: number(ORDER_STREAM, key, word[0]) >> 32):
        if len(word) <= left:
            taken |= set(word)
            left -= len(word)
    return taken


def order_of_row(row: list[str], key: int, targets: set[int]) -> list[int]:
    placed = [i for i, token in enumerate(row) if i in targets or token in ("[SEP]", "[CLS]")]
    placed.sort(key=lambda place: number(PLACE_IN_ORDER_STREAM, key, place))
    return [placed.index(place) if place in placed else SEEN_BY_ALL for place in range(len(row))]


@settings(max_examples=100)
@given(batch=BATCH, prob=st.sampled_from([1 / 6, 0.15, 0.4]), kind=st.sampled_from(["ngram", *KINDS]))
def test_targets_and_order_are_those_of_a_plain_loop(vocabulary: Vocabulary, batch, prob: float, kind) -> None:
    """The targets of other kinds than spans are those of masks: never a special token."""
    rows = rows_of([row for row, _ in batch], [key for _, key in batch], vocabulary)
    found = draw_targets(rows, Masking(kind, prob), vocabulary)
    assert not vocabulary.is_special_V[rows.ids_T[found.positions_K]].any()
    for r, (row, key) in enumerate(batch):
        start = rows.offsets_B1[r]
        own = found.positions_K[found.offsets_B1[r] : found.offsets_B1[r + 1]] - start
        expected = targets_of_row(row, key, prob) if kind == "ngram" else set(own.tolist())
        assert own.tolist() == sorted(expected)
        order = found.order_T[start : rows.offsets_B1[r + 1]]
        assert order.tolist() == order_of_row(row, key, expected)


LENGTH = 512
ROWS = 300


def test_a_sixth_of_a_row_is_predicted_wherever_it_is(vocabulary: Vocabulary) -> None:
    """85 of 512 tokens, as `num_predict` in zihangdai/xlnet; every part of the row has its share.

    A third of the tokens are further pieces of words.
    """
    rng = np.random.default_rng(0)
    tokens = []
    for _ in range(ROWS):
        words = [WORD if chance > 1 / 3 else PIECE for chance in rng.random(LENGTH - 3)]
        tokens.append([WORD, *words[:250], "[SEP]", *words[251:], "[SEP]", "[CLS]"])
    found = draw_targets(rows_of(tokens, list(range(1, ROWS + 1)), vocabulary), Masking("ngram", 1 / 6), vocabulary)
    counts = np.diff(found.offsets_B1)
    assert np.median(counts) == 85 and counts.min() >= 83  # what is left of a budget may be too little for a word
    places = found.positions_K % LENGTH
    by_part = np.bincount(places // 64, minlength=8) / (ROWS * 64)
    assert by_part == pytest.approx([1 / 6] * 8, rel=0.08)


def test_every_order_is_as_likely(vocabulary: Vocabulary) -> None:
    """Three targets and a [SEP]: 24 orders."""
    rows = rows_of([[WORD, WORD, WORD, "[SEP]"]] * 6000, list(range(6000)), vocabulary)
    found = draw_targets(rows, Masking("token", 0.8), vocabulary)
    orders = found.order_T.reshape(-1, 4)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24 and counts.min() > 190 and counts.max() < 310
