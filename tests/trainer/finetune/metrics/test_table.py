"""The metrics by name: every one computes, serves its kinds, and is refused elsewhere with what would serve."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.finetune.metrics.table import METRICS, default_metrics, metrics_for, unsuitable

KINDS = ("sentence", "pair", "choice", "tags", "span")
TAGS = ("O", "B-PER", "I-PER")
EXAMPLES = {
    "sentence": ([0, 1, 1], [0, 1, 0], ("no", "yes")),
    "pair": (np.array([0, 1, 1]), np.array([0, 1, 0]), ("no", "yes")),
    "choice": ([3, 1, 0], [3, 1, 2], ()),
    "tags": ([[1, 2], [0, 0]], [(1, 2), (0, 1)], TAGS),
    "span": (["the Rhine", "", "Bonn"], [("Rhine",), (), ("Rome",)], ()),
}
NUMBERS = ([0.5, 2.5, 1.0], [1.0, 2.0, 3.0], ())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_metrics_that_compute(kind: str) -> None:
    assert metrics_for(kind)
    for name in metrics_for(kind):
        assert 0.0 < METRICS[name].function(*EXAMPLES[kind]) < 1.0, name
        assert unsuitable(name, kind, False, 2) is None


@pytest.mark.parametrize("kind", ["sentence", "pair"])
def test_numbers_have_metrics_that_compute(kind: str) -> None:
    assert metrics_for(kind, has_numbers=True) == ["pearson", "spearman", "pearson_and_spearman"]
    for name in metrics_for(kind, has_numbers=True):
        assert 0.0 < METRICS[name].function(*NUMBERS) < 1.0, name


def test_values() -> None:
    assert METRICS["accuracy"].function(*EXAMPLES["choice"]) == pytest.approx(2 / 3)
    assert METRICS["accuracy"].function(*EXAMPLES["tags"]) == pytest.approx(3 / 4)
    assert METRICS["chunk_f1"].function(*EXAMPLES["tags"]) == pytest.approx(2 / 3)
    assert METRICS["exact_match"].function(*EXAMPLES["span"]) == pytest.approx(2 / 3)
    assert METRICS["spearman"].function(*NUMBERS) == pytest.approx(0.5)


def test_accuracy_of_tags_takes_arrays() -> None:
    predictions, references = [np.array([1, 2]), np.array([0])], [np.array([1, 0]), np.array([0])]
    assert METRICS["accuracy"].function(predictions, references, TAGS) == pytest.approx(2 / 3)


def test_defaults_serve_their_kind() -> None:
    for kind in KINDS:
        for has_numbers in (False, True) if kind in ("sentence", "pair") else (False,):
            assert default_metrics(kind, has_numbers)
            assert set(default_metrics(kind, has_numbers)) <= set(metrics_for(kind, has_numbers))


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


def test_labels_need_not_be_known_yet() -> None:
    assert unsuitable("f1", "sentence", False, None) is None
