"""Windows over a context: locates an answer in a window, and finds the span of a window with the best score.

Shape suffixes: T tokens of a row, M tokens of the context in a row, W words of the context, N candidates or ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.examples import SpanExample
from trainer.finetune.kinds.kind import Floats

OUTSIDE = -1
"""The character offset of tokens that are not from the context."""

CANDIDATES = 20
"""How many of a window's most likely starts, and how many of its most likely ends, are combined into spans."""


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """A window over a context.

    characters_T2: int32 (T, 2), the half-open range of characters of the context that each token covers; OUTSIDE twice
    for tokens that are not from the context.
    classification: the position of the classification token, the target if the window does not contain the answer.
    """

    characters_T2: NDArray[np.int32]
    classification: int


def begin_at_words(windows: list[NDArray[np.int32]], context: str) -> None:
    """Make each token begin where the token before it ends, after white space, in all windows over a context.

    The offsets of some tokenizers leave out the first letter of a word, and those of others include the space before
    it. windows: `characters_T2` of each window, changed in place. Together they have all tokens of the context.
    """
    words = [match.span() for match in re.finditer(r"\S+", context)]
    word_begins_W = np.array([begin for begin, _ in words] + [len(context)], dtype=np.int32)
    word_ends_W = np.array([end for _, end in words], dtype=np.int32)

    ends_N = np.unique(np.concatenate([[0], *(window_T2[:, 1] for window_T2 in windows)]))
    ends_N = ends_N[ends_N != OUTSIDE].astype(np.int32)
    for window_T2 in windows:
        covers_T = window_T2[:, 0] < window_T2[:, 1]
        begins_M, token_ends_M = window_T2[covers_T].T
        free_M = ends_N[np.searchsorted(ends_N, begins_M, side="right") - 1]
        first_M = np.maximum(free_M, word_begins_W[np.searchsorted(word_ends_W, free_M, side="right")])
        for place in np.flatnonzero(first_M < begins_M):
            first_M[place] = _first_visible(context, first_M[place], begins_M[place])
        window_T2[covers_T, 0] = np.minimum(first_M, token_ends_M)


def _first_visible(context: str, begin: int, end: int) -> int:
    """Return the first place from `begin` on, at most `end`, with neither a space nor a control or format character."""
    return next((place for place in range(begin, end) if context[place].isprintable() and context[place] != " "), end)


def target_of(example: SpanExample, window: Window) -> tuple[int, int]:
    """Return the positions of the first and the last token of the example's first answer.

    Both are the position of the classification token if the window does not contain the whole answer.
    """
    nowhere = (window.classification, window.classification)
    if not example.answers:
        return nowhere

    answer = example.answers[0]
    begin = answer.start
    end = answer.start + len(answer.text)

    # Tokens outside the context and tokens without text cover no characters.
    begins_T = window.characters_T2[:, 0]
    ends_T = window.characters_T2[:, 1]
    covering_N = np.flatnonzero(begins_T < ends_T)
    if not len(covering_N):
        return nowhere

    window_begin = begins_T[covering_N[0]]
    window_end = ends_T[covering_N[-1]]
    if begin < window_begin or end > window_end:
        return nowhere

    is_touched_N = (begins_T[covering_N] < end) & (ends_T[covering_N] > begin)
    touched = covering_N[is_touched_N]
    if not len(touched):
        return nowhere
    return int(touched[0]), int(touched[-1])


class FoundSpan(NamedTuple):
    """A span of the context, `context[begin:end]`, and the sum of its start and end logits."""

    begin: int
    end: int
    score: float


def best_span(scores_2T: Floats, window: Window, max_tokens: int) -> FoundSpan | None:
    """Return the span of a window with the best score, the first if several are equal; None if there is no valid span.

    scores_2T: float32 (2, T), the start and end logits. max_tokens: the maximum number of tokens in an answer.
    """
    places_N = np.flatnonzero(window.characters_T2[:, 0] != OUTSIDE)
    if not len(places_N):
        return None

    # A window has thousands of pairs of tokens. The best pair is nearly always among the most likely starts and ends,
    # to which run_squad.py limits the search as well.
    starts = _likeliest(scores_2T[0], places_N)
    ends = _likeliest(scores_2T[1], places_N)

    best: tuple[float, int, int] | None = None
    for start in starts:
        for end in ends:
            if not start <= end < start + max_tokens:
                continue

            # Positions are negated so that, of spans with equal scores, the first one has the largest rank.
            rank = (float(scores_2T[0, start] + scores_2T[1, end]), -start, -end)
            if best is None or rank > best:
                best = rank

    if best is None:
        return None

    start = -best[1]
    end = -best[2]
    return FoundSpan(
        begin=int(window.characters_T2[start, 0]),
        end=int(window.characters_T2[end, 1]),
        score=float(scores_2T[0, start]) + float(scores_2T[1, end]),
    )


def _likeliest(logits_T: Floats, places_N: NDArray[np.int64]) -> list[int]:
    """Return the positions with the highest logits, in descending order; equal logits keep their order."""
    order = np.argsort(-logits_T[places_N], kind="stable")[:CANDIDATES]
    return [int(place) for place in places_N[order]]
