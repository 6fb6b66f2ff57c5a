"""The metrics by name: every one computes, serves its kinds, and is refused elsewhere with what would serve."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from trainer.finetune.metrics.metric_table import METRICS, metrics_for, unsuitable
from trainer.finetune.task_kinds import RULES

TAGS = ("O", "B-PER", "I-PER")
EXAMPLES: dict[str, tuple[Any, ...]] = {
    "sentence": ([0, 1, 1], [0, 1, 0], ("no", "yes")),
    "pair": (np.array([0, 1, 1]), np.array([0, 1, 0]), ("no", "yes")),
    "choice": ([3, 1, 0], [3, 1, 2], ()),
    "tags": ([[1, 2], [0, 0]], [(1, 2), (0, 1)], TAGS),
    "span": (["the Rhine", "", "Bonn"], [("Rhine",), (), ("Rome",)], ()),
}


@pytest.mark.parametrize("kind", RULES)
def test_every_kind_has_metrics_that_compute(kind: str) -> None:
    assert metrics_for(kind)
    for name in metrics_for(kind):
        assert 0.0 < METRICS[name].function(*EXAMPLES[kind]) < 1.0, name
        assert unsuitable(name, kind, False, 2) is None


@pytest.mark.parametrize(
    ("predictions", "references", "expected"),
    [
        (
            [0, 1, 1, 1],
            [0, 1, 0, 1],
            {"accuracy": 3 / 4, "micro_f1": 3 / 4, "f1": 4 / 5, "macro_f1": 11 / 15, "matthews": 1 / 3**0.5}
            | {"accuracy_and_f1": (3 / 4 + 4 / 5) / 2, "accuracy_and_macro_f1": (3 / 4 + 11 / 15) / 2},
        ),
        (
            [1.0, 2.0, 3.0, 4.0],
            [1.0, 3.0, 2.0, 10.0],
            {"pearson": 13 / 250**0.5, "spearman": 0.8, "pearson_and_spearman": (13 / 250**0.5 + 0.8) / 2},
        ),
    ],
)
def test_scores_are_those_of_the_formulas(predictions: list, references: list, expected: dict[str, float]) -> None:
    assert {name: METRICS[name].function(predictions, references, ()) for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "predictions", "references"),
    [
        ("f1", [0, 0], [0, 0]),
        ("matthews", [1, 1, 1], [0, 1, 1]),
        ("matthews", [0], [0]),
        ("pearson", [0.5, 0.5, 0.5], [1.0, 2.0, 3.0]),
        ("spearman", [1.0, 2.0, 3.0], [4.0, 4.0, 4.0]),
        ("pearson_and_spearman", [1.0], [2.0]),
    ],
)
def test_undefined_values_are_0_without_a_warning(name: str, predictions: list, references: list) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METRICS[name].function(predictions, references, ()) == 0.0


@pytest.mark.parametrize(
    ("name", "kind", "has_numbers", "labels", "reason"),
    [
        ("acuracy", "choice", False, None, 'is not a metric; a task of kind "choice" can have: accuracy'),
        ("f1", "span", False, None, 'does not serve a task of kind "span", which can have: exact_match, answer_f1'),
        ("pearson", "pair", False, 2, 'does not serve a task of kind "pair", which can have: accuracy, f1,'),
        ("accuracy", "pair", True, None, "whose labels are numbers, which can have: pearson, spearman,"),
        ("f1", "sentence", False, 3, "needs two labels, of which the second is the positive one, but there are 3"),
    ],
)
def test_what_does_not_serve_is_refused(
    name: str, kind: str, has_numbers: bool, labels: int | None, reason: str
) -> None:
    answer = unsuitable(name, kind, has_numbers, labels)
    assert answer is not None
    assert reason in answer
