"""The page of `shard --filters ... --sample N`: what each rule did to a sample, for a person to judge it by.

This module computes the contents of the page; templates/filters.html renders it. The terminal shows its table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from math import ceil, expm1, floor, log1p
from typing import Any, NamedTuple

from pipeline.filters.rules import DEFINITIONS, PAPERS, RULES, Rule
from pipeline.shard.trial import Share, Trial, Tried
from schemas.charts import HISTOGRAM_HEIGHT, HistogramBar, Level, histogram, short
from schemas.pages import render
from schemas.terminal import counted

COLUMNS = ("", "removed", "would fail", "documents", "bytes")
"""Of the table. "would fail" also counts what an earlier rule has removed."""


class Row(NamedTuple):
    """A row of the table. Texts are empty where a column means nothing. is_rule: whether the page has more about it."""

    name: str
    removed: str
    failed: str
    documents: str
    bytes: str
    is_rule: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        return self[:5]


def filter_page(trial: Trial, sample: int) -> str:
    """Return the page as HTML. sample: the documents that were asked for."""
    return render(
        "pipeline",
        "filters.html",
        title=f"{counted(len(trial.rules), 'rule')} on {counted(trial.all.count, 'document')}",
        is_all=trial.all.count < sample,
        figures=_figures(trial),
        columns=COLUMNS,
        rows=table(trial),
        cleaned=cleaned(trial),
        not_documents=listed(trial.not_documents.items()),
        sections=[_section(rule) for rule in trial.rules.values()],
    )


def table(trial: Trial) -> list[Row]:
    """Return what was removed: by each rule in the order in which they apply, then for other reasons, most first."""
    by_rule = {f"{RULES[name].set} filter: {name}": _rule_row(rule, trial) for name, rule in trial.rules.items()}
    others = [item for item in trial.left_out.items() if item[0] not in by_rule]
    others.sort(key=lambda item: (-item[1].count, item[0]))
    return [
        _row("read", trial.all, trial),
        *by_rule.values(),
        *(_row(reason, share, trial) for reason, share in others),
        _row("kept", trial.kept, trial),
        _row("kept, touched by no rule", trial.untouched, trial),
    ]


def table_lines(trial: Trial) -> list[str]:
    """Return the table for a terminal, without rules that nothing fails."""
    rows = [row for row in table(trial) if not row.is_rule or trial.rules[row.name].failed]
    cells = [COLUMNS, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]).rstrip() for name, *numbers in cells
    ]


def cleaned(trial: Trial) -> str:
    """Return what cleaning changed in the sample. Removed lines are in the table."""
    return listed((name, count) for name, count in trial.changes.items() if not name.startswith("lines removed ("))


def listed(counts: Iterable[tuple[str, int]]) -> str:
    """Return counts in words, sorted by name. Example: `"blank line 12"`."""
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts))


def _figures(trial: Trial) -> dict[str, str]:
    lines = sum(rule.removed for name, rule in trial.rules.items() if RULES[name].judges == "line")
    return {
        "documents": f"{trial.all.count:,}",
        "kept": _percent(trial.kept.count, trial.all.count),
        "kept bytes": _percent(trial.kept.bytes, trial.all.bytes),
        "no rule touched": _percent(trial.untouched.count, trial.all.count),
        "lines removed": f"{lines:,}",
    }


def _row(name: str, share: Share, trial: Trial) -> Row:
    documents = _percent(share.count, trial.all.count)
    return Row(name, f"{share.count:,}", "", documents, _percent(share.bytes, trial.all.bytes))


def _rule_row(rule: Tried, trial: Trial) -> Row:
    """Return a rule's row. The share of documents is empty for a rule that removes lines."""
    if RULES[rule.name].judges == "line":
        unit, documents, size = " lines", "", rule.removed_bytes
    else:
        dropped = trial.left_out.get(f"{RULES[rule.name].set} filter: {rule.name}", Share())
        unit, documents, size = "", _percent(dropped.count, trial.all.count), dropped.bytes
    removed, failed = (f"{count:,}{unit}" for count in (rule.removed, rule.failed))
    return Row(rule.name, removed, failed, documents, _percent(size, trial.all.bytes), is_rule=True)


def _percent(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.2%}"


