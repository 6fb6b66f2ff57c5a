"""Calls plain functions on workers: once for each element, evenly distributed.

How a ClozelineError from a function is handled depends on the runner. On a local runner it ends the job at once and
reaches the launcher unchanged. An engine would repeat the step, so there a permanent error is written to staging (see
commit/failures.py), and from then on no step of the job does anything:

    call, generate        the element has no output
    call_once, call_last  the one element is a `Stopped`, because a singleton side input must not be missing

No function is ever called with a `Stopped`. Other transforms (GroupByKey, Map, CombineGlobally) must come after `call`
or `generate`, whose output merely lacks elements then, and not after `call_once`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.commit import failures
from pipeline.commit.failures import Failures, Stopped
from pipeline.runtime import metrics
from pipeline.runtime.carried_errors import carried
from schemas.errors import ClozelineError


def call(function: Callable[..., Any], *arguments: Any, counted: metrics.Kind | None = None) -> beam.PTransform:
    """Call a function for each element, as function(element, *arguments). Arguments may be side inputs.

    counted: how to count its reports; see runtime/metrics.py. The function must then return a report or a list of them.
    """
    if counted is not None:
        function = _counting(function, counted)
    return beam.FlatMap(_guarded(_as_list(function), failures.wired()), *arguments)


def generate(
    function: Callable[..., Iterable[Any]], *arguments: Any, counted: metrics.Kind | None = None
) -> beam.PTransform:
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
    """The transform that `call_once` and `call_last` describe."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_last: bool = False

    def expand(self, pbegin: Any) -> PCollection:
        reported = failures.wired()
        guarded = _guarded(_as_list(_ignoring_element(self.function)), reported, stopped=(Stopped(),))
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
            if reported is not None and (_has_stopped((element, *arguments)) or reported.exist()):
                yield from stopped
                return

            yield from function(element, *arguments)
        except ClozelineError as error:
            if reported is None or not failures.is_permanent(error):
                raise carried(error) from error
            if not reported.report(error):  # writes it to staging
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


def _has_stopped(values: tuple[Any, ...]) -> bool:
    return any(isinstance(value, Stopped) for value in values)


def _as_list(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def called(element, *arguments):
        return [function(element, *arguments)]

    return called


def _counting(function: Callable[..., Any], kind: metrics.Kind) -> Callable[..., Any]:
    """Wrap a function that returns one piece's report or list of reports, so that these are counted."""

    def called(element, *arguments):
        returned = function(element, *arguments)
        for report in returned if isinstance(returned, list) else [returned]:
            metrics.count_report(kind, report)
        metrics.count(f"{metrics.PIECES}/{kind}")
        return returned

    return called


def _ignoring_element(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(_, *arguments):
        return function(*arguments)

    return called


@dataclass
class Distribute(beam.PTransform):
    """(number, item) -> the items, distributed evenly over the workers.

    Items are grouped by their number. Unlike the random keys of Reshuffle, this gives each local worker the same number
    of items.
    """

    def expand(self, numbered: Any) -> PCollection:
        return numbered | "Group" >> beam.GroupByKey() | "Item" >> beam.FlatMap(_values)


@dataclass
class DistributeList(beam.PTransform):
    """A list -> its items, distributed evenly over the workers."""

    def expand(self, lists: Any) -> PCollection:
        return lists | "Number" >> beam.FlatMap(_numbered) | "Distribute" >> Distribute()


def _numbered(items: list[Any]) -> Iterator[tuple[int, Any]]:
    yield from enumerate(items)


def _values(numbered: tuple[int, Any]) -> Any:
    yield from numbered[1]
