"""Texts: predicts a class or a number for each text or pair of texts, or which of several continuations is right.

For a choice, the context and each continuation make one row, and the head gives each row one logit. Examples may have
different numbers of choices, but a batch is one tensor, so examples with fewer choices get copies of their first row,
whose logits are masked in the loss.

Shape suffixes: B features of a batch, N choices of a feature, R = B * N rows of a batch, T tokens of a row, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from trainer.finetune.examples import ChoiceExample, TextExample
from trainer.finetune.kinds.kind import TARGETS, Feature, Floats, Kind, PredictedLabel

CHOICES = "choices"
"""The input with the number of choices of each feature, which the loss takes and the model does not."""


class _OneLabel(Kind):
    """Predicts one label or position for each example, whose feature has a logit for each of them."""

    def predictions(
        self, examples: Sequence[Any], features: Sequence[Feature], logits: Sequence[Floats]
    ) -> list[PredictedLabel]:
        return [PredictedLabel.of(of_example) for of_example in logits]

    def references(self, examples: Sequence[Any]) -> list[Any]:
        return [example.label for example in examples]


class Classification(_OneLabel):
    """Predicts the most likely class of a text or a pair of texts."""

    model_class = "AutoModelForSequenceClassification"
    pipeline = "text-classification"

    def features(self, examples: Sequence[TextExample]) -> list[Feature]:
        texts = [example.text for example in examples]

        # A task's examples either all have a second text or all lack one.
        second_texts = [example.text_pair for example in examples if example.text_pair is not None]
        rows = self.encoded(texts, second_texts or None)
        return [
            row | {"example": number} | labels_of(example)
            for number, (example, row) in enumerate(zip(examples, rows, strict=True))
        ]

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        return dict(self.tokenizer.pad(features, return_tensors="pt"))

    def logits_of(self, feature: Feature, logits: Floats) -> Floats:
        return logits


class Regression(Classification):
    """Predicts a number for a text or a pair of texts, trained with the squared error."""

    has_classes = False

    def predictions(
        self, examples: Sequence[TextExample], features: Sequence[Feature], logits: Sequence[Floats]
    ) -> list[Any]:
        return [float(logits_C[0]) for logits_C in logits]


class Choice(_OneLabel):
    """Predicts the position of the right continuation of a context, from 0, as in SWAG."""

    model_class = "AutoModelForMultipleChoice"
    pipeline = "multiple-choice"

    def features(self, examples: Sequence[ChoiceExample]) -> list[Feature]:
        contexts: list[str] = []
        choices: list[str] = []
        for example in examples:
            contexts += [example.context] * len(example.choices)
            choices += example.choices

        # Rows come in the order of the choices: all those of the first example, then those of the second.
        rows = iter(self.encoded(contexts, choices))

        features = []
        for number, example in enumerate(examples):
            of_example = [next(rows) for _ in example.choices]
            inputs = {name: [row[name] for row in of_example] for name in of_example[0]}
            features.append(inputs | {"example": number} | labels_of(example))
        return features

    def written(self, prediction: Any) -> Any:
        names = self.task.data.labels
        return names[prediction] if isinstance(names, tuple) else prediction

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        names = [name for name in features[0] if name not in TARGETS]
        counts = [len(feature["input_ids"]) for feature in features]
        most = max(counts)

        columns = {name: [] for name in names}
        for feature in features:
            for name in names:
                rows = feature[name]
                columns[name] += rows + rows[:1] * (most - len(rows))

        padded = self.tokenizer.pad(columns, return_tensors="pt")
        batch = {name: values_RT.view(len(features), most, -1) for name, values_RT in padded.items()}
        batch[CHOICES] = torch.tensor(counts)
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch


def labels_of(example: TextExample | ChoiceExample) -> dict[str, int | float]:
    """Return the target of an example, under the name that models have for it; empty without a label."""
    return {} if example.label is None else {"labels": example.label}


def loss_of_choices(logits_BN: Tensor, choices_B: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean loss of a batch of choices. With a logit of minus infinity, copies get no share and no gradient.

    choices_B: the number of choices of each feature.
    """
    positions_N = torch.arange(logits_BN.shape[1], device=logits_BN.device)
    is_copy_BN = positions_N >= choices_B[:, None]
    return cross_entropy(logits_BN.float().masked_fill(is_copy_BN, float("-inf")), labels_B)
