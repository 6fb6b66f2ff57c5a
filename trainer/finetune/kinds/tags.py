"""Tags: predicts a label for each word at its first token (Devlin et al., arXiv:1810.04805, section 5.3).

A sentence that is too long for a row is cut between words into parts, so that every word gets a tag. A word for which
the tokenizer returns no token (some control characters) gets the tag "O", or the first label if there is no "O".

Shape suffixes: B features of a batch, T tokens of a row, W words of a feature, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import TagExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, blocks, host, rows_of


@dataclass(frozen=True, eq=False, slots=True)
class Words:
    """The words that a feature tags.

    words: int32 (W,), their indices in the sentence of the example. places: int32 (W,), the positions of their first
    tokens in the feature's row without padding.
    """

    words: NDArray[np.int32]
    places: NDArray[np.int32]


class Tags(Kind[TagExample, list[int]]):
    """Predicts the most likely tag of each word."""

    model_class = "AutoModelForTokenClassification"
    truncates = False

    @property
    def texts_per_row(self) -> int:
        return 1

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def features(self, examples: Sequence[TagExample]) -> list[Feature]:
        special = self.tokenizer.num_special_tokens_to_add(pair=False)
        pieces_of = self._pieces_of_words(examples)

        features = []
        for block in blocks(len(examples)):
            for number, example in enumerate(examples[block], start=block.start):
                pieces = [pieces_of[word] for word in example.words]
                for first, end in parts(pieces, self.max_length - special):
                    features.append(self._feature(number, example, first, end))
        return features

    def _pieces_of_words(self, examples: Sequence[TagExample]) -> dict[str, int]:
        """Return the number of tokens of each distinct word."""
        words = sorted({word for example in examples for word in example.words})

        pieces_of: dict[str, int] = {}
        for block in blocks(len(words)):
            sentences_of_one = [[word] for word in words[block]]
            encoding = self.tokenizer(sentences_of_one, is_split_into_words=True, add_special_tokens=False)
            for word, ids in zip(words[block], encoding["input_ids"], strict=True):
                pieces_of[word] = len(ids)
        return pieces_of

    def _feature(self, number: int, example: TagExample, first: int, end: int) -> Feature:
        """Return the feature of an example's words `first` to `end` - 1. number: the index of the example."""
        encoding = self.tokenizer(
            [list(example.words[first:end])],
            is_split_into_words=True,
            truncation=True,
            max_length=self.max_length,
        )

        # If a word has several tokens, the first one carries its tag. Special tokens belong to no word.
        place_of: dict[int, int] = {}
        for place, word in enumerate(encoding.word_ids(0)):
            if word is not None:
                place_of.setdefault(first + word, place)

        words = Words(
            words=np.array(list(place_of.keys()), np.int32),
            places=np.array(list(place_of.values()), np.int32),
        )

        target = None
        if example.tags is not None:
            target = [example.tags[word] for word in place_of]
        return Feature(number, tuple(rows_of(encoding)), target, words)

    def weight(self, feature: Feature) -> int:
        return len(feature.part.words)

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        # The words of all features of the batch, concatenated.
        logits_WC = torch.cat(self._logits_of_words(output.logits.float(), features))
        targets: list[int] = []
        for feature in features:
            targets += feature.target

        targets_W = torch.tensor(targets, dtype=torch.int64, device=logits_WC.device)
        return F.cross_entropy(logits_WC, targets_W, reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        return [host(logits_WC) for logits_WC in self._logits_of_words(output.logits, features)]

    def _logits_of_words(self, logits_BTC: Tensor, features: Sequence[Feature]) -> list[Tensor]:
        """Return the logits at the first tokens of each feature's words, (W, C)."""
        pads_left = self.tokenizer.padding_side == "left"

        logits = []
        for logits_TC, feature in zip(logits_BTC, features, strict=True):
            padding = len(logits_TC) - feature.length if pads_left else 0
            places_W = torch.from_numpy(feature.part.places + padding)
            places_W = places_W.long().to(logits_TC.device)
            logits.append(logits_TC[places_W])
        return logits

    def predictions(
        self, examples: Sequence[TagExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[list[int]]:
        outside = self.labels.index("O") if "O" in self.labels else 0
        tags_of_examples = []
        for example in examples:
            tags_of_examples.append([outside] * len(example.words))

        for feature, scores_WC in zip(features, scores, strict=True):
            tags = tags_of_examples[feature.example]
            best_W = np.argmax(scores_WC, axis=-1)
            for word, best in zip(feature.part.words, best_W, strict=True):
                tags[word] = int(best)
        return tags_of_examples

    def references(self, examples: Sequence[TagExample]) -> list[Any]:
        return [list(example.tags or ()) for example in examples]

    def label_ids(self, examples: Sequence[TagExample]) -> list[int]:
        ids: list[int] = []
        for tags in self.references(examples):
            ids += tags
        return ids

    def constant_prediction(self, example: TagExample, label: int) -> list[int]:
        return [label] * len(example.words)

    def written(self, prediction: list[int]) -> list[str]:
        return [self.labels[tag] for tag in prediction]


def parts(pieces: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Cut a sentence into as few parts as possible. Yields (first, end) for each part; `end` is exclusive.

    pieces: the number of tokens of each word. room: the maximum number of tokens in a part.
    A word with more tokens than `room` is a part by itself. It is truncated later, but keeps its first token.
    """
    first = 0
    used = 0
    for word, count in enumerate(pieces):
        if word > first and used + count > room:
            yield first, word
            first = word
            used = 0
        used += count
    yield first, len(pieces)
