"""Tags: a label for each word, from the vector of its first piece (Devlin et al., arXiv:1810.04805, section 5.3).

A sentence that is longer than a row is cut into parts between words, so that every word gets a tag. A word of which the
tokenizer keeps nothing (some control characters) gets the tag "O", or the first label if there is no "O".

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
    """The words of its example that a feature tags, and the positions of their first pieces in its row.

    Both int32 (W,). Positions are those in the row without padding.
    """

    words: NDArray[np.int32]
    places: NDArray[np.int32]


class Tags(Kind[TagExample, list[int]]):
    """The most likely tag of each word."""

    model_class = "AutoModelForTokenClassification"

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
        """Return the number of pieces of each word."""
        words = sorted({word for example in examples for word in example.words})

        pieces_of: dict[str, int] = {}
        for block in blocks(len(words)):
            sentences_of_one = [[word] for word in words[block]]
            encoding = self.tokenizer(sentences_of_one, is_split_into_words=True, add_special_tokens=False)
            for word, ids in zip(words[block], encoding["input_ids"], strict=True):
                pieces_of[word] = len(ids)
        return pieces_of

    def _feature(self, number: int, example: TagExample, first: int, end: int) -> Feature:
        """Return the feature of the words from `first` to before `end`."""
        encoding = self.tokenizer(
            [list(example.words[first:end])],
            is_split_into_words=True,
            truncation=True,
            max_length=self.max_length,
        )

        # Of several pieces of a word the first one counts. Special tokens belong to no word.
        place_of: dict[int, int] = {}
        for place, word in enumerate(encoding.word_ids(0)):
            if word is not None:
                place_of.setdefault(first + word, place)

        words = Words(np.array(list(place_of), np.int32), np.array(list(place_of.values()), np.int32))
        target = None if example.tags is None else [example.tags[word] for word in place_of]
        return Feature(number, tuple(rows_of(encoding)), target, words)

    def weight(self, feature: Feature) -> int:
        return len(feature.part.words)

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        logits_WC = torch.cat(self._logits_of_words(output.logits.float(), features))
        targets_W = torch.tensor([tag for feature in features for tag in feature.target], dtype=torch.int64)
        return F.cross_entropy(logits_WC, targets_W.to(logits_WC.device), reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        return [host(logits_WC) for logits_WC in self._logits_of_words(output.logits, features)]

    def _logits_of_words(self, logits_BTC: Tensor, features: Sequence[Feature]) -> list[Tensor]:
        """Return (W, C) for each feature."""
        pads_left = self.tokenizer.padding_side == "left"
        logits = []
        for logits_TC, feature in zip(logits_BTC, features, strict=True):
            padding = len(logits_TC) - feature.length if pads_left else 0
            places_W = torch.from_numpy(feature.part.places + padding).long()
            logits.append(logits_TC[places_W.to(logits_TC.device)])
        return logits

    def predictions(
        self, examples: Sequence[TagExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[list[int]]:
        outside = self.labels.index("O") if "O" in self.labels else 0
        tags = [[outside] * len(example.words) for example in examples]
        for feature, scores_WC in zip(features, scores, strict=True):
            for word, best in zip(feature.part.words, np.argmax(scores_WC, axis=-1), strict=True):
                tags[feature.example][word] = int(best)
        return tags

    def references(self, examples: Sequence[TagExample]) -> list[Any]:
        return [list(example.tags or ()) for example in examples]

    def written(self, prediction: list[int]) -> list[str]:
        return [self.labels[tag] for tag in prediction]


def parts(pieces: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Cut a sentence into as few parts as fit: yields (first word, end). pieces: of each word; room: pieces of a part.

    A word that does not fit alone has a part of its own, which is cut; its first piece is there.
    """
    first = 0
    used = 0
    for word, count in enumerate(pieces):
        if word > first and used + count > room:
            yield first, word
            first, used = word, 0
        used += count
    yield first, len(pieces)
