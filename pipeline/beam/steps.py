"""The workers' side of a job's steps: plain functions called once for each element, their errors, and their counters.

How a ClozelineError from a function is handled depends on the runner. On a local runner it ends the job at once and
reaches the launcher unchanged. An engine would repeat the step, so there a permanent error is written to staging (see
commit/failures.py), and from then on no step of the job does anything:

    call, generate        the element has no output
    call_once, call_last  the one element is a `Stopped`, because a singleton side input must not be missing

No function is ever called with a `Stopped`. Other transforms (GroupByKey, Map, CombineGlobally) must come after `call`
or `generate`, whose output merely lacks elements then, and not after `call_once`.

Engines show counters while a job runs. At the end they equal the manifest's ledger and its totals of the same names,
with --holdout those of both folders together. They are incremented from the reports that steps return. The report of a
piece that an earlier attempt finished is counted too, and an engine drops the counts of a failed attempt, so each piece
counts once. No output depends on the counters: manifests are made from the reports themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PCollection

from pipeline.commit import failures
from pipeline.commit.failures import Failures, Stopped, carried
from pipeline.commit.parts import AddUp, part_of_report, summarize_part
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from schemas.errors import ClozelineError
from schemas.manifest import Shard

NAMESPACE = "clozeline"
PIECES = "pieces"
"""Prefix of the counters of finished work; its kind follows. For `run` that is a split, which makes a run or more."""

Kind = Literal["run", "text", "pairs"]

_COUNTED: dict[Kind, dict[str, str]] = {
    "run": {},
    "text": {"rows": "documents", "bytes": "bytes", "sentences": "sentences", "text_bytes": "text_bytes"},
    "pairs": {"rows": "rows", "tokens": "tokens", "bytes": "bytes"},
}
"""For each kind of report: the counted fields, its own or of its shard's entry, and the names of their counters."""


def call(function: Callable[..., Any], *arguments: Any, counted: Kind | None = None) -> beam.PTransform:
    """Call a function for each element, as function(element, *arguments). Arguments may be side inputs.

    counted: how to count its reports. The function must then return a report or a list of them.
    """
    reporting = function if counted is None else _counting(function, counted)

    def called(element, *values):  # without annotations, because Beam would infer coders from them
        return [reporting(element, *values)]

    return generate(called, *arguments)


def generate(function: Callable[..., Iterable[Any]], *arguments: Any, counted: Kind | None = None) -> beam.PTransform:
    """Call a function for each element as `call` does, and emit each element that it returns or yields.

    With `counted` it returns a list of reports.
    """
    if counted is not None:
        function = _counting(function, counted)
    return beam.FlatMap(_guarded(function, failures.wired()), *arguments)


def call_once(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a function once, as function(*arguments), when all its side inputs are complete. Makes one element."""
    return CallOnce(function, arguments)


def call_last(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Do what `call_once` does, for the step that publishes. Fails the job after a failure if no launcher waits."""
    return CallOnce(function, arguments, is_last=True)


@dataclass
class CallOnce(beam.PTransform):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_last: bool = False

    def expand(self, pbegin: Any) -> PCollection:
        function = self.function  # a worker needs neither this object nor its side inputs

        def called(_, *arguments):
            return [function(*arguments)]

        reported = failures.wired()
        guarded = _guarded(called, reported, stopped=(Stopped(),))
        if self.is_last and reported is not None:
            guarded = _failing_if_left(guarded, reported)
        return pbegin | "Once" >> beam.Create([None]) | "Call" >> beam.FlatMap(guarded, *self.arguments)


def _guarded(
    function: Callable[..., Iterable[Any]], reported: Failures | None, stopped: tuple[Stopped, ...] = ()
) -> Callable[..., Iterator[Any]]:
    """Wrap a function that makes elements: its errors are carried or reported, and it is not called after a failure.

    reported: where errors are reported; if None, all are raised.
    stopped: what is emitted instead after a failure.
    """

    def guarded(element, *arguments):  # without annotations, because Beam would infer coders from them
        try:
            has_stopped = any(isinstance(value, Stopped) for value in (element, *arguments))
            if reported is not None and (has_stopped or reported.error() is not None):
                yield from stopped
                return

            yield from function(element, *arguments)
        except ClozelineError as error:
            # `report` writes the error to staging.
            is_reported = reported is not None and failures.is_permanent(error) and reported.report(error)
            if not is_reported:
                raise carried(error) from error
            yield from stopped

    return guarded


def _failing_if_left(guarded: Callable[..., Iterator[Any]], reported: Failures) -> Callable[..., Iterator[Any]]:
    """Wrap the last step so that it raises a reported error if no launcher will; the job must not look finished."""

    def called(element, *arguments):
        for made in guarded(element, *arguments):
            error = reported.end_job_left_alone() if isinstance(made, Stopped) else None
            if error is not None:
                raise carried(error) from error
            yield made

    return called


def _counting(function: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    """Wrap a function that returns one piece's report or list of reports, so that these are counted."""

    def called(element, *arguments):
        returned = function(element, *arguments)
        for report in returned if isinstance(returned, list) else [returned]:
            count_report(kind, report)
        count(f"{PIECES}/{kind}")
        return returned

    return called


@dataclass
class Distribute(beam.PTransform):
    """(number, item) -> the items, distributed evenly over the workers.

    Items are grouped by their number. Unlike the random keys of Reshuffle, this gives each local worker the same number
    of items.
    """

    def expand(self, numbered: Any) -> PCollection:
        return numbered | "Group" >> beam.GroupByKey() | "Item" >> beam.FlatMap(_values)


def _values(numbered: tuple[int, Any]) -> Any:
    yield from numbered[1]


@dataclass
class SummarizeParts(beam.PTransform):
    """Reports of shards -> a Summary for each 4,096 of them. Parts are summarized on different workers.

    add_up: a module-level function, so that workers can import it.
    """

    add_up: AddUp
    staging: Staging

    def expand(self, reports: Any) -> PCollection:
        return (
            reports
            | "Part" >> beam.WithKeys(part_of_report)
            | "Group" >> beam.GroupByKey()
            | "Summarize" >> call(summarize_part, self.add_up, self.staging)
        )


def count_report(kind: Kind, report: Report) -> None:
    """Count what a report says: its shard's rows, tokens and bytes, and what was dropped, by reason.

    Does nothing outside of a Beam step.
    """
    fields = report | report.get("shard", {})
    for field, name in _COUNTED[kind].items():
        count(name, fields[field])
    for reason, _, dropped in report.get("ledger", ()):
        count(f"dropped/{reason}", dropped)


def count_lot(entries: list[Shard]) -> None:
    """Count a lot, a group of text shards that one worker reads: its documents and the bytes of its files."""
    count(f"{PIECES}/lot")
    count("documents", sum(entry.rows for entry in entries))
    count("text_file_bytes", sum(entry.bytes for entry in entries))


def count_all(amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        count(name, amount)


def count(name: str, amount: int = 1) -> None:
    """Add to a counter of the job. Does nothing outside of a Beam step."""
    Metrics.counter(NAMESPACE, name).inc(amount)
