"""Formats numbers for the report."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite


def short(value: float) -> str:
    """Return a number with three significant digits. Example: `short(12345)` -> `"12.3k"`."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share of one in percent with three significant digits. Example: `percent(0.12345)` -> `"12.3%"`."""
    return f"{100 * share:.3g}%"


def duration(seconds: float) -> str:
    """Return seconds as text in at most two units. Example: `duration(3725)` -> `"1 h 2 min"`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours > 0:
        return f"{hours:,} h {minutes_left} min"
    if minutes > 0:
        return f"{minutes} min {seconds_left} s"
    return f"{seconds_left} s"


def or_dash(value: float | None, text_of: Callable[[float], str]) -> str:
    """Return a number as `text_of` formats it, or "-" if it is missing or not finite."""
    if value is None or not isfinite(value):
        return "-"
    return text_of(value)
