"""Tags: predicts a label for each word at its first token (Devlin et al., arXiv:1810.04805, section 5.3).

A sentence that is too long for a row is cut between words into parts, so that every word gets a tag. A word for which
the tokenizer returns no token (some control characters) gets the tag "O", or the first label if there is no "O".

Shape suffixes: B features of a batch, T tokens of a row, W words of a feature, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from transformers import DataCollatorForTokenClassification

from trainer.finetune.examples import TagExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, blocks, rows_of

IGNORED = -100
"""The label of tokens that have no loss, in transformers' models."""


class Tags(Kind):
    """Predicts one tag id per word."""

    model_class = "AutoModelForTokenClassification"
    pipeline = "token-classification"
    truncates = False

    def features(self, examples: Sequence[TagExample]) -> list[Feature]:
        special = self.tokenizer.num_special_tokens_to_add(pair=False)

        features = []
        for block in blocks(len(examples)):
            for number, example in enumerate(examples[block], start=block.start):
                whole = self._encoded(example.words, truncation=False)
                cut = [(0, whole)]
                if len(whole["input_ids"][0]) > self.max_length:
                    pieces = Counter(whole.word_ids(0))
                    bounds = parts([pieces[word] for word in range(len(example.words))], self.max_length - special)
                    cut = [(first, self._encoded(example.words[first:end])) for first, end in bounds]
                features += [feature_of(example, first, encoding) | {"example": number} for first, encoding in cut]
        return features

    def _encoded(self, words: Sequence[str], truncation: bool = True) -> Any:
        # Not verbose: transformers would warn that a sentence is longer than a row, which no row will hold.
        settings = {"truncation": truncation, "max_length": self.max_length, "verbose": False}
        return self.tokenizer([list(words)], is_split_into_words=True, **settings)

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        return dict(DataCollatorForTokenClassification(self.tokenizer)(features))

    def logits(self, output: Any, inputs: dict[str, Tensor]) -> Tensor:
        return self.padded_right(output.logits.float(), inputs)

    def predictions(
        self, examples: Sequence[TagExample], features: Sequence[Feature], logits: Sequence[Floats]
    ) -> list[list[int]]:
        outside = self.labels.index("O") if "O" in self.labels else 0
        tags_of_examples = [[outside] * len(example.words) for example in examples]

        for feature, logits_TC in zip(features, logits, strict=True):
            tags = tags_of_examples[feature["example"]]
            best_W = np.argmax(logits_TC[feature["places"]], axis=-1)
            for word, best in zip(feature["words"], best_W, strict=True):
                tags[word] = int(best)
        return tags_of_examples

    def references(self, examples: Sequence[TagExample]) -> list[Any]:
        return [list(example.tags or ()) for example in examples]


def feature_of(example: TagExample, first: int, encoding: Any) -> Feature:
    """Return the feature of a part of an example. first: the index of its first word. encoding: of its words.

    It has `words`, int32 (W,), their indices in the sentence, and `places`, int32 (W,), those of their first tokens in
    the row.
    """
    # If a word has several tokens, the first one carries its tag. Special tokens belong to no word.
    place_of: dict[int, int] = {}
    for place, word in enumerate(encoding.word_ids(0)):
        if word is not None:
            place_of.setdefault(first + word, place)

    (feature,) = rows_of(encoding)
    feature["words"] = np.array(list(place_of.keys()), np.int32)
    feature["places"] = np.array(list(place_of.values()), np.int32)
    if example.tags is not None:
        feature["labels"] = np.full(len(feature["input_ids"]), IGNORED, np.int32)
        feature["labels"][feature["places"]] = np.array(example.tags, np.int32)[feature["words"]]
    return feature


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
