"""Lays out a histogram of the values that a rule measured, with its threshold at the edge of two bars.

Shares have a linear axis. So do counts, with a bar for each number, if nearly all are small; otherwise their axis is
logarithmic (in one more than the count, so that 0 has a place). Bar 0 of a rule with a greatest value counts what is
exactly 0, because most documents have no repeated line at all. The last bar also counts all that is beyond the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, expm1, floor, log1p
from typing import NamedTuple

from pipeline.filters.rules import Rule
from schemas.charts import HISTOGRAM_HEIGHT, HistogramBar, Level, histogram, short

BINS = 48
"""Bars of a histogram, about: as many as a phone can show. schemas/charts.py would put more than 64 together."""

SMALL = 0.9
"""Share of counts that must be at most BINS for an axis with a bar for each number."""


class Tick(NamedTuple):
    """A label below the axis. x: percent."""

    x: float
    label: str


class ValueBar(NamedTuple):
    """A bar: how it is drawn, the values that it counts in words, and whether these fail the rule."""

    drawn: HistogramBar
    values: str
    fails: bool


@dataclass(frozen=True)
class ValueHistogram:
    """A histogram of values. threshold_x: percent."""

    bars: list[ValueBar]
    levels: list[Level]
    ticks: list[Tick]
    threshold_x: float
    height: int = HISTOGRAM_HEIGHT


@dataclass(frozen=True)
class Scale:
    """Maps values to bars 0 to `last`, each of which `step` is wide on the axis. The threshold is that many steps."""

    last: int
    step: float
    threshold: int
    is_logarithmic: bool
    is_least: bool
    are_whole: bool

    def bar_of(self, value: float, fails: bool) -> int:
        """Return the bar of a value. Rounding errors never take it to the other side of the threshold."""
        steps = (log1p(value) if self.is_logarithmic else value) / self.step
        steps = min(steps, self.last)  # which may be infinite, if the threshold is tiny
        bar = floor(steps) if self.is_least else ceil(steps)
        if self.is_least:
            return min(bar, self.threshold - 1) if fails else max(bar, self.threshold)
        return max(bar, self.threshold + 1) if fails else min(bar, self.threshold)

    def fails(self, bar: int) -> bool:
        """Return whether the values of a bar fail the rule."""
        return bar < self.threshold if self.is_least else bar > self.threshold

    def value(self, steps: int) -> float:
        """Return the value at this many steps from 0."""
        return expm1(steps * self.step) if self.is_logarithmic else steps * self.step

    def label(self, bar: int) -> str:
        """Return a label for the axis below a bar."""
        value = self.value(bar)
        return short(round(value) if self.are_whole else value)

    def in_words(self, bar: int) -> str:
        """Return the values of a bar."""
        first = bar if self.is_least else bar - 1
        if first < 0:
            return "0"

        least, most = self.value(first), self.value(first + 1)
        if self.are_whole:  # the numbers from least up to most, one of which is not among them
            least, most = (ceil(least), ceil(most) - 1) if self.is_least else (floor(least) + 1, floor(most))
        shown = short(least)
        if bar == self.last:
            return f"{shown} or more"
        return shown if most <= least else f"{shown} to {short(most)}"


def value_histogram(counts: Mapping[float, int], rule: Rule, threshold: float | None) -> ValueHistogram:
    """Lay out how often each value was measured; at least one must have been."""
    scale = _scale(counts, threshold or 0.0, rule.is_least)
    heights = [0] * (scale.last + 1)
    for value, count in counts.items():
        heights[scale.bar_of(value, rule.fails(value, threshold))] += count

    laid_out = histogram([0, *heights])
    bars = [(bar, bar.first - 1) for bar in laid_out.bars]
    slot = 100 / (scale.last + 1)
    ticks = dict.fromkeys(round(scale.last * quarter / 4) for quarter in range(5))
    return ValueHistogram(
        bars=[ValueBar(bar, scale.in_words(number), scale.fails(number)) for bar, number in bars],
        levels=laid_out.levels,
        ticks=[Tick(slot * (number + 0.5), scale.label(number)) for number in ticks],
        threshold_x=slot * (scale.threshold if rule.is_least else scale.threshold + 1),
    )


def _scale(counts: Mapping[float, int], threshold: float, is_least: bool) -> Scale:
    top = max(*counts, threshold, 1e-9)
    are_whole = all(float(value).is_integer() for value in (*counts, threshold))
    small = sum(count for value, count in counts.items() if value <= BINS)
    if are_whole and threshold < BINS and small >= SMALL * sum(counts.values()):
        last = max(min(int(top), BINS), int(threshold) + 1)
        return Scale(last, 1.0, int(threshold), is_logarithmic=False, is_least=is_least, are_whole=True)

    is_logarithmic = are_whole or threshold > 1
    if is_logarithmic:
        length, at = log1p(top), log1p(threshold)
    else:
        length, at = min(top, max(1.0, 2 * threshold)), threshold

    # The threshold is a whole number of steps, so that no bar is on both sides of it.
    steps = max(1, min(BINS, floor(BINS * at / length))) if at else 0
    step = at / steps if at else length / BINS
    last = max(ceil(min(length / step, BINS)), steps + 1)
    return Scale(last, step, steps, is_logarithmic, is_least, are_whole)
