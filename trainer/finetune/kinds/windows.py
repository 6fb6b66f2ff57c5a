"""Windows over a context: where an answer lies in one, and which span of one has the best score.

Shape suffixes: T tokens of a row, N candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.finetune.examples import SpanExample
from trainer.finetune.kinds.kind import Floats

OUTSIDE = -1
"""Stands in place of a character for tokens that are not from the context."""

CANDIDATES = 20
"""Starts and ends of a window that are paired: the likeliest ones."""


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """A window over a context.

    characters_T2: int32 (T, 2), the characters of the context that each token covers: the first one, and the one after
    the last; OUTSIDE twice for tokens that are not from the context.
    classification: the position of the token that stands for "no answer here".
    """

    characters_T2: NDArray[np.int32]
    classification: int


def target_of(example: SpanExample, window: Window) -> tuple[int, int]:
    """Return the first and the last token of the first answer, or the classification token if it is not inside."""
    nowhere = (window.classification, window.classification)
    if not example.answers:
        return nowhere

    answer = example.answers[0]
    begin = answer.start
    end = answer.start + len(answer.text)

    # Tokens outside of the context, and tokens without any text, cover no character.
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
    """A span of the context in characters, and the sum of its two logits."""

    begin: int
    end: int
    score: float


def best_span(scores_2T: Floats, window: Window, max_tokens: int) -> FoundSpan | None:
    """Return the best span of a window, the first of equal ones; None if no span of the window can be an answer.

    scores_2T: the logits of starts and of ends. max_tokens: the length of the longest answer.
    """
    places_N = np.flatnonzero(window.characters_T2[:, 0] != OUTSIDE)
    if not len(places_N):
        return None

    # All pairs of tokens would be thousands for each window. The best one is nearly always among the likeliest starts
    # and ends, which is where run_squad.py looks as well.
    starts = _likeliest(scores_2T[0], places_N)
    ends = _likeliest(scores_2T[1], places_N)

    best: tuple[float, int, int] | None = None
    for start in starts:
        for end in ends:
            if not start <= end < start + max_tokens:
                continue

            # Negative positions, so that of spans with equal scores the first one is the largest.
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
    """Return the positions with the highest logits, the highest first and of equal ones the first."""
    order = np.argsort(-logits_T[places_N], kind="stable")[:CANDIDATES]
    return [int(place) for place in places_N[order]]
