"""Multiple choice: predicts which of several continuations belongs to a context, as in SWAG.

The context and each choice make one row, and the head gives each row one logit. Examples may have different numbers of
choices, but a batch is one tensor, so examples with fewer choices are padded with copies of their first row, whose
logits are ignored.

Shape suffixes: B features of a batch, N choices of a feature, R = B * N rows of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import ChoiceExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, PredictedLabel, Row, host


class Choice(Kind[ChoiceExample, PredictedLabel]):
    """Predicts the position of the best choice, from 0."""

    model_class = "AutoModelForMultipleChoice"

    @property
    def texts_per_row(self) -> int:
        return 2

    @property
    def outputs(self) -> int:
        return 1

    def features(self, examples: Sequence[ChoiceExample]) -> list[Feature]:
        contexts: list[str] = []
        choices: list[str] = []
        for example in examples:
            contexts += [example.context] * len(example.choices)
            choices += example.choices

        # Rows come in the order of the choices: all those of the first example, then those of the second.
        rows = self.encoded(contexts, choices)

        features = []
        first = 0
        for number, example in enumerate(examples):
            end = first + len(example.choices)
            features.append(Feature(number, tuple(rows[first:end]), example.label))
            first = end
        return features

    def batch(self, features: Sequence[Feature]) -> dict[str, Tensor]:
        most = max(len(feature.rows) for feature in features)
        rows: list[Row] = []
        for feature in features:
            rows += filled_up(feature.rows, most)

        batch = {}
        for name, values_RT in self.padded(rows).items():
            batch[name] = values_RT.view(len(features), most, -1)
        return batch

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        logits_BN = output.logits.float()
        device = logits_BN.device

        # With a logit of minus infinity, the copies add nothing to the softmax and get no gradient.
        choices_B = torch.tensor([len(feature.rows) for feature in features], device=device)
        positions_N = torch.arange(logits_BN.shape[1], device=device)
        is_copy_BN = positions_N >= choices_B[:, None]
        logits_BN = logits_BN.masked_fill(is_copy_BN, float("-inf"))

        targets = [feature.target for feature in features]
        targets_B = torch.tensor(targets, device=device)
        return F.cross_entropy(logits_BN, targets_B, reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        logits_BN = host(output.logits)

        # The copies that fill up a feature have no scores.
        scores = []
        for feature, logits_N in zip(features, logits_BN, strict=True):
            choices = len(feature.rows)
            scores.append(logits_N[:choices])
        return scores

    def predictions(
        self, examples: Sequence[ChoiceExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[PredictedLabel]:
        return [PredictedLabel.of(scores_N) for scores_N in scores]

    def references(self, examples: Sequence[ChoiceExample]) -> list[Any]:
        return [example.label for example in examples]

    def label_ids(self, examples: Sequence[ChoiceExample]) -> list[int]:
        return self.references(examples)

    def constant_prediction(self, example: ChoiceExample, label: int) -> PredictedLabel:
        return PredictedLabel(label)


def filled_up(rows: tuple[Row, ...], count: int) -> tuple[Row, ...]:
    """Return `count` rows: the given rows, followed by copies of the first one."""
    copies = (rows[0],) * (count - len(rows))
    return rows + copies
