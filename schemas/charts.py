"""Lays out line charts over a run's steps, or its hours; pages/chart.html draws them as SVG.

The levels of an axis and the text of its numbers are also those of the data card's histograms.

The SVG's horizontal positions are in percent and its vertical ones in pixels, so that text keeps its size on a phone.
The points of a line cannot be given in percent, so lines are in an inner SVG that is 1000 units wide and stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Literal, NamedTuple

CHART_HEIGHT = 200
"""The height of a chart above its axis, in pixels."""

INNER_WIDTH = 1000
"""The width of the inner SVG, from step 0 to the last step, in its units."""

MAX_POINTS = 400
"""The most points of a line. If there are more, means are drawn over a band from the lowest to the highest value."""

MAX_DOTS = 60
"""A line of at most this many points has a dot at each point, which shows its value."""

Color = Literal["blue", "orange", "green", "purple", "gray", "red"]
COLORS: tuple[Color, ...] = ("blue", "orange", "green", "purple", "gray", "red")
"""The colors of a chart's lines, in order."""

TextOf = Callable[[float], str]
"""Formats a value as text."""


class Level(NamedTuple):
    """A horizontal line of a chart: its distance from the top in pixels, and its label."""

    y: float
    label: str


@dataclass(frozen=True)
class Line:
    """A named line: (step, value), or (hours, value), in order of steps."""

    name: str
    color: Color
    points: Sequence[tuple[float, float]]


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


@dataclass(frozen=True)
class Mark:
    """A dashed line where the run was resumed after `step`. x: percent."""

    step: int
    x: float


@dataclass(frozen=True)
class Chart:
    """A chart with its title, lines over steps 0 to `last_step`, and axes.

    unit: the name of the horizontal axis's unit. digits: decimals of the numbers on that axis.
    """

    title: str
    lines: list[DrawnLine]
    levels: list[Level]
    marks: list[Mark]
    last_step: float
    unit: str = "step"
    digits: int = 0
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
    values = [value for line in lines for _, value in line.points]
    levels = round_levels(min(values), max(values))
    scale = Scale(last_step, low=levels[0], high=levels[-1])

    return Chart(
        title=title,
        lines=[_drawn(line, scale, text_of) for line in lines],
        levels=[Level(scale.y(level), text_of(level)) for level in levels],
        marks=[Mark(step, scale.percent(step)) for step in resumed_at],
        last_step=last_step,
    )


def chart_over_hours(title: str, lines: Sequence[Line], text_of: TextOf) -> Chart:
    """Lay out lines whose points are (hours, value), from 0 hours to the last point."""
    last = max(hours for line in lines for hours, _ in line.points)
    # For a run of seconds, show enough decimals to reach the first digit that is not 0.
    digits = 0 if last >= 10 else max(1, 1 - floor(log10(max(last, 1e-6))))

    rounded = [
        replace(line, points=[(round(hours, digits + 1), value) for hours, value in line.points]) for line in lines
    ]
    drawn = chart(title, rounded, max(round(last, digits + 1), 1e-6), [], text_of)
    return replace(drawn, unit="hour", digits=digits + 1)


def round_levels(low: float, high: float) -> list[float]:
    """Return two to six levels at round numbers, the first at or below `low` and the last at or above `high`."""
    # Equal values, or nearly equal ones, still get a scale with some height.
    span = max(high - low, abs(high) * 1e-3)
    if span == 0:
        span = 1.0

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
        group = PointGroup(
            step=sum(steps) / len(steps),
            lowest=min(values),
            mean=sum(values) / len(values),
            highest=max(values),
        )
        groups.append(group)
    return groups


def _drawn(line: Line, scale: Scale, text_of: TextOf) -> DrawnLine:
    groups = thinned(line.points, MAX_POINTS)
    means = [scale.inner_point(group.step, group.mean) for group in groups]

    band = None
    is_thinned = len(groups) < len(line.points)
    if is_thinned:
        # The polygon goes along the lowest values, and back along the highest.
        lower_edge = [scale.inner_point(group.step, group.lowest) for group in groups]
        upper_edge = [scale.inner_point(group.step, group.highest) for group in reversed(groups)]
        band = " ".join(lower_edge + upper_edge)

    dots = []
    if len(line.points) <= MAX_DOTS:
        dots = [Dot(scale.percent(step), scale.y(value), step, text_of(value)) for step, value in line.points]

    return DrawnLine(line.name, line.color, " ".join(means), band, dots)


def short(value: float) -> str:
    """Return a number with three significant digits. Example: `short(12345)` -> `"12.3k"`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share of one in percent with three significant digits. Example: `percent(0.12345)` -> `"12.3%"`."""
    return f"{100 * share:.3g}%"