def _section(rule: Tried) -> dict[str, Any]:
    """Return all about one rule, in words. A rule that judged nothing has no histogram."""
    row = RULES[rule.name]
    return {
        "name": rule.name,
        "set": row.set,
        "paper": PAPERS.get(row.set, "a rule of no paper"),
        "definition": DEFINITIONS.get(rule.name, ""),
        "allowed": _allowed(rule),
        "unit": "line" if row.judges == "line" else "document",
        "rule": rule,
        "histogram": value_histogram(rule.values, row, rule.threshold) if rule.values else None,
        "lists": [("Removed", rule.dropped.examples), ("Just kept", rule.kept.examples)],
    }


def _allowed(rule: Tried) -> str:
    if rule.threshold is None:
        return "none allowed"
    return f"{'at least' if RULES[rule.name].is_least else 'at most'} {rule.threshold:,}"


# ---- Histograms ----

# A histogram shows the values that a rule measured, with its threshold at the edge of two bars.
# Shares have a linear axis. So do counts, with a bar for each number, if nearly all are small; otherwise their axis is
# logarithmic (in one more than the count, so that 0 has a place). Bar 0 of a rule with a greatest value counts what is
# exactly 0, because most documents have no repeated line at all. The last bar also counts all that is beyond the axis.

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


class ValueHistogram(NamedTuple):
    """A histogram of values. threshold_x: percent."""

    bars: list[ValueBar]
    levels: list[Level]
    ticks: list[Tick]
    threshold_x: float
    height: int = HISTOGRAM_HEIGHT


def value_histogram(counts: Mapping[float, int], rule: Rule, threshold: float | None) -> ValueHistogram:
    """Lay out how often each value was measured; at least one must have been."""
    edges, are_whole = _edges(counts, threshold or 0.0)
    at = edges.index(threshold or 0.0)
    heights = [0] * len(edges)
    for value, count in counts.items():
        bar = bisect_right(edges, value) - 1 if rule.is_least else bisect_left(edges, value)
        heights[min(bar, len(edges) - 1)] += count

    laid_out = histogram([0, *heights])
    bars = [(bar, bar.first - 1) for bar in laid_out.bars]
    failing = range(at) if rule.is_least else range(at + 1, len(edges))
    slot = 100 / len(edges)
    ticks = dict.fromkeys(round((len(edges) - 1) * quarter / 4) for quarter in range(5))
    labels = [short(round(edge) if are_whole else edge) for edge in edges]
    return ValueHistogram(
        bars=[
            ValueBar(bar, _in_words(number, edges, rule.is_least, are_whole), number in failing) for bar, number in bars
        ],
        levels=laid_out.levels,
        ticks=[Tick(slot * (number + 0.5), labels[number]) for number in ticks],
        threshold_x=slot * (at if rule.is_least else at + 1),
    )


def _edges(counts: Mapping[float, int], threshold: float) -> tuple[list[float], bool]:
    """Return where bars begin, of a rule with a least value, or end: from 0 on, the threshold among them.

    Also returns whether all values are whole numbers.
    """
    top = max(*counts, threshold, 1e-9)
    are_whole = all(float(value).is_integer() for value in (*counts, threshold))
    small = sum(count for value, count in counts.items() if value <= BINS)
    if are_whole and threshold < BINS and small >= SMALL * sum(counts.values()):
        last = max(min(int(top), BINS), int(threshold) + 1)
        return list(map(float, range(last + 1))), True

    is_logarithmic = are_whole or threshold > 1
    if is_logarithmic:
        length, at = log1p(top), log1p(threshold)
    else:
        length, at = min(top, max(1.0, 2 * threshold)), threshold

    # The threshold is a whole number of steps, so that no bar is on both sides of it.
    steps = max(1, min(BINS, floor(BINS * at / length))) if at else 0
    step = at / steps if at else length / BINS
    last = max(ceil(min(length / step, BINS)), steps + 1)
    edges = [expm1(number * step) if is_logarithmic else number * step for number in range(last + 1)]
    edges[steps] = threshold  # without an error of rounding
    return edges, are_whole


def _in_words(bar: int, edges: list[float], is_least: bool, are_whole: bool) -> str:
    """Return the values that a bar counts. Example: `"3 to 5"`."""
    first = bar if is_least else bar - 1
    if first < 0:
        return "0"

    is_last = bar == len(edges) - 1
    least, most = edges[first], edges[-1] if is_last else edges[first + 1]
    if are_whole:  # the numbers from least up to most, one of which is not among them
        least, most = (ceil(least), ceil(most) - 1) if is_least else (floor(least) + 1, floor(most))
    if is_last:
        return f"{short(least)} or more"
    return short(least) if most <= least else f"{short(least)} to {short(most)}"
