"""`vocab` as Beam graphs: text to word counts, and word counts to a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.beam import steps
from pipeline.beam.steps import Distribute, DistributeList, call, call_last, call_once, generate
from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import BatchSource, KeyedBatch, Shuffle, Stream
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.vocab import (
    VocabularyPlan,
    add_usages,
    describe_partitions,
    learn_vocabulary,
    ledger_of,
    publish_vocabulary,
    totals_of,
)
from pipeline.steps.word_counts import (
    CountPlan,
    TextLot,
    add_counts,
    add_tallies,
    count_lot,
    entries_of,
    name_of_lot,
    note_lot,
    publish_counts,
    read_lots,
    tallies_of,
    totals_of_counts,
)
from pipeline.transforms.exchange import Exchange, Sent
from pipeline.transforms.exchange_steps import Plan
from pipeline.vocab.counting import BY_RULES

COUNTS_STREAM = Stream(0, "counts", BY_RULES)

MAX_DESCRIBERS = 64
"""Maximum workers that describe the vocabulary at the same time. Each needs some 50 ms to read tokenizer.json."""


@dataclass
class CountWords(beam.PTransform):
    """Lots of text shards -> word counts of each lot -> an exchange by word -> the reports on each partition's sums."""

    plan: CountPlan
    shuffle: Shuffle
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        lots = (
            pbegin
            | "Text parts" >> beam.Create([list(range(self.plan.num_parts))])
            | "Distribute parts" >> DistributeList()
            | "Lots" >> generate(read_lots, self.plan)
            | "Distribute lots" >> Distribute()
        )
        exchange_plan = pbegin | "Plan partitions" >> beam.Create([Plan(self.plan.partitions)])
        made = partial(_lot_made, shuffle=self.shuffle, staging=self.staging)
        source = BatchSource(name_of_lot, partial(_count_lot, plan=self.plan), made)
        counted = Sent(COUNTS_STREAM, lots, source)
        add = partial(_add_counts, plan=self.plan, staging=self.staging)
        return pbegin | "Add counts" >> Exchange([counted], add, AsSingleton(exchange_plan), self.shuffle, self.staging)


def _count_lot(lot: TextLot, _: Any, plan: CountPlan) -> Iterator[KeyedBatch]:
    yield from count_lot(lot, plan)


def _lot_made(lot: TextLot, shuffle: Shuffle, staging: Staging) -> None:
    steps.count_lot("text", lot.shards)
    if shuffle == "service":  # this shuffle leaves no report on the lot in staging
        note_lot(lot, staging)


def _add_counts(
    partition: int, read_tables: Callable[[], list[pa.Table]], _: Any, plan: CountPlan, staging: Staging
) -> list[Report]:
    reports = add_counts(partition, read_tables, plan, staging)
    if plan.is_result:
        steps.count_all(totals_of_counts(tallies_of(reports), plan))
    return reports


@dataclass
class PublishCounts(beam.PTransform):
    """Text -> a finished folder of counts, for all sets of rules."""

    count: CountWords
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        reports = pbegin | "Count words" >> self.count
        entries = AsList(reports | "Entries" >> beam.Map(entries_of))
        tallies = AsSingleton(reports | "Tallies" >> AddTallies())
        return pbegin | "Finish" >> call_last(
            publish_counts, entries, tallies, self.count.plan, self.provenance, self.count.staging
        )


@dataclass
class AddTallies(beam.PTransform):
    """The reports on all partitions -> the tallies of all words."""

    def expand(self, reports: Any) -> PCollection:
        return reports | "Of each" >> beam.Map(tallies_of) | "Add" >> beam.CombineGlobally(add_tallies)


@dataclass
class MakeVocabulary(beam.PTransform):
    """Counts -> a finished vocabulary. Learning is one step on one worker, which needs memory for all words.

    count: counts the text first; None if the counts are finished, and then `tally` has the tally of their words.
    min_ram: the memory for learning, as Beam's resource hint writes it; empty for a runner without resource hints.
    """

    plan: VocabularyPlan
    provenance: Provenance
    count: CountWords | None
    tally: list[Any]
    min_ram: str

    def expand(self, pbegin: Any) -> PCollection:
        learn = call_once(_learn, AsSingleton(self._tallies(pbegin)), self.plan)
        if self.min_ram:
            learn = learn.with_resource_hints(min_ram=self.min_ram)

        learned = AsSingleton(pbegin | "Learn" >> learn)
        usage = (
            pbegin
            | "Partitions" >> beam.Create([_groups(self.plan.counts.partitions)])
            | "Distribute partitions" >> DistributeList()
            | "Describe" >> call(describe_partitions, learned, self.plan)
            | "Add usage" >> beam.CombineGlobally(add_usages)
        )
        return pbegin | "Finish" >> call_last(
            publish_vocabulary, learned, AsSingleton(usage), self.plan, self.provenance
        )

    def _tallies(self, pbegin: Any) -> PCollection:
        if self.count is None:
            return pbegin | "Tally" >> beam.Create([[self.tally]])
        return pbegin | "Count words" >> self.count | "Tallies" >> AddTallies()


def _learn(tallies: list[Any], plan: VocabularyPlan) -> Report:
    """Learn from the tally of the only set of rules that a vocabulary needs, and update the job's counters."""
    learned = learn_vocabulary(tallies[0] if tallies else [], plan)
    steps.count_all(totals_of(learned))
    steps.count_all({f"dropped/{entry.reason}": entry.count for entry in ledger_of(learned)})
    return learned


def _groups(partitions: int) -> list[list[int]]:
    """Divide partitions into groups, each described by one worker."""
    groups = max(1, min(MAX_DESCRIBERS, partitions // 8))
    return [list(range(first, partitions, groups)) for first in range(groups)]
