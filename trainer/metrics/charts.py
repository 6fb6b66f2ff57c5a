"""Lays out line charts over a run's steps, or its hours; schemas/pages/chart.html draws them as SVG.

Across, the SVG goes in percent, up and down in pixels, so that letters keep their size on a phone. The points of a line
cannot be given in percent, so lines lie in an inner SVG that is 1000 units wide and stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Literal, NamedTuple

from schemas.pages import Level

CHART_HEIGHT = 200
"""Pixels of a chart above its axis."""

INNER_WIDTH = 1000
"""Units of the inner SVG, from step 0 to the last one."""

MAX_POINTS = 400
"""The most points of a line. Of more, means are drawn, over a band from the lowest value to the highest."""

MAX_DOTS = 60
"""A line of at most this many points has a dot at each, which says its value."""

Color = Literal["blue", "orange", "green", "purple", "gray", "red"]
COLORS: tuple[Color, ...] = ("blue", "orange", "green", "purple", "gray", "red")
"""The colors of a chart's lines, in order."""

TextOf = Callable[[float], str]
"""Words a value."""


@dataclass(frozen=True)
class Line:
    """A named line: (step, value), or (hours, value), in order of steps."""

    name: str
    color: Color
    points: Sequence[tuple[float, float]]


class PointGroup(NamedTuple):
    """Neighboring points that are drawn as one: their mean step, and their lowest, mean and highest value."""

    step: float
    lowest: float
    mean: float
    highest: float


@dataclass(frozen=True)
class Dot:
    """A point that says its value. x: percent. y: pixels."""

    x: float
    y: float
    step: float
    text: str


@dataclass(frozen=True)
class DrawnLine:
    """A line in the form that SVG takes: `points` of a polyline, and of a polygon for the band, None without one."""

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

    unit: what goes across, in words. digits: after the point of its numbers.
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
    """Where steps and values lie in a chart that reaches from step 0 to `last_step` and from `low` to `high`."""

    last_step: float
    low: float
    high: float

    def percent(self, step: float) -> float:
        return 100 * step / self.last_step

    def y(self, value: float) -> float:
        """Return pixels from the top."""
        return CHART_HEIGHT * (1 - (value - self.low) / (self.high - self.low))

    def inner_point(self, step: float, value: float) -> str:
        """Return a point of the inner SVG as "x,y"."""
        return f"{INNER_WIDTH * step / self.last_step:.1f},{self.y(value):.1f}"


def chart(title: str, lines: Sequence[Line], last_step: float, resumed_at: Sequence[int], text_of: TextOf) -> Chart:
    """Lay out lines over steps 0 to `last_step`, with marks where the run was resumed. `text_of` words values."""
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
    """Lay out lines whose points are (hours, value), over 0 hours to the last point."""
    last = max(hours for line in lines for hours, _ in line.points)
    # Of a run of some seconds only the first digit of an hour that is not 0 says anything.
    digits = 0 if last >= 10 else max(1, 1 - floor(log10(max(last, 1e-6))))

    rounded = [
        replace(line, points=[(round(hours, digits + 1), value) for hours, value in line.points]) for line in lines
    ]
    drawn = chart(title, rounded, max(round(last, digits + 1), 1e-6), [], text_of)
    return replace(drawn, unit="hour", digits=digits + 1)


def round_levels(low: float, high: float) -> list[float]:
    """Return two to six levels at round numbers, the first at or below `low`, the last at or above `high`."""
    # Equal values, or nearly equal ones, still get a scale with some height.
    span = max(high - low, abs(high) * 1e-3)
    if span == 0:
        span = 1.0

    power = 10.0 ** floor(log10(span / 4))
    step = next(digit * power for digit in (1, 2, 5, 10) if span / (digit * power) <= 4)

    # The slack keeps rounding errors from adding a level beyond a value that lies on one.
    first = floor(low / step + 1e-9)
    last = max(ceil(high / step - 1e-9), first + 1)
    return [number * step for number in range(first, last + 1)]


def thinned(points: Sequence[tuple[float, float]], max_groups: int) -> list[PointGroup]:
    """Return at most `max_groups` groups of neighboring points, all of equal size but the last."""
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
        # Along the lowest values, and back along the highest.
        lower_edge = [scale.inner_point(group.step, group.lowest) for group in groups]
        upper_edge = [scale.inner_point(group.step, group.highest) for group in reversed(groups)]
        band = " ".join(lower_edge + upper_edge)

    dots = []
    if len(line.points) <= MAX_DOTS:
        dots = [Dot(scale.percent(step), scale.y(value), step, text_of(value)) for step, value in line.points]

    return DrawnLine(line.name, line.color, " ".join(means), band, dots)
