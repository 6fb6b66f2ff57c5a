"""Calling plain functions on workers: for each element, once, and evenly distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.runtime.carried_errors import carrying_errors, carrying_errors_of_each


def call(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a function for each element, with the element first and then `arguments`, side inputs among them.

    A ClozelineError that it raises reaches the launcher as it was.
    """
    return beam.Map(carrying_errors(function), *arguments)


def call_many(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a generator function for each element, as `call` does. Each value that it yields becomes an element."""
    return beam.FlatMap(carrying_errors_of_each(function), *arguments)


def call_once(function: Callable[..., Any], *arguments: Any) -> beam.PTransform:
    """Call a function once, with `arguments` alone, when all its side inputs are complete. Makes one element."""
    return CallOnce(function, arguments)


@dataclass
class CallOnce(beam.PTransform):
    """The transform that `call_once` describes."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def expand(self, pbegin: Any) -> PCollection:
        return (
            pbegin | "Once" >> beam.Create([None]) | "Call" >> call(_ignoring_element(self.function), *self.arguments)
        )


def _ignoring_element(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(_, *arguments):
        return function(*arguments)

    return called


@dataclass
class Distribute(beam.PTransform):
    """(number, item) -> the items, distributed evenly over the workers.

    Items are grouped by their number. Unlike Reshuffle's random keys, this gives each local worker the same number of
    items.
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
