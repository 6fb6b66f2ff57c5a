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
from trainer.finetune.kinds.kind import Feature, Floats, Kind, blocks, host, rows_of

MAX_QUESTION_TOKENS = 64
"""A longer question is cut, as BERT's script does."""

CONTEXT = 1
"""What a tokenizer calls the second text of a row; the question is 0."""

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

    def features(self, examples: Sequence[SpanExample]) -> list[Feature]:
        features: list[Feature] = []
        for block in blocks(len(examples)):
            features += self._features_of_block(examples[block], block.start)
        return features

    def _features_of_block(self, examples: Sequence[SpanExample], first: int) -> list[Feature]:
        """Return the features of some examples. first: the number of the first example."""
        encoding = self.tokenizer(
            self._shortened([example.question.strip() for example in examples]),
            [example.context for example in examples],
            truncation="only_second",
            max_length=self.max_length,
            stride=self._stride(),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

        features = []
        for place, row in enumerate(rows_of(encoding)):
            # Positions in the question must not be taken for positions in the context.
            is_context_T = np.array([part == CONTEXT for part in encoding.sequence_ids(place)])
            characters_T2 = np.array(encoding["offset_mapping"][place], dtype=np.int32)
            characters_T2[~is_context_T] = OUTSIDE

            classification = int(np.flatnonzero(row.ids == self.classification_id)[0])
            window = Window(characters_T2, classification)

            # A long context has several windows, and so an example several rows.
            in_block = encoding["overflow_to_sample_mapping"][place]
            target = target_of(examples[in_block], window)
            features.append(Feature(first + in_block, (row,), target, window))
        return features

    @property
    def classification_id(self) -> int:
        """The id of the row's classification token, which XLNet has at the end."""
        found = self.tokenizer.cls_token_id
        assert isinstance(found, int)
        return found

    def _shortened(self, questions: list[str]) -> list[str]:
        """Return questions, each cut to MAX_QUESTION_TOKENS tokens, or to a quarter of a row if that is less."""
        limit = min(MAX_QUESTION_TOKENS, self.max_length // 4)
        encoding = self.tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)

        shortened = []
        for question, offsets in zip(questions, encoding["offset_mapping"], strict=True):
            if len(offsets) > limit:
                _, end = offsets[limit - 1]
                question = question[:end]
            shortened.append(question)
        return shortened

    def _stride(self) -> int:
        """Return the tokens that windows share: fewer than asked if rows are so short that no window would advance."""
        room = self.max_length - self.max_length // 4 - self.tokenizer.num_special_tokens_to_add(pair=True)
        return max(0, min(self.task.training.stride, room // 2))

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        starts_BT = output.start_logits.float()
        ends_BT = output.end_logits.float()
        shifts = self._shifts(features, starts_BT.shape[1])
        targets_B2 = torch.tensor(
            [[place + shift for place in feature.target] for feature, shift in zip(features, shifts, strict=True)],
            device=starts_BT.device,
        )
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
    """Return the best span of a window, None if no token of it is of the context. Of equal ones the first."""
    places_N = np.flatnonzero(window.characters_T2[:, 0] != OUTSIDE)
    if not len(places_N):
        return None

    starts = _likeliest(scores_2T[0], places_N)
    ends = _likeliest(scores_2T[1], places_N)
    pairs = [(start, end) for start in starts for end in ends if start <= end < start + max_tokens]
    if not pairs:
        return None

    start, end = max(pairs, key=lambda pair: (scores_2T[0, pair[0]] + scores_2T[1, pair[1]], -pair[0], -pair[1]))
    return FoundSpan(
        begin=int(window.characters_T2[start, 0]),
        end=int(window.characters_T2[end, 1]),
        score=float(scores_2T[0, start]) + float(scores_2T[1, end]),
    )


def _likeliest(logits_T: Floats, places_N: np.ndarray) -> list[int]:
    """Return the places with the highest logits."""
    order = np.argsort(-logits_T[places_N], kind="stable")[:CANDIDATES]
    return [int(place) for place in places_N[order]]
