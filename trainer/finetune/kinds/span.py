"""Spans: the part of a context that answers a question, as in SQuAD 1.1 and 2.0.

A context that is too long for a row is read in windows that share `stride` tokens. A window without the answer, or of
an unanswerable question, points at the row's classification token. The answer is the best span of any window: the
highest sum of a start's and an end's logit, no longer than max_answer_tokens. If questions may be unanswerable, there
is no answer where the sum at the classification token, the lowest of all windows, exceeds that of the best span by more
than a threshold (Devlin et al., arXiv:1810.04805, section 4.3, and google-research/bert's run_squad.py).

Shape suffixes: B features of a batch, T tokens of a row, N candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import SpanExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, Row, host, rows_of

MAX_QUESTION_TOKENS = 64
"""A longer question is cut, as BERT's script does."""

CONTEXT = 1
"""What a tokenizer calls the second text of a row; the question is 0."""

CANDIDATES = 20
"""Starts and ends of a window that are paired: the likeliest ones."""


NOT_OF_CONTEXT = -1
"""In place of the characters of a token of the question, or of a special token."""


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """A window over a context.

    begins_T, ends_T: int32, the characters of each token in the context, or NOT_OF_CONTEXT.
    classification: the place of the token that stands for "no answer here".
    """

    begins_T: NDArray[np.int32]
    ends_T: NDArray[np.int32]
    classification: int

    @property
    def places_N(self) -> NDArray[np.intp]:
        """The places of the context's tokens."""
        return np.flatnonzero(self.begins_T != NOT_OF_CONTEXT)


class Prediction(NamedTuple):
    """The best span of an example: its text, and by how much the logits of "no answer" exceed its own."""

    text: str
    null_score: float


