"""Pearson and Spearman against scipy, on 1,000 random cases each."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr

from tests.trainer.finetune.metrics.cases import CASES
from trainer.finetune.metrics.correlation import pearson, pearson_and_spearman, ranks, spearman


def random_case(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that are by turns normal, tied, constant, extremely large or small, far from 0, or related."""
    examples = int(rng.integers(2, 60))
    predictions = rng.normal(size=examples)
    references = rng.normal(size=examples)

    kind = number % 8
    if kind == 1:
        predictions, references = predictions.round(), references.round(1)
    elif kind == 2:
        predictions = np.full(examples, predictions[0])
    elif kind == 3:
        references = np.full(examples, references[0])
    elif kind == 4:
        predictions = predictions * 10.0 ** rng.integers(-150, 150)
        references = references * 10.0 ** rng.integers(-150, 150)
    elif kind == 5:
        predictions = np.sign(predictions) * 10.0 ** rng.integers(-120, 120, examples)
    elif kind == 6:
        predictions = predictions + 1e6
    elif kind == 7:
        predictions = references * rng.normal() + rng.normal(size=examples) * 0.01
    return predictions, references


@pytest.mark.parametrize(("ours", "theirs"), [(pearson, pearsonr), (spearman, spearmanr)])
def test_it_is_scipy_s(ours: Callable[..., float], theirs: Callable) -> None:
    rng = np.random.default_rng(0)
    undefined = 0
    for number in range(CASES):
        predictions, references = random_case(rng, number)
        with warnings.catch_warnings():
            # Of constant, and of nearly constant numbers.
            warnings.simplefilter("ignore", RuntimeWarning)
            expected = float(theirs(predictions, references).statistic)

        # Where scipy returns nan, ours is 0.0.
        undefined += int(np.isnan(expected))
        value = ours(predictions, references)
        assert value == pytest.approx(np.nan_to_num(expected), rel=1e-9, abs=1e-9), (predictions, references)
        assert value == ours(predictions.tolist(), references.tolist())

    assert CASES / 5 < undefined < CASES / 3


def test_ranks_are_scipy_s() -> None:
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        values = rng.normal(size=int(rng.integers(1, 60))).round(int(rng.integers(0, 3)))
        assert ranks(values).tolist() == rankdata(values).tolist()


def test_numbers_near_the_limits_of_float64_do_not_overflow() -> None:
    """scipy's mean of these is infinite, and its correlation nan."""
    predictions = np.array([1.5e308, 1.6e308, 1.7e308])
    assert pearson(predictions, [1, 2, 3]) == pytest.approx(1.0)
    assert pearson(-predictions, [1, 2, 3]) == pytest.approx(-1.0)
    assert pearson([0, 5e-324], [0, 1]) == pytest.approx(1.0)


def test_undefined_values_are_0() -> None:
    for metric in (pearson, spearman, pearson_and_spearman):
        assert metric([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) == 0.0
        assert metric([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]) == 0.0
        assert metric([1.0], [1.0]) == 0.0
        assert metric([float("nan"), 1.0], [1.0, 2.0]) == 0.0


def test_infinite_numbers_have_ranks_but_no_mean() -> None:
    predictions = [float("-inf"), 0.0, float("inf")]
    assert spearman(predictions, [1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert pearson(predictions, [1.0, 2.0, 3.0]) == 0.0


def test_the_pair_is_the_mean() -> None:
    predictions, references = [1.0, 2.0, 10.0], [1.0, 3.0, 2.0]
    expected = (pearson(predictions, references) + 0.5) / 2
    assert pearson_and_spearman(predictions, references) == pytest.approx(expected)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\) and references of shape \(3,\)"):
        pearson([0.0, 1.0], [0.0, 1.0, 2.0])
    with pytest.raises(ValueError, match="at least one example"):
        spearman([], [])
