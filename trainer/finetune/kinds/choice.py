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
from trainer.finetune.kinds.kind import Feature, Floats, Kind, host


class Choice(Kind[ChoiceExample, int]):
    """The number of the best choice."""

    model_class = "AutoModelForMultipleChoice"

    @property
    def outputs(self) -> int:
        return 1

    def features(self, examples: Sequence[ChoiceExample]) -> list[Feature]:
        contexts = [example.context for example in examples for _ in example.choices]
        choices = [choice for example in examples for choice in example.choices]
        rows = iter(self.encoded(contexts, choices))
        return [
            Feature(i, tuple(next(rows) for _ in example.choices), example.label) for i, example in enumerate(examples)
        ]

    def batch(self, features: Sequence[Feature]) -> dict[str, Tensor]:
        most = max(len(feature.rows) for feature in features)
        filled_up = [row for feature in features for row in _filled_up(feature.rows, most)]
        columns = self.padded(filled_up)
        return {name: values.view(len(features), most, -1) for name, values in columns.items()}

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        logits_BN = output.logits.float()
        choices_B = torch.tensor([len(feature.rows) for feature in features], device=logits_BN.device)
        is_filling_BN = torch.arange(logits_BN.shape[1], device=logits_BN.device) >= choices_B[:, None]
        targets_B = torch.tensor([feature.target for feature in features], device=logits_BN.device)
        return F.cross_entropy(logits_BN.masked_fill(is_filling_BN, float("-inf")), targets_B, reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        logits_BN = host(output.logits)
        return [scores_N[: len(feature.rows)] for scores_N, feature in zip(logits_BN, features, strict=True)]

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[int]:
        return [int(scores_N.argmax()) for scores_N in scores]

    def references(self, examples: Sequence[ChoiceExample]) -> list[Any]:
        return [example.label for example in examples]


def _filled_up(rows: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return rows + rows[:1] * (count - len(rows))
