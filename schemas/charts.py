"""Lays out charts as SVG: lines over a run's steps or hours, drawn by pages/chart.html, and the data card's histograms
and bars, drawn by pages/bars.html.

The SVG's horizontal positions are in percent and its vertical ones in pixels, so that text keeps its size on a phone.
The points of a line cannot be given in percent, so lines are in an inner SVG that is 1000 units wide and stretched.

A histogram is a list whose element i counts the rows of length i.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, floor, log10
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

CHART_HEIGHT = 200  # pixels of a chart above its axis
INNER_WIDTH = 1000  # units of the inner SVG, from step 0 to the last step
MAX_DOTS = 60  # points of a line that has a dot at each, which shows its value
FEW_POINTS = 3  # a line of fewer is shown as a whole
FULL_BAR = 0.2  # the least share of a whole that fills the width of a bar
BINS = 64  # maximum bars of a histogram
HISTOGRAM_HEIGHT = 168  # pixels of a histogram above its axis

MAX_POINTS = 400
"""The most points of a line. If there are more, means are drawn over a band from the lowest to the highest value."""

FIRST_STEPS = 0.1
"""Share of a line's steps that may lie above its chart, if they would squeeze all others into less than half."""

FREE_OF_TICKS = 70
"""Percent of a chart's width from which only the label of the axis's end, such as "1,200 steps", stands below it: on a
phone it takes about a quarter."""

Color = Literal["blue", "orange", "green", "purple", "gray", "red"]
COLORS: tuple[Color, ...] = get_args(Color)  # of a chart's lines, in order

TextOf = Callable[[float], str]  # formats a value as text


class Level(NamedTuple):
    """A horizontal line of a chart: its distance from the top in pixels, and its label."""

    y: float
    label: str


class Tick(NamedTuple):
    """A label below a chart: its distance from the left in percent, its text, and which part of it is there."""

    x: float
    label: str
    anchor: str


@dataclass(frozen=True)
class Line:
    """A named line: (step, value), or (hours, value), in order of steps."""

    name: str
    color: Color
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


class PointGroup(NamedTuple):
    """Adjacent points that are drawn as one: their mean step, and their lowest, mean and highest value."""

    step: float
    lowest: float
    mean: float
    highest: float


@dataclass(frozen=True)
class Dot:
    """A point that shows its value as text. x: percent. y: pixels from the top."""

    x: float
    y: float
    step: float
    text: str


@dataclass(frozen=True)
class DrawnLine:
    """A line in the form that SVG takes. points: of a polyline. band: the points of a polygon, None without a band."""

    name: str
    color: Color
    points: str
    band: str | None
    dots: list[Dot]
    is_dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """A dashed line where the run was resumed after `step`. x: percent."""

    step: int
    x: float


@dataclass(frozen=True)
class Chart:
    """A chart with its title, lines over steps 0 to `last_step`, and axes.

    is_cut: whether first steps lie above it. unit: the name of the horizontal axis's unit.
    """

    title: str
    lines: list[DrawnLine]
    levels: list[Level]
    ticks: list[Tick]
    marks: list[Mark]
    last_step: float
    is_cut: bool = False
    unit: str = "step"
    height: int = CHART_HEIGHT
    inner_width: int = INNER_WIDTH


@dataclass(frozen=True)
class Scale:
    """Maps steps and values to positions in a chart from step 0 to `last_step` and from `low` to `high`."""

    last_step: float
    low: float
    high: float

    def percent(self, step: float) -> float:
        """Return percent from the left."""
        return 100 * step / self.last_step

    def y(self, value: float) -> float:
        """Return pixels from the top."""
        return CHART_HEIGHT * (1 - (value - self.low) / (self.high - self.low))

    def inner_point(self, step: float, value: float) -> str:
        """Return a point of the inner SVG as "x,y"."""
        return f"{INNER_WIDTH * step / self.last_step:.1f},{self.y(value):.1f}"


def chart(title: str, lines: Sequence[Line], last_step: float, resumed_at: Sequence[int], text_of: TextOf) -> Chart:
    """Lay out lines over steps 0 to `last_step`, with marks where the run was resumed. text_of: formats values."""
    whole = extremes([line.points for line in lines])
    low, high = _range_shown(lines, whole)
    levels = round_levels(low, high)
    # Rounding errors must not cut off the values at the ends.
    scale = Scale(last_step, low=min(levels[0], low), high=max(levels[-1], high))

    return Chart(
        title=title,
        lines=[_drawn(line, scale, text_of) for line in lines],
        levels=[Level(scale.y(level), text_of(level)) for level in levels],
        ticks=ticks(last_step),
        marks=[Mark(step, scale.percent(step)) for step in resumed_at if step <= last_step],
        last_step=last_step,
        is_cut=(low, high) != whole,
    )


