"""The page of `shard --filters ... --sample N`: what each rule did to a sample, for a person to judge it by.

This module computes the contents of the page; templates/filters.html renders it. The terminal shows its table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pipeline.filters.definitions import DEFINITIONS, PAPERS
from pipeline.filters.histogram import ValueHistogram, value_histogram
from pipeline.filters.rules import RULES
from pipeline.shard.trial import Example, Share, Trial, Tried
from schemas.pages import render

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


class Section(NamedTuple):
    """All about one rule, in words. unit: what it judges, "line" or "document". histogram: None if it judged none."""

    name: str
    set: str
    paper: str
    definition: str
    allowed: str
    unit: str
    rule: Tried
    histogram: ValueHistogram | None

    @property
    def lists(self) -> list[tuple[str, list[Example]]]:
        """The examples under their headings."""
        return [("Removed", self.rule.dropped.examples), ("Just kept", self.rule.kept.examples)]


def filter_page(trial: Trial, sample: int) -> str:
    """Return the page as HTML. sample: the documents that were asked for."""
    return render(
        "pipeline",
        "filters.html",
        title=f"{len(trial.rules)} rules on {trial.all.count:,} documents",
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


def _section(rule: Tried) -> Section:
    row = RULES[rule.name]
    return Section(
        name=rule.name,
        set=row.set,
        paper=PAPERS.get(row.set, "a rule of no paper"),
        definition=DEFINITIONS.get(rule.name, ""),
        allowed=_allowed(rule),
        unit="line" if row.judges == "line" else "document",
        rule=rule,
        histogram=value_histogram(rule.values, row, rule.threshold) if rule.values else None,
    )


def _allowed(rule: Tried) -> str:
    if rule.threshold is None:
        return "none allowed"
    return f"{'at least' if RULES[rule.name].is_least else 'at most'} {rule.threshold:,}"