class Spans(Kind[SpanExample, Prediction]):
    """The text of the best span."""

    model_class = "AutoModelForQuestionAnswering"

    @property
    def outputs(self) -> int:
        return 2

    def encode(self, examples: Sequence[SpanExample], first: int) -> list[Feature]:
        questions = [self._shortened(example.question.strip()) for example in examples]
        encoding = self.tokenizer(
            questions,
            [example.context for example in examples],
            truncation="only_second",
            max_length=self.max_length,
            stride=self._stride(),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

        features = []
        for place, row in enumerate(rows_of(encoding)):
            window = self._window(row, encoding.sequence_ids(place), encoding["offset_mapping"][place])
            number = encoding["overflow_to_sample_mapping"][place]
            target = target_of(examples[number], window)
            features.append(Feature(first + number, (row,), target, window))
        return features

    def _window(self, row: Row, texts: Sequence[int | None], offsets: Sequence[tuple[int, int]]) -> Window:
        """Return the window of a row. texts: whether each token is of the question, the context or neither."""
        is_context_T = np.array([text == CONTEXT for text in texts])
        offsets_T2 = np.array(offsets, dtype=np.int32)
        characters_T2 = np.where(is_context_T[:, None], offsets_T2, np.int32(NOT_OF_CONTEXT))

        classification = np.flatnonzero(row.ids_T == self.classification_id)[0]
        return Window(characters_T2[:, 0].copy(), characters_T2[:, 1].copy(), int(classification))

    @property
    def classification_id(self) -> int:
        """The id of the row's classification token, which XLNet has at the end."""
        found = self.tokenizer.cls_token_id
        assert isinstance(found, int)
        return found

    def _shortened(self, question: str) -> str:
        """Return a question of at most MAX_QUESTION_TOKENS tokens, or a quarter of a row if that is less."""
        most = min(MAX_QUESTION_TOKENS, self.max_length // 4)
        offsets = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return question if len(offsets) <= most else question[: offsets[most - 1][1]]

    def _stride(self) -> int:
        """Return the tokens that windows share: fewer than asked if rows are so short that no window would advance."""
        room = self.max_length - self.max_length // 4 - self.tokenizer.num_special_tokens_to_add(pair=True)
        return max(0, min(self.task.training.stride, room // 2))

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        starts_BT = output.start_logits.float()
        ends_BT = output.end_logits.float()
        shifts_B = torch.tensor(self._shifts(features, starts_BT.shape[1]), device=starts_BT.device)
        targets_B2 = torch.tensor([feature.target for feature in features], device=starts_BT.device)
        targets_B2 = targets_B2 + shifts_B[:, None]

        at_starts = F.cross_entropy(starts_BT, targets_B2[:, 0], reduction="sum")
        at_ends = F.cross_entropy(ends_BT, targets_B2[:, 1], reduction="sum")
        return (at_starts + at_ends) / 2

    def _shifts(self, features: Sequence[Feature], longest: int) -> list[int]:
        """Return how far padding moves the tokens of each feature."""
        if self.tokenizer.padding_side != "left":
            return [0] * len(features)
        return [longest - feature.length for feature in features]

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        """Return (2, T) for each window: the logits of starts and of ends."""
        logits_B2T = host(torch.stack([output.start_logits, output.end_logits], dim=1))
        shifts = self._shifts(features, logits_B2T.shape[2])
        return [
            logits_2T[:, shift : shift + feature.length]
            for logits_2T, feature, shift in zip(logits_B2T, features, shifts, strict=True)
        ]

    def predictions(
        self, examples: Sequence[SpanExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[Prediction]:
        best: list[FoundSpan | None] = [None] * len(examples)
        nowhere = [float("inf")] * len(examples)
        for feature, scores_2T in zip(features, scores, strict=True):
            number = feature.example
            nowhere[number] = min(nowhere[number], float(scores_2T[:, feature.part.classification].sum()))

            found = best_span(scores_2T, feature.part, self.task.training.max_answer_tokens)
            former = best[number]
            if found is not None and (former is None or found.score > former.score):
                best[number] = found

        predictions = []
        for example, found, score_of_none in zip(examples, best, nowhere, strict=True):
            if found is None:
                predictions.append(Prediction("", 0.0))
            else:
                predictions.append(Prediction(example.context[found.begin : found.end], score_of_none - found.score))
        return predictions

    def references(self, examples: Sequence[SpanExample]) -> list[Any]:
        return [[answer.text for answer in example.answers] for example in examples]


def target_of(example: SpanExample, window: Window) -> tuple[int, int]:
    """Return the first and the last token of the first answer, or the classification token if it is not inside."""
    nowhere = (window.classification, window.classification)
    if not example.answers:
        return nowhere

    answer = example.answers[0]
    begin = answer.start
    end = answer.start + len(answer.text)

    # Some tokenizers have tokens without any character, which cannot be a part of an answer.
    places_N = np.flatnonzero(window.begins_T < window.ends_T)
    begins_N = window.begins_T[places_N]
    ends_N = window.ends_T[places_N]
    if not len(places_N) or begins_N[0] > begin or ends_N[-1] < end:
        return nowhere

    touched = places_N[(begins_N < end) & (ends_N > begin)]
    return (int(touched[0]), int(touched[-1])) if len(touched) else nowhere


class FoundSpan(NamedTuple):
    """A span of the context in characters, and the sum of its two logits."""

    begin: int
    end: int
    score: float


def best_span(scores_2T: Floats, window: Window, max_tokens: int) -> FoundSpan | None:
    """Return the best span of a window, None if no token of it is of the context. Of equal ones the first."""
    places_N = window.places_N
    if not len(places_N):
        return None

    starts = _likeliest(scores_2T[0], places_N)
    ends = _likeliest(scores_2T[1], places_N)
    pairs = [(start, end) for start in starts for end in ends if start <= end < start + max_tokens]
    if not pairs:
        return None

    def rank(pair: tuple[int, int]) -> tuple[float, int, int]:
        start, end = pair
        return (scores_2T[0, start] + scores_2T[1, end], -start, -end)

    start, end = max(pairs, key=rank)
    score = float(scores_2T[0, start]) + float(scores_2T[1, end])
    return FoundSpan(int(window.begins_T[start]), int(window.ends_T[end]), score)


def _likeliest(logits_T: Floats, places_N: np.ndarray) -> list[int]:
    """Return the places with the highest logits."""
    order = np.argsort(-logits_T[places_N], kind="stable")[:CANDIDATES]
    return [int(place) for place in places_N[order]]
