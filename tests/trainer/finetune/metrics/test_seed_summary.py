"""Means, intervals and quartiles of several seeds against scipy.stats and Python's statistics."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats

from trainer.finetune.metrics.seed_summary import mean_with_interval, quartiles


def test_intervals_are_those_of_student_s_t_and_quartiles_those_of_the_standard_library() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 5, 11):
        values = rng.normal(0.7, 0.02, count).tolist()
        found = mean_with_interval(values)
        low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
        assert found.mean == pytest.approx(statistics.fmean(values))
        assert (found.low, found.high) == pytest.approx((low, high))
        assert found.count == count

        middle = quartiles(values)
        expected = statistics.quantiles(values, n=4, method="inclusive")
        assert [middle.lower, middle.median, middle.upper] == pytest.approx(expected)


def test_one_value_has_no_interval() -> None:
    found = mean_with_interval([0.5])
    assert (found.mean, found.low, found.high, found.count) == (0.5, None, None, 1)
    assert quartiles([0.25]).lower == quartiles([0.25]).upper == 0.25


def test_equal_values_have_an_interval_of_no_width() -> None:
    found = mean_with_interval([0.5, 0.5, 0.5])
    assert (found.low, found.high) == (0.5, 0.5)
