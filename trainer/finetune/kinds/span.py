"""Spans: predicts the part of a context that answers a question, as in SQuAD 1.1 and 2.0.

A context that is too long for a row is read in windows that share `stride` tokens. The target of a window is the answer
if the window contains all of it; otherwise, and for an unanswerable question, it is the classification token.

The predicted answer is the best span over all windows: the span of at most max_answer_tokens with the highest sum of
start logit and end logit. The score of "no answer" is the same sum at the classification token, minimized over the
windows. If it exceeds the score of the best span by more than a threshold, the question gets no answer (Devlin et al.,
arXiv:1810.04805, section 4.3, and google-research/bert's run_squad.py).

Shape suffixes: B features of a batch, T tokens of a row, M tokens of the context in a row, W words of the context,
N candidates or ends. The `offsets` of a feature, int32 (T, 2), are the half-open range of characters of the context
that each token covers, OUTSIDE twice for tokens that are not from the context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.finetune.examples import SpanExample
from trainer.finetune.kinds.kind import TARGETS, Feature, Floats, Kind, blocks, rows_of

MAX_QUESTION_TOKENS = 64
"""A longer question is truncated, as in BERT's script."""

CONTEXT = 1
"""The sequence id that tokenizers give the second text of a row. The question has 0."""

OUTSIDE = -1
"""The character offset of tokens that are not from the context."""

CANDIDATES = 20
"""How many of a window's most likely starts, and how many of its most likely ends, are combined into spans."""

Offsets = NDArray[np.int32]


class Prediction(NamedTuple):
    """The best span of an example: its text, and the score of "no answer" minus the score of the span."""

    text: str
    null_score: float


class FoundSpan(NamedTuple):
    """A span of the context, `context[begin:end]`, and the sum of its start and end logits."""

    begin: int
    end: int
    score: float


