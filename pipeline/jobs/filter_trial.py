"""`python -m pipeline shard --filters ... --sample N`: tries the rules on a sample, for a person to judge them by.

Unlike the job, this runs in the launcher's process, without Beam: a few thousand documents take seconds. The page's
contents are computed here; templates/filters.html renders it. The terminal shows its table.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from math import ceil, expm1, floor, log1p
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pipeline.filters.rules import DEFINITIONS, PAPERS, RULES, Rule
from pipeline.jobs.shard import reading_options
from pipeline.jobs.shard_options import check_inputs_are_outside, resolved
from pipeline.options import ShardJob
from pipeline.readers.formats import ForeignFileError
from pipeline.readers.inputs import FileRange, plan_splits
from pipeline.readers.listing import Listing, list_inputs, without
from pipeline.readers.record import Record, Rejected, place_in_words
from pipeline.readers.sampling import sample
from pipeline.shard.contamination import EVALUATION_SETS, EvaluationSets
from pipeline.shard.detection import AUTO
from pipeline.shard.trial import Origin, Share, Trial, Tried
from schemas import storage
from schemas.charts import HISTOGRAM_HEIGHT, HistogramBar, Level, histogram, short
from schemas.errors import UsageError
from schemas.pages import render
from schemas.terminal import counted, one_line

SUFFIX = ".html"
COLUMNS = ("", "removed", "would fail", "documents", "bytes")
"""Of the table. "would fail" also counts what an earlier rule has removed."""


def run(job: ShardJob) -> list[str]:
    """Write the page and return the lines for the terminal.

    Raises UsageError before anything is read (no --filters, a page that exists, nothing matches), DataError for a file
    that cannot be read, and StorageError if the page cannot be written.
    """
    count = job.sample or 0
    if job.filters is None:
        raise UsageError("--sample tries the rules of --filters, which is missing: give --filters c4, say.")
    if job.inputs is not None:
        raise UsageError("--sample tries the rules on one corpus: give its files with --input instead of --inputs.")
    decided = resolved(job)
    job = decided.job
    _check_output(job)
    (listing,) = without([list_inputs(*(job.input or []))], job.exclude or ())
    check_inputs_are_outside(job.output, listing)
    _check_is_no_input(job.output, listing)

    splits = plan_splits(listing.files, job.format, job.encoding, listing.in_folders)
    with TemporaryDirectory() as folder:
        reading = reading_options(job, _stored(decided.sets, folder), has_languages=job.language == AUTO)
        trial = Trial(reading)
        for record, file_range in sample(splits, count, reading):
            _add(trial, record, file_range)

    storage.publish(job.output, filter_page(trial, count).encode(errors="replace"))
    return [*table_lines(trial), *_notes(trial), f"{one_line(storage.printable(job.output))}: examples of each rule"]


def _stored(sets: EvaluationSets | None, folder: str) -> str:
    """Write the sets of --decontaminate into a folder, and return the path of their file; empty without any."""
    if sets is None:
        return ""
    path = os.path.join(folder, EVALUATION_SETS)
    with open(path, "wb") as file:
        file.write(sets.to_bytes())
    return path


def _notes(trial: Trial) -> list[str]:
    notes = {"cleaned": cleaned(trial), "not among the documents": listed(trial.not_documents.items())}
    return [f"{name}: {note}" for name, note in notes.items() if note]


def _add(trial: Trial, record: Record | Rejected | ForeignFileError, file_range: FileRange) -> None:
    if isinstance(record, Record):
        place = place_in_words(record.position, file_range.place(record.position))
        trial.add(record.text, Origin(record.source, f"{place} of {file_range.display_path}"))
    elif isinstance(record, ForeignFileError):
        trial.not_documents[f"file that looks like {record.kind}"] += 1
    elif record.reason in file_range.reader.harmless:
        trial.not_documents[record.reason] += record.count
    else:
        trial.leave_out(record.reason, record.size)


def _check_output(job: ShardJob) -> None:
    """Raise UsageError unless a page may be written to --output."""
    shown = storage.printable(job.output)
    if not job.output.lower().endswith(SUFFIX):
        raise UsageError(f"--output {shown}: with --sample it is a page. Give a name that ends in {SUFFIX}.")
    if storage.is_local(job.output):
        if os.path.isdir(storage.filesystem(job.output)[1]):
            raise UsageError(f"--output {shown} is a folder. With --sample it is a page: give another name.")
        storage.check_writable_folder(os.path.dirname(job.output) or ".")
    if storage.exists(job.output) and not job.overwrite:
        raise UsageError(f"--output {shown} exists. Give another name, or --overwrite to replace it.")


def _check_is_no_input(output: str, listing: Listing) -> None:
    for file in listing.files:
        if file.path == output or (
            storage.is_local(output) and storage.is_local(file.path) and _real(file.path) == _real(output)
        ):
            raise UsageError(f"--output {storage.printable(output)} is a file of --input. Give another name.")


def _real(path: str) -> str:
    return os.path.realpath(storage.filesystem(path)[1])


# ---- The page ----


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
