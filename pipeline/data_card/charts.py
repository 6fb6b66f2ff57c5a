"""Histograms, bars and shares: for the data card's templates, and as lines of text for a terminal.

Functions here compute positions and sizes; templates/charts.html draws them. The SVG has no viewBox: x and width are in
percent, y and height in pixels, so that letters keep their size on a phone.

A histogram is a list whose element i counts the rows of length i.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from schemas.charts import Level, round_levels, short

BINS = 64
"""Maximum bars of a histogram."""

TEXT_BINS = 8
"""Maximum bars of a histogram in a terminal."""

TEXT_WIDTH = 32
"""Characters of the longest bar in a terminal."""

HISTOGRAM_HEIGHT = 168
"""Pixels of a histogram above its axis."""

Counts = Sequence[tuple[str, int]]
"""(name, count) in the order of display."""


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


@dataclass(frozen=True)
class Coin:
    """A share next to what a fair coin would give: 1/2, plus or minus `error`. x: position of the share, in percent."""

    share: float
    error: float
    x: float

    @property
    def is_fair(self) -> bool:
        return abs(self.share - 0.5) <= self.error


# Facts about histograms


def bins(counts: list[int], max_bins: int) -> list[tuple[int, int, int]]:
    """Return (first length, last length, rows) for at most `max_bins` ranges of equal width.

    The first range begins at length 1, since no row has length 0. The last may be narrower than the others.
    """
    longest = len(counts) - 1
    width = max(1, -(-longest // max_bins))  # rounded up

    ranges = []
    for first in range(1, longest + 1, width):
        last = min(first + width - 1, longest)
        ranges.append((first, last, sum(counts[first : last + 1])))
    return ranges


def mean(counts: list[int]) -> float:
    """Return the mean length, or 0 if the histogram is empty."""
    total = sum(length * rows for length, rows in enumerate(counts))
    return total / max(sum(counts), 1)


def quantile(counts: list[int], share: float) -> int:
    """Return the smallest length that at least this share of the rows does not exceed, or 0 if there are none."""
    rows_needed = share * sum(counts)
    for length, rows_so_far in enumerate(accumulate(counts)):
        if rows_so_far >= rows_needed:
            return length
    return 0


# Charts for the page


def histogram(counts: list[int]) -> Histogram:
    """Lay out a histogram. A bar that is far higher than all others is broken and labeled with its count."""
    ranges = bins(counts, BINS)
    ceiling = _ceiling([count for _, _, count in ranges])
    longest = ranges[-1][1]
    mean_length = mean(counts)

    return Histogram(
        bars=[_histogram_bar(one, ceiling, longest) for one in ranges if one[2] > 0],
        levels=_levels(ceiling),
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
    if 0 < 3 * next_highest < highest:
        return next_highest * 1.4
    return max(highest, 1)


def _histogram_bar(lengths_and_count: tuple[int, int, int], ceiling: float, longest: int) -> HistogramBar:
    first, last, count = lengths_and_count
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


def _levels(ceiling: float) -> list[Level]:
    """Return two to five levels at round counts."""
    # From a ceiling of 4 on, levels are whole numbers.
    counts = [count for count in round_levels(0, max(ceiling, 4)) if count <= ceiling]
    return [Level(HISTOGRAM_HEIGHT * (1 - count / ceiling), short(count)) for count in counts]


def bars(counts: Counts, whole: int) -> list[Bar]:
    """Lay out one bar per name, with shares of `whole`."""
    longest = max((count for _, count in counts), default=1)
    return [Bar(name, count, count / max(whole, 1), 100 * count / max(longest, 1)) for name, count in counts]


def split(parts: Sequence[tuple[str, int, str]]) -> list[Part]:
    """Lay out one divided bar, given (name, count, CSS class) of each part."""
    whole = max(sum(count for _, count, _ in parts), 1)
    return [Part(name, count, count / whole, css_class) for name, count, css_class in parts]


def coin(share: float, error: float) -> Coin:
    """Lay out a share on a scale of three errors to either side of 1/2. A share beyond it is shown at the end."""
    errors_from_half = max(-3.0, min(3.0, (share - 0.5) / error))
    return Coin(share, error, x=50 + errors_from_half * 100 / 6)


# Charts for a terminal


def text_bars(counts: Counts, whole: int) -> Iterator[str]:
    """Yield one line per name: its count, its share of `whole`, and a bar."""
    longest = max((count for _, count in counts), default=1)
    for name, count in counts:
        bar = "█" * round(TEXT_WIDTH * count / max(longest, 1))
        if not bar and count > 0:
            bar = "▏"
        yield f"    {name:<26} {count:>15,} {count / max(whole, 1):>7.2%}  {bar}".rstrip()


def text_histogram(counts: list[int]) -> Iterator[str]:
    """Yield a histogram in at most eight lines."""
    ranges = bins(counts, TEXT_BINS)
    named_counts = [(f"{first}-{last} tokens", count) for first, last, count in ranges]
    yield from text_bars(named_counts, sum(counts))