class Spans(Kind):
    """Predicts the text of the best span."""

    model_class = "AutoModelForQuestionAnswering"
    pipeline = "question-answering"
    outputs_without_labels = 2
    has_classes = False
    truncates = False

    def features(self, examples: Sequence[SpanExample]) -> list[Feature]:
        features: list[Feature] = []
        for block in blocks(len(examples)):
            features += self._features_of_block(examples[block], block.start)
        return features

    def _features_of_block(self, examples: Sequence[SpanExample], first: int) -> list[Feature]:
        """Return the features of some examples. first: the index of the first of them among all examples."""
        encoding = self.tokenizer(
            self._shortened([example.question.strip() for example in examples]),
            [example.context for example in examples],
            truncation="only_second",
            max_length=self.max_length,
            stride=self._stride(),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

        # An example with a long context has several rows, one per window.
        samples = encoding["overflow_to_sample_mapping"]
        parts = [np.array(encoding.sequence_ids(place), dtype=np.float32) for place in range(len(samples))]
        windows = [np.array(offsets, dtype=np.int32) for offsets in encoding["offset_mapping"]]
        for part_T, offsets_T2 in zip(parts, windows, strict=True):
            # Offsets in the question must not be taken for offsets in the context.
            offsets_T2[part_T != CONTEXT] = OUTSIDE
        for in_block, group in groupby(range(len(samples)), key=samples.__getitem__):
            begin_at_words([windows[place] for place in group], examples[in_block].context)

        features = []
        for row, in_block, part_T, offsets_T2 in zip(rows_of(encoding), samples, parts, windows, strict=True):
            # Special tokens that the tokenizer adds, whose part is NaN, belong to no text. A text may hold another one,
            # as in "<cls>". The classification token is the first token of a row, or in XLNet the last.
            is_added_T = np.isnan(part_T)
            classification = int(np.flatnonzero((row["input_ids"] == self.tokenizer.cls_token_id) & is_added_T)[0])
            start, end = target_of(examples[in_block], offsets_T2) or (classification, classification)

            row |= {"example": first + in_block, "offsets": offsets_T2, "classification": classification}
            features.append(row | {"start_positions": start, "end_positions": end})
        return features

    def _shortened(self, questions: list[str]) -> list[str]:
        """Return questions, each truncated to MAX_QUESTION_TOKENS tokens or a quarter of a row, whichever is less."""
        limit = min(MAX_QUESTION_TOKENS, self.max_length // 4)
        # Not verbose: transformers would warn that questions are longer than a row, which no row will hold.
        encoding = self.tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True, verbose=False)

        shortened = []
        for question, offsets in zip(questions, encoding["offset_mapping"], strict=True):
            if len(offsets) > limit:
                _, end = offsets[limit - 1]
                question = question[:end]
            shortened.append(question)
        return shortened

    def _stride(self) -> int:
        """Return the number of tokens that windows share.

        It is at most half of the room for the context, so that each window advances even if rows are short.
        """
        room = self.max_length - self.max_length // 4 - self.tokenizer.num_special_tokens_to_add(pair=True)
        return max(0, min(self.task.training.stride, room // 2))

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        rows = [{name: value for name, value in feature.items() if name not in TARGETS} for feature in features]
        batch = dict(self.tokenizer.pad(rows, return_tensors="pt"))

        # Targets are positions in the row without padding.
        shifts_B = self.left_padding(batch)
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor([feature[name] for feature in features]) + shifts_B
        return batch

    def logits(self, output: Any, inputs: dict[str, Tensor]) -> Tensor:
        """Return the start and end logits of each token, float32 (B, T, 2)."""
        logits_BT2 = torch.stack([output.start_logits, output.end_logits], dim=2).float()
        return self.padded_right(logits_BT2, inputs)

    def predictions(
        self, examples: Sequence[SpanExample], features: Sequence[Feature], logits: Sequence[Floats]
    ) -> list[Prediction]:
        # Over all windows of an example: the best span, and the lowest score of "no answer".
        best_spans: list[FoundSpan | None] = [None] * len(examples)
        null_logits = [float("inf")] * len(examples)

        for feature, logits_T2 in zip(features, logits, strict=True):
            number = feature["example"]
            null_logit = float(logits_T2[feature["classification"]].sum())
            null_logits[number] = min(null_logits[number], null_logit)

            span = best_span(logits_T2, feature["offsets"], self.task.training.max_answer_tokens)
            best_so_far = best_spans[number]
            if span is not None and (best_so_far is None or span.score > best_so_far.score):
                best_spans[number] = span

        return [
            Prediction(example.context[span.begin : span.end], null_logit - span.score) if span else Prediction("", 0.0)
            for example, span, null_logit in zip(examples, best_spans, null_logits, strict=True)
        ]

    def final(self, predictions: Sequence[Prediction], threshold: float) -> list[Any]:
        return [prediction.text if prediction.null_score <= threshold else "" for prediction in predictions]

    def references(self, examples: Sequence[SpanExample]) -> list[Any]:
        return [[answer.text for answer in example.answers] for example in examples]


def begin_at_words(windows: list[Offsets], context: str) -> None:
    """Make each token begin where the token before it ends, after white space, in all windows over a context.

    The offsets of some tokenizers leave out the first letter of a word, and those of others include the space before
    it. windows: the offsets of each window, changed in place. Together they have all tokens of the context.
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


def target_of(example: SpanExample, offsets_T2: Offsets) -> tuple[int, int] | None:
    """Return the positions of the first and the last token of the example's first answer.

    Returns None if there is no answer, or if the window does not contain the whole of it.
    """
    if not example.answers:
        return None

    answer = example.answers[0]
    begin = answer.start
    end = answer.start + len(answer.text)

    # Tokens outside the context and tokens without text cover no characters.
    begins_T, ends_T = offsets_T2.T
    covering_N = np.flatnonzero(begins_T < ends_T)
    if not len(covering_N):
        return None

    window_begin = begins_T[covering_N[0]]
    window_end = ends_T[covering_N[-1]]
    if begin < window_begin or end > window_end:
        return None

    is_touched_N = (begins_T[covering_N] < end) & (ends_T[covering_N] > begin)
    touched = covering_N[is_touched_N]
    if not len(touched):
        return None
    return int(touched[0]), int(touched[-1])


def best_span(logits_T2: Floats, offsets_T2: Offsets, max_tokens: int) -> FoundSpan | None:
    """Return the span of a window with the best score, the first if several are equal; None if there is no valid span.

    logits_T2: of starts and ends, float32. max_tokens: the maximum number of tokens in an answer.
    """
    places_N = np.flatnonzero(offsets_T2[:, 0] != OUTSIDE)
    if not len(places_N):
        return None

    # A window has thousands of pairs of tokens. The best pair is nearly always among the most likely starts and ends,
    # to which run_squad.py limits the search as well. In the order of the row, the first of equal pairs is found.
    starts_N, ends_N = (np.sort(_likeliest(logits_T2[:, side], places_N)) for side in (0, 1))
    scores_NN = logits_T2[starts_N, 0][:, None] + logits_T2[ends_N, 1]
    lengths_NN = ends_N - starts_N[:, None]
    scores_NN[(lengths_NN < 0) | (lengths_NN >= max_tokens)] = -np.inf

    row, column = np.unravel_index(np.argmax(scores_NN), scores_NN.shape)
    if scores_NN[row, column] == -np.inf:
        return None
    start, end = starts_N[row], ends_N[column]
    score = float(logits_T2[start, 0]) + float(logits_T2[end, 1])
    return FoundSpan(int(offsets_T2[start, 0]), int(offsets_T2[end, 1]), score)


def _likeliest(logits_T: Floats, places_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions with the highest logits, the first ones of equal logits."""
    return places_N[np.argsort(-logits_T[places_N], kind="stable")[:CANDIDATES]]
