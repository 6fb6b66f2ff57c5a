"""Single texts and pairs of texts: predicts a class or a number for each.

Shape suffixes: B features of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.finetune.examples import TextExample
from trainer.finetune.kinds.kind import Feature, Floats, Kind, PredictedLabel, host


class Classification(Kind[TextExample, PredictedLabel]):
    """Predicts the most likely class of a text or a pair of texts."""

    model_class = "AutoModelForSequenceClassification"

    @property
    def texts_per_row(self) -> int:
        return 2 if self.task.kind == "pair" else 1

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        texts = [example.text for example in examples]

        # A task's examples either all have a second text or all lack one.
        second_texts = [example.text_pair for example in examples if example.text_pair is not None]
        rows = self.encoded(texts, second_texts or None)

        features = []
        for number, (example, row) in enumerate(zip(examples, rows, strict=True)):
            features.append(Feature(number, (row,), example.label))
        return features

    def weight(self, feature: Feature) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        logits_BC = output.logits.float()
        targets = [feature.target for feature in features]
        targets_B = torch.tensor(targets, device=logits_BC.device)

        return F.cross_entropy(logits_BC, targets_B, reduction="sum")

    def scores(self, output: Any, features: Sequence[Feature]) -> list[Floats]:
        return list(host(output.logits))

    def predictions(
        self, examples: Sequence[TextExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[PredictedLabel]:
        return [PredictedLabel.of(scores_C) for scores_C in scores]

    def references(self, examples: Sequence[TextExample]) -> list[Any]:
        return [example.label for example in examples]

    def label_ids(self, examples: Sequence[TextExample]) -> list[int]:
        return self.references(examples)

    def constant_prediction(self, example: TextExample, label: int) -> PredictedLabel:
        return PredictedLabel(label)

    def written(self, prediction: PredictedLabel) -> str:
        return self.labels[prediction]


class Regression(Classification):
    """Predicts a number for a text or a pair of texts, trained with the squared error."""

    @property
    def outputs(self) -> int:
        return 1

    def loss_sum(self, output: Any, features: Sequence[Feature]) -> Tensor:
        values_B = output.logits.float()[:, 0]

        targets = [feature.target for feature in features]
        targets_B = torch.tensor(targets, dtype=torch.float32, device=values_B.device)

        return F.mse_loss(values_B, targets_B, reduction="sum")

    def predictions(
        self, examples: Sequence[TextExample], features: Sequence[Feature], scores: Sequence[Floats]
    ) -> list[Any]:
        return [float(score[0]) for score in scores]

    def label_ids(self, examples: Sequence[TextExample]) -> list[int]:
        return []

    def written(self, prediction: float) -> Any:
        return prediction
