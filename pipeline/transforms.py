"""The three jobs as Beam graphs: wiring only. Every function named here is pure and lives in one of the job folders.

Bulk bytes go through files and only their reports through Beam, for local runners keep every element in memory. All
outputs follow from what the functions are given; which worker ran them, in what order and how often leaves no trace.
Where a transform has a `finish`, it ends in one element, made after all others, and that step writes the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.runtime.carried_errors import carrying_errors

Step = Callable[..., Any]


def step(function: Step, *arguments: Any) -> beam.PTransform:
    """Beam's Map with the side inputs in `arguments`; errors of ours come back whole."""
    return beam.Map(carrying_errors(function), *arguments)


@dataclass
class DealInOrder(beam.PTransform):
    """A list -> its items, dealt evenly to the workers.

    Grouped by place in the list: unlike Reshuffle's random keys this gives each local worker the same number of items.
    """

    def expand(self, lists: Any) -> PCollection:
        return (
            lists
            | "Number" >> beam.FlatMap(_numbered)  # (place, item)
            | "Deal" >> beam.GroupByKey()
            | "Item" >> beam.FlatMap(_values)
        )


def _numbered(items: list[Any]) -> Any:
    yield from enumerate(items)


def _values(numbered: tuple[int, Any]) -> Any:
    yield from numbered[1]


@dataclass
class ShardCorpora(beam.PTransform):
    """Splits of the input -> sorted runs on disk -> text shards."""

    splits: list[Any]
    spread: Step  # split -> reports of its runs
    survey: Step  # (nothing, all reports) -> what the others need to know, once nothing is wrong with the input
    near: NearDuplicates | None
    gather: Step  # (shard index, survey, near-duplicates) -> report
    finish: Step  # (nothing, survey, all reports) -> None

    def expand(self, pbegin: Any) -> PCollection:
        runs = (
            pbegin
            | "Splits" >> beam.Create([self.splits])
            | "Deal splits" >> DealInOrder()
            | "Spread" >> step(self.spread)
        )
        surveyed = pbegin | "Once" >> beam.Create([None]) | "Survey" >> step(self.survey, AsList(runs))
        corpus = AsSingleton(surveyed)
        near = self._resolve(pbegin, corpus)
        indices = surveyed | "Shards" >> beam.Map(_shard_indices) | "Deal shards" >> DealInOrder()
        reports = indices | "Gather" >> step(self.gather, corpus, AsSingleton(near))
        return pbegin | "Last" >> beam.Create([None]) | "Finish" >> step(self.finish, corpus, AsList(reports))

    def _resolve(self, pbegin: Any, corpus: AsSingleton) -> PCollection:
        """One element: what is known of near-duplicates, or None when nobody asked."""
        if self.near is None:
            return pbegin | "No near-duplicates" >> beam.Create([None])
        buckets = pbegin | "Buckets" >> beam.Create([self.near.buckets]) | "Deal buckets" >> DealInOrder()
        joined = buckets | "Join" >> step(self.near.join, corpus)
        return pbegin | "Then" >> beam.Create([None]) | "Resolve" >> step(self.near.resolve, corpus, AsList(joined))


@dataclass
class NearDuplicates:
    """The steps that find near-duplicates between spreading and gathering."""

    buckets: list[int]
    join: Step  # (bucket, survey) -> report
    resolve: Step  # (nothing, survey, all reports) -> report


def _shard_indices(corpus: Any) -> list[int]:
    return list(range(corpus.num_shards))


@dataclass
class CountWords(beam.PTransform):
    """Text shards -> files of word counts -> their sum, a partition at a time."""

    shards: list[Any]
    partitions: list[int]
    count: Step  # shard -> name of its counts
    add: Step  # (partition, all names) -> name of its sum

    def expand(self, pbegin: Any) -> PCollection:
        counted = (
            pbegin
            | "Text shards" >> beam.Create([self.shards])
            | "Deal shards" >> DealInOrder()
            | "Count" >> step(self.count)
        )
        partitions = pbegin | "Partitions" >> beam.Create([self.partitions]) | "Deal partitions" >> DealInOrder()
        return partitions | "Add counts" >> step(self.add, AsList(counted))


@dataclass
class WritePairs(beam.PTransform):
    """Text shards -> pair shards, one of each for one of the other."""

    shards: list[Any]
    build: Step  # (shard, pass) -> report
    finish: Step  # (nothing, all reports) -> None

    def expand(self, pbegin: Any) -> PCollection:
        reports = (
            pbegin | "Shards" >> beam.Create([self.shards]) | "Deal" >> DealInOrder() | "Build" >> step(self.build)
        )
        return pbegin | "Last" >> beam.Create([None]) | "Finish" >> step(self.finish, AsList(reports))
