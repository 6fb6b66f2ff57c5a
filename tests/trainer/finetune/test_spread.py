"""Means, intervals and quartiles of several seeds against scipy.stats and Python's statistics."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats

from trainer.finetune.outcome import shown
from trainer.finetune.results import spread, with_interval


def test_intervals_are_those_of_student_s_t_and_quartiles_those_of_the_standard_library() -> None:
    rng = np.random.default_rng(0)
    for count in (3, 5, 11):
        values = rng.normal(0.7, 0.02, count).tolist()
        low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        assert spread(values) == pytest.approx(
            {
                "mean": statistics.fmean(values),
                "interval": (high - low) / 2,
                "lower_quartile": lower,
                "median": median,
                "upper_quartile": upper,
            }
        )


def test_two_values_and_equal_ones_have_no_interval() -> None:
    for values in ([0.25], [0.2, 0.3], [0.25, 0.25, 0.25]):
        found = spread(values)
        assert found["interval"] is None and with_interval(found) == "0.2500"
    assert shown(spread([0.2, 0.3]), 2) == "0.2500 (2 seeds), median 0.2500"
    assert shown(spread([0.2, 0.3, 0.4]), 3) == "0.3000 ± 0.2484 (95%, 3 seeds), median 0.3000"
    assert found["lower_quartile"] == found["median"] == found["upper_quartile"] == 0.25
