"""Means, intervals and quartiles of several seeds against scipy.stats and Python's statistics."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats

from trainer.finetune.metrics.summary import mean_with_interval, quartiles


def random_values(rng: np.random.Generator) -> list[float]:
    values = rng.normal(rng.normal() * 10, 10.0 ** rng.integers(-6, 6), int(rng.integers(2, 12)))
    return values.tolist()


def test_intervals_are_those_of_student_s_t() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        values = random_values(rng)
        found = mean_with_interval(values)
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert found.mean == pytest.approx(statistics.fmean(values))
        assert (found.low, found.high) == pytest.approx((low, high))
        assert found.count == len(values)


def test_the_interval_holds_the_mean_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    intervals = [mean_with_interval(rng.normal(0.7, 0.02, 5).tolist()) for _ in range(2000)]
    hits = [found.low is not None and found.high is not None and found.low < 0.7 < found.high for found in intervals]
    assert 0.935 < np.mean(hits) < 0.965


def test_one_value_has_no_interval() -> None:
    found = mean_with_interval([0.5])
    assert (found.mean, found.low, found.high, found.count) == (0.5, None, None, 1)


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = mean_with_interval([0.5, 0.5, 0.5])
    assert (found.low, found.high) == (0.5, 0.5)


def test_quartiles_are_those_of_the_standard_library() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        values = random_values(rng)
        found = quartiles(values)
        expected = statistics.quantiles(values, n=4, method="inclusive")
        assert [found.lower, found.median, found.upper] == pytest.approx(expected)
    assert quartiles([0.25]).lower == quartiles([0.25]).upper == 0.25


@pytest.mark.parametrize("values", [[], [0.5, float("nan")], [float("inf")]])
def test_what_cannot_be_summarized_is_refused(values: list[float]) -> None:
    for summarize in (mean_with_interval, quartiles):
        with pytest.raises(ValueError, match="at least one value, all of them finite"):
            summarize(values)
