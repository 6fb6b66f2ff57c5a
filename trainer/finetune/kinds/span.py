"""Spans: predicts the part of a context that answers a question, as in SQuAD 1.1 and 2.0.

A context that is too long for a row is read in windows that share `stride` tokens (windows.py). The target of a window
is the answer if the window contains all of it; otherwise, and for an unanswerable question, it is the classification
token.

The predicted answer is the best span over all windows: the span of at most max_answer_tokens with the highest sum of
start logit and end logit. The score of "no answer" is the same sum at the classification token, minimized over the
windows. If it exceeds the score of the best span by more than a threshold, the question gets no answer (Devlin et al.,
arXiv:1810.04805, section 4.3, and google-research/bert's run_squad.py).

Shape suffixes: B features of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import SpanExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, blocks, host, rows_of
from trainer.finetune.kinds.windows import OUTSIDE, FoundSpan, Window, begin_at_words, best_span, target_of

MAX_QUESTION_TOKENS = 64
"""A longer question is truncated, as in BERT's script."""

CONTEXT = 1
"""The sequence id that tokenizers give the second text of a row. The question has 0."""


class Prediction(NamedTuple):
    """The best span of an example: its text, and the score of "no answer" minus the score of the span."""

    text: str
    null_score: float


class Spans(Kind[SpanExample, Prediction]):
    """Predicts the text of the best span."""

    model_class = "AutoModelForQuestionAnswering"
    truncates = False

    @property
    def texts_per_row(self) -> int:
        return 2

    @property
    def outputs(self) -> int:
        return 2

    def features(self, examples: Sequence[SpanExample]) -> list[Feature]:
        features: list[Feature] = []
        for block in blocks(len(examples)):
            features += self._features_of_block(examples[block], block.start)
        return features

    def training_features(self, examples: Sequence[SpanExample]) -> list[Feature]:
        # The window of a row takes 8 bytes a token, more than the row itself, and only predictions need it.
        features: list[Feature] = []
        for block in blocks(len(examples)):
            for feature in self._features_of_block(examples[block], block.start):
                features.append(replace(feature, part=None))
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
        windows: dict[int, list[NDArray[np.int32]]] = {}
        for place, in_block in enumerate(samples):
            # Offsets in the question must not be taken for offsets in the context.
            is_context_T = np.array([part == CONTEXT for part in encoding.sequence_ids(place)])
            characters_T2 = np.array(encoding["offset_mapping"][place], dtype=np.int32)
            characters_T2[~is_context_T] = OUTSIDE
            windows.setdefault(in_block, []).append(characters_T2)
        for in_block, of_example in windows.items():
            begin_at_words(of_example, examples[in_block].context)

        features = []
        for place, (row, in_block) in enumerate(zip(rows_of(encoding), samples, strict=True)):
            # Special tokens that the tokenizer adds belong to no text. A text may hold another one, as in "<cls>".
            is_added_T = np.array([part is None for part in encoding.sequence_ids(place)])
            classification = int(np.flatnonzero((row.ids == self.classification_id) & is_added_T)[0])
            window = Window(windows[in_block].pop(0), classification)
            target = target_of(examples[in_block], window)
            features.append(Feature(first + in_block, (row,), target, window))
        return features

    @property
    def classification_id(self) -> int:
        """The id of the classification token, which is the first token of a row, or in XLNet the last."""
        found = self.tokenizer.cls_token_id
        assert isinstance(found, int)
        return found

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

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        starts_BT = output.start_logits.float()
        ends_BT = output.end_logits.float()

        # Targets are positions in the row without padding. The logits include padding, on the left for some tokenizers.
        first_targets = []
        last_targets = []
        for feature, shift in zip(features, self._shifts(features, starts_BT.shape[1]), strict=True):
            first, last = feature.target
            first_targets.append(first + shift)
            last_targets.append(last + shift)

        device = starts_BT.device
        loss_of_starts = F.cross_entropy(starts_BT, torch.tensor(first_targets, device=device), reduction="sum")
        loss_of_ends = F.cross_entropy(ends_BT, torch.tensor(last_targets, device=device), reduction="sum")
        return (loss_of_starts + loss_of_ends) / 2

    def _shifts(self, features: Sequence[Feature], longest: int) -> list[int]:
        """Return by how many positions left padding shifts the tokens of each feature. longest: length of the rows."""
        if self.tokenizer.padding_side != "left":
            return [0] * len(features)
        return [longest - feature.length for feature in features]

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        """Return the start and end logits of each window, float32 (2, T)."""
        logits_B2T = host(torch.stack([output.start_logits, output.end_logits], dim=1))
        shifts = self._shifts(features, logits_B2T.shape[2])

        scores = []
        for logits_2T, feature, shift in zip(logits_B2T, features, shifts, strict=True):
            scores.append(logits_2T[:, shift : shift + feature.length])
        return scores

    def predictions(
        self, examples: Sequence[SpanExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[Prediction]:
        # Over all windows of an example: the best span, and the lowest score of "no answer".
        best_spans: list[FoundSpan | None] = [None] * len(examples)
        null_logits = [float("inf")] * len(examples)

        for feature, scores_2T in zip(features, scores, strict=True):
            number = feature.example
            window: Window = feature.part

            null_logit = float(scores_2T[:, window.classification].sum())
            null_logits[number] = min(null_logits[number], null_logit)

            span = best_span(scores_2T, window, self.task.training.max_answer_tokens)
            best_so_far = best_spans[number]
            if span is not None and (best_so_far is None or span.score > best_so_far.score):
                best_spans[number] = span

        predictions = []
        for example, span, null_logit in zip(examples, best_spans, null_logits, strict=True):
            if span is None:
                predictions.append(Prediction("", 0.0))
            else:
                text = example.context[span.begin : span.end]
                predictions.append(Prediction(text, null_logit - span.score))
        return predictions

    def references(self, examples: Sequence[SpanExample]) -> list[Any]:
        return [[answer.text for answer in example.answers] for example in examples]
