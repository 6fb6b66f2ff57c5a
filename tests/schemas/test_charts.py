"""Charts: few round levels, thinned lines that keep their extremes, and nothing outside of its chart."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.charts import (
    BINS,
    CHART_HEIGHT,
    MAX_POINTS,
    Line,
    bars,
    bins,
    chart,
    mean,
    percent,
    quantile,
    round_levels,
    short,
    thinned,
)
from schemas.pages import render

NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)


@given(NUMBERS, NUMBERS)
def test_levels_are_few_round_and_hold_all_values(a: float, b: float) -> None:
    low, high = sorted([a, b])
    levels = round_levels(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-12)
    assert 2 <= len(levels) <= 6
    assert levels[0] <= low + slack and high - slack <= levels[-1]
    assert levels == sorted(set(levels))


@given(st.lists(NUMBERS, min_size=1, max_size=3 * MAX_POINTS), st.integers(1, MAX_POINTS))
def test_thinning_keeps_extremes_and_order(values: list[float], most: int) -> None:
    lots = thinned(list(enumerate(values)), most)
    assert len(lots) <= most
    assert min(lot[1] for lot in lots) == min(values) and max(lot[3] for lot in lots) == max(values)
    assert [lot[0] for lot in lots] == sorted(lot[0] for lot in lots)
    if len(values) <= most:
        assert [lot[2] for lot in lots] == values


@given(st.lists(st.tuples(st.integers(1, 10**6), NUMBERS), min_size=1, unique_by=lambda point: point[0]))
def test_lines_lie_inside_their_chart(points: list[tuple[int, float]]) -> None:
    points = sorted(points)
    laid_out = chart("Loss", [Line("<name>", "blue", points)], points[-1][0], [], short)
    drawn = render("trainer.metrics", "chart.html", chart=laid_out)
    assert "&lt;name&gt;" in drawn and "<name>" not in drawn
    places = re.findall(r'<polyline class="blue" points="([^"]*)"', drawn)[-1].split()
    assert len(places) == len(points) or laid_out.is_cut
    for place in places:
        x, y = map(float, place.split(","))
        assert 0 <= x <= 1000 and -0.1 <= y <= CHART_HEIGHT + 0.1


def test_the_first_steps_of_a_short_run_do_not_squeeze_the_others() -> None:
    long = [(step, 5 + 9 / step) for step in (1, *range(50, 1001, 50))]
    short_run = [(step, 5 + 9 / step) for step in (1, 50, 100, 150, 200, 257)]
    laid_out = chart("Loss", [Line("a", "blue", long), Line("b", "green", short_run)], 1000, [], short)
    assert laid_out.is_cut and float(laid_out.levels[-1].label) <= 5.5
    assert [tick.label for tick in chart("Loss", [Line("b", "blue", short_run)], 257, [], short).ticks][-2:] == [
        "100",
        "257",
    ]


def test_a_small_share_fills_no_bar() -> None:
    assert [bar.width for bar in bars([("a", 600), ("b", 300)], 1000)] == [100, 50]
    assert [round(bar.width, 3) for bar in bars([("a", 1)], 1000)] == [0.5]


@pytest.mark.parametrize("length", [8, 16, 31, 64, 128, 129, 512, 1000])
@pytest.mark.parametrize("most", [8, BINS])
def test_bins_hold_every_length_once(length: int, most: int) -> None:
    counts = [0, *range(1, length + 1)]
    found = bins(counts, most)
    assert len(found) <= most and sum(n for *_, n in found) == sum(counts)
    assert found[0][0] == 1 and found[-1][1] == length
    assert all(last + 1 == first for (_, last, _), (first, _, _) in pairwise(found))
    assert all(n == sum(range(first, last + 1)) for first, last, n in found)


def test_quantiles() -> None:
    assert [quantile([0, 1, 1, 0, 2], share) for share in (0.25, 0.5, 0.75, 1)] == [1, 2, 4, 4]
    assert mean([0, 1, 1, 0, 2]) == pytest.approx(2.75) and mean([0, 0]) == 0


@pytest.mark.parametrize(
    ("value", "shown"), [(999_999, "1M"), (999.7, "1k"), (12_345, "12.3k"), (0.5, "0.5"), (-1_500, "-1.5k"), (0, "0")]
)
def test_short_numbers_change_their_unit_once_they_are_rounded(value: float, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize(("share", "shown"), [(0.12345, "12.3%"), (9.999, "1,000%"), (12.5, "1,250%")])
def test_percentages_have_no_exponent(share: float, shown: str) -> None:
    assert percent(share) == shown