def extremes(lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Return the lowest and the highest value of the points of several lines, of which one has a point."""
    values = [value for points in lines for _, value in points]
    return min(values), max(values)


def _range_shown(lines: Sequence[Line], whole: tuple[float, float]) -> tuple[float, float]:
    """Return the lowest and the highest value to show. The highest is without first steps that are far above it.

    First steps below all others, as of a rate that warms up, are part of the picture. whole: those of all steps.
    """
    later = []
    for line in lines:
        first = FIRST_STEPS * line.points[-1][0] if len(line.points) >= FEW_POINTS else 0
        later.append(line.points[bisect_left(line.points, first, key=itemgetter(0)) :])
    low, high = whole[0], extremes(later)[1]
    return (low, high) if 0 < high - low < (whole[1] - whole[0]) / 2 else whole


def ticks(last: float) -> list[Tick]:
    """Return labels of an axis from 0 to `last`: at round numbers, and at its end."""
    placed = [(100 * value / last, value) for value in round_levels(0, last)]
    round_ones = [Tick(x, f"{value:,.10g}", "middle" if x else "start") for x, value in placed if x < FREE_OF_TICKS]
    return [*round_ones, Tick(100, f"{last:,.10g}", "end")]


def chart_over_hours(title: str, lines: Sequence[Line], text_of: TextOf) -> Chart:
    """Lay out lines whose points are (hours, value), from 0 hours to the last point."""
    last = max(hours for line in lines for hours, _ in line.points)
    # For a run of seconds, show enough decimals to reach the first digit that is not 0.
    digits = 0 if last >= 10 else max(1, 1 - floor(log10(max(last, 1e-6))))

    rounded = [
        replace(line, points=[(round(hours, digits + 1), value) for hours, value in line.points]) for line in lines
    ]
    drawn = chart(title, rounded, max(round(last, digits + 1), 1e-6), [], text_of)
    return replace(drawn, unit="hour")


def round_levels(low: float, high: float) -> list[float]:
    """Return two to six levels at round numbers, the first at or below `low` and the last at or above `high`."""
    # Equal values, or nearly equal ones, still get a scale with some height.
    span = max(high - low, abs(high) * 0.02) or 1.0
    power = 10.0 ** floor(log10(span / 4))
    step = next(digit * power for digit in (1, 2, 5, 10) if span / (digit * power) <= 4)

    # The slack keeps rounding errors from adding a level beyond a value that is exactly on one.
    first = floor(low / step + 1e-9)
    last = max(ceil(high / step - 1e-9), first + 1)
    return [number * step for number in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]], max_groups: int) -> list[PointGroup]:
    """Return at most `max_groups` groups of adjacent points, all of the same size except the last."""
    size = ceil(len(points) / max_groups)
    groups = []
    for start in range(0, len(points), size):
        steps, values = zip(*points[start : start + size], strict=True)
        groups.append(PointGroup(sum(steps) / len(steps), min(values), sum(values) / len(values), max(values)))
    return groups


def _drawn(line: Line, scale: Scale, text_of: TextOf) -> DrawnLine:
    points = line.points
    low, high = extremes([points])
    if low < scale.low or high > scale.high:
        points = [(step, value) for step, value in points if scale.low <= value <= scale.high]
    groups = thinned(points, MAX_POINTS)
    means = [scale.inner_point(group.step, group.mean) for group in groups]

    band = None
    if len(groups) < len(points):
        # The polygon goes along the lowest values, and back along the highest.
        lower_edge = [scale.inner_point(group.step, group.lowest) for group in groups]
        upper_edge = [scale.inner_point(group.step, group.highest) for group in reversed(groups)]
        band = " ".join(lower_edge + upper_edge)

    with_dots = points if len(points) <= MAX_DOTS else []
    dots = [Dot(scale.percent(step), scale.y(value), step, text_of(value)) for step, value in with_dots]
    return DrawnLine(line.name, line.color, " ".join(means), band, dots, line.is_dashed)


def short(value: float) -> str:
    """Return a number with three significant digits. Example: `short(12345)` -> `"12.3k"`."""
    rounded = float(f"{value:.3g}")
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= unit:
            return f"{rounded / unit:.3g}{name}"
    return f"{rounded:.3g}"


def percent(share: float) -> str:
    """Return a share of one in percent with three significant digits. Example: `percent(0.12345)` -> `"12.3%"`."""
    return f"{100 * share:.3g}%" if share < 9.995 else f"{100 * share:,.0f}%"


# Histograms and bars


@dataclass(frozen=True)
class HistogramBar:
    """One bar and the slot that it occupies. x, slot_x, width, slot_width: percent. height: pixels.

    first, last: the lengths that it counts. is_broken: whether it exceeds the axis, and is drawn with a gap.
    """

    first: int
    last: int
    count: int
    x: float
    width: float
    slot_x: float
    slot_width: float
    height: float
    is_broken: bool


@dataclass(frozen=True)
class Histogram:
    """A histogram with its axes and the facts stated below it.

    max_length: where the horizontal axis ends. mean_x: percent. full_share: the share of rows with max_length.
    """

    bars: list[HistogramBar]
    levels: list[Level]
    max_length: int
    mean: float
    mean_x: float
    median: int
    full_share: float
    height: int = HISTOGRAM_HEIGHT


@dataclass(frozen=True)
class Bar:
    """A named count, its share of a whole, and the width of its bar in percent of the longest one."""

    name: str
    count: int
    share: float
    width: float


@dataclass(frozen=True)
class Part:
    """One part of a divided bar, its share of that bar, and the CSS class that colors it."""

    name: str
    count: int
    share: float
    css_class: str


def bins(counts: list[int], max_bins: int) -> list[tuple[int, int, int]]:
    """Return (first length, last length, rows) for at most `max_bins` ranges of equal width.

    The first range begins at length 1, since no row has length 0. The last may be narrower than the others.
    """
    longest = len(counts) - 1
    width = max(1, -(-longest // max_bins))  # rounded up
    starts = range(1, longest + 1, width)
    return [(first, min(first + width - 1, longest), sum(counts[first : first + width])) for first in starts]


def mean(counts: list[int]) -> float:
    """Return the mean length, or 0 if the histogram is empty."""
    total = sum(length * rows for length, rows in enumerate(counts))
    return total / max(sum(counts), 1)


def quantile(counts: list[int], share: float) -> int:
    """Return the smallest length that at least this share of the rows does not exceed, or 0 if there are none."""
    rows_needed = share * sum(counts)
    return next((length for length, so_far in enumerate(accumulate(counts)) if so_far >= rows_needed), 0)


def histogram(counts: list[int]) -> Histogram:
    """Lay out a histogram. A bar that is far higher than all others is broken and labeled with its count."""
    ranges = bins(counts, BINS)
    ceiling = _ceiling([count for _, _, count in ranges])
    longest = ranges[-1][1]
    levels = round_levels(0, max(ceiling, 4))  # from a ceiling of 4 on, levels are whole numbers
    mean_length = mean(counts)

    return Histogram(
        bars=[_histogram_bar(*one, ceiling, longest) for one in ranges if one[2] > 0],
        levels=[Level(HISTOGRAM_HEIGHT * (1 - count / ceiling), short(count)) for count in levels if count <= ceiling],
        max_length=longest,
        mean=mean_length,
        mean_x=100 * mean_length / longest,
        median=quantile(counts, 0.5),
        full_share=counts[-1] / max(sum(counts), 1),
    )


def _ceiling(heights: list[int]) -> float:
    """Return the count where the vertical axis ends.

    This is the highest bar or, when that is more than three times the next highest, a little above the next highest.
    """
    next_highest, highest = sorted([0, *heights])[-2:]
    return next_highest * 1.4 if 0 < 3 * next_highest < highest else max(highest, 1)


def _histogram_bar(first: int, last: int, count: int, ceiling: float, longest: int) -> HistogramBar:
    slot_x = 100 * (first - 1) / longest
    slot_width = 100 * (last - first + 1) / longest

    return HistogramBar(
        first=first,
        last=last,
        count=count,
        x=slot_x + slot_width * 0.1,
        width=slot_width * 0.8,
        slot_x=slot_x,
        slot_width=slot_width,
        # Even a single row among millions must be visible.
        height=max(1.0, HISTOGRAM_HEIGHT * min(1.0, count / ceiling)),
        is_broken=count > ceiling,
    )


def bars(counts: Sequence[tuple[str, int]], whole: int) -> list[Bar]:
    """Lay out one bar per name, with shares of `whole`. The longest is full, if it is not a small share."""
    longest = max(max((count for _, count in counts), default=1), whole * FULL_BAR, 1)
    return [Bar(name, count, count / max(whole, 1), 100 * count / longest) for name, count in counts]


def split(parts: Sequence[tuple[str, int, str]]) -> list[Part]:
    """Lay out one divided bar, given (name, count, CSS class) of each part."""
    whole = max(sum(count for _, count, _ in parts), 1)
    return [Part(name, count, count / whole, css_class) for name, count, css_class in parts]
