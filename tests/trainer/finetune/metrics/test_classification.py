"""Accuracy, F1 and Matthews against scikit-learn, on 1,000 random cases each."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from tests.trainer.finetune.metrics.cases import CASES
from trainer.finetune.metrics import classification


def random_case(rng: np.random.Generator, number: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and references: by turns guesses, mostly right ones, constant ones, and missing classes."""
    examples = int(rng.integers(1, 60))
    references = rng.integers(0, classes, examples)
    predictions = rng.integers(0, classes, examples)

    kind = number % 6
    if kind == 1:
        predictions = np.where(rng.random(examples) < 0.8, references, predictions)
    elif kind == 2:
        predictions = np.full(examples, rng.integers(0, classes))
    elif kind == 3:
        references = np.full(examples, rng.integers(0, classes))
    elif kind == 4:
        predictions = np.where(predictions == 0, classes - 1, predictions)
    elif kind == 5:
        references = np.where(references == classes - 1, 0, references)
    return predictions, references


def check_equal(
    ours: Callable[..., float], theirs: Callable[[np.ndarray, np.ndarray], float], classes: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    values = set()
    for number in range(CASES):
        predictions, references = random_case(rng, number, classes[number % len(classes)])
        with warnings.catch_warnings():
            # Undefined values are 0.0, and some cases have a single class.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            warnings.simplefilter("ignore", UserWarning)
            expected = float(theirs(references, predictions))

        value = ours(predictions, references)
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-12), (predictions, references)
        assert value == ours(predictions.tolist(), references.tolist())
        values.add(round(value, 6))

    # The cases are not all the same.
    assert len(values) > 100


def test_accuracy_is_scikit_learn_s() -> None:
    check_equal(classification.accuracy, accuracy_score, classes=(2, 3, 7))


def test_binary_f1_is_scikit_learn_s() -> None:
    check_equal(classification.f1, lambda labels, guesses: f1_score(labels, guesses, labels=[0, 1]), classes=(2,))


def test_micro_f1_is_scikit_learn_s() -> None:
    check_equal(classification.micro_f1, lambda *case: f1_score(*case, average="micro"), classes=(2, 3, 7))


def test_macro_f1_is_scikit_learn_s() -> None:
    check_equal(classification.macro_f1, lambda *case: f1_score(*case, average="macro"), classes=(2, 3, 20))


def test_matthews_is_scikit_learn_s() -> None:
    check_equal(classification.matthews, matthews_corrcoef, classes=(2, 3, 7))


def test_matthews_of_many_examples_is_exact() -> None:
    """The products of the counts are beyond what int64 holds."""
    references = np.repeat([0, 1], 1_500_000)
    predictions = references.copy()
    predictions[:750_000] = 1
    expected = matthews_corrcoef(references, predictions)
    assert classification.matthews(predictions, references) == pytest.approx(expected, rel=1e-12)


def test_macro_f1_leaves_out_classes_that_do_not_occur() -> None:
    """Of ids 0 to 9 only 3 and 7 occur: one is right each time, the other half of the times."""
    assert classification.macro_f1([3, 3, 7, 3], [3, 3, 7, 7]) == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_undefined_values_are_0() -> None:
    assert classification.f1([0, 0], [0, 0]) == 0.0
    assert classification.matthews([1, 1, 1], [0, 1, 1]) == 0.0
    assert classification.matthews([0], [0]) == 0.0


def test_pairs_are_means() -> None:
    predictions, references = [1, 1, 0, 0], [1, 0, 0, 0]
    assert classification.accuracy_and_f1(predictions, references) == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert classification.accuracy_and_macro_f1(predictions, references) == pytest.approx(
        (3 / 4 + (2 / 3 + 4 / 5) / 2) / 2
    )


@pytest.mark.parametrize("metric", [classification.accuracy, classification.macro_f1, classification.matthews])
def test_what_cannot_be_compared_is_refused(metric: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\) and references of shape \(3,\)"):
        metric([0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match="at least one example"):
        metric([], [])
    with pytest.raises(ValueError, match="must be integers, but their type is float64"):
        metric([0.5, 1.0], [0, 1])
