"""Multiple choice: which of several continuations belongs to a context, as in SWAG.

Each choice makes a row with the context, and the head gives each row one number. Examples may have different numbers of
choices: the rows of a batch are filled up with copies of the first choice, whose numbers are not read.

Shape suffixes: B features of a batch, N choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import ChoiceExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, Row, host


class Choice(Kind[ChoiceExample, int]):
    """The number of the best choice."""

    model_class = "AutoModelForMultipleChoice"

    @property
    def outputs(self) -> int:
        return 1

    def encode(self, examples: Sequence[ChoiceExample], first: int) -> list[Feature]:
        # One row for each choice: the example's context with that choice.
        contexts: list[str] = []
        choices: list[str] = []
        for example in examples:
            contexts += [example.context] * len(example.choices)
            choices += example.choices
        rows = self.encoded(contexts, choices)

        features = []
        begin = 0
        for number, example in enumerate(examples, start=first):
            end = begin + len(example.choices)
            features.append(Feature(number, tuple(rows[begin:end]), example.label))
            begin = end
        return features

    def batch(self, features: Sequence[Feature]) -> dict[str, Tensor]:
        most_choices = max(len(feature.rows) for feature in features)
        rows: list[Row] = []
        for feature in features:
            missing = most_choices - len(feature.rows)
            rows += feature.rows
            rows += [feature.rows[0]] * missing

        # The head takes one row after the other; transformers' models want (B, N, T).
        columns = self.padded(rows)
        return {name: values.view(len(features), most_choices, -1) for name, values in columns.items()}

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        logits_BN = output.logits.float()
        device = logits_BN.device

        # The copies that fill a batch get a probability of zero.
        choices_B = torch.tensor([len(feature.rows) for feature in features], device=device)
        number_N = torch.arange(logits_BN.shape[1], device=device)
        is_copy_BN = number_N >= choices_B[:, None]
        logits_BN = logits_BN.masked_fill(is_copy_BN, float("-inf"))

        targets_B = torch.tensor([feature.target for feature in features], device=device)
        return F.cross_entropy(logits_BN, targets_B, reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        """Return (N,) for each feature: the logits of its own choices."""
        scores = []
        for logits_N, feature in zip(host(output.logits), features, strict=True):
            scores.append(logits_N[: len(feature.rows)])
        return scores

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[int]:
        return [int(scores_N.argmax()) for scores_N in scores]

    def references(self, examples: Sequence[ChoiceExample]) -> list[Any]:
        return [example.label for example in examples]
