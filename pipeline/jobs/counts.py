"""The folder of word counts that `vocab --counts` keeps, and the counting itself, which `vocab --text` does as well.

    lots of text shards -> word counts of each lot -> an exchange by word -> sums of each partition -> a finished folder

A folder of counts has, for each set of rules, tables of COUNTS_BY_SOURCE_SCHEMA. A hash of a word selects its table. So
the number of tables (`partitions`) bounds the size of each, and no word is in two of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsList, AsSingleton, PCollection

from pipeline.beam import estimate, steps
from pipeline.beam.display import Work
from pipeline.beam.engines import chosen_shuffle, path_for_workers
from pipeline.beam.runner import Execution, run_job
from pipeline.beam.steps import call_last, generate
from pipeline.commit.finished import NO_SEED, Provenance, Wanted, folder_as_input
from pipeline.commit.parts import in_parts
from pipeline.commit.publish import publish_output
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging, plan_staging
from pipeline.exchange.blocks import Addressed, Stream, Way, keep_runs
from pipeline.exchange.exchange import Exchange, Plan, Step, Written
from pipeline.exchange.runs import Keys
from pipeline.jobs.text_folder import DivideText, TextFolder
from pipeline.options import VocabJob
from pipeline.shard.languages import language_of_text
from pipeline.vocab.counting import BY_RULES, add_partition, count_texts, reported_sources, sum_counts
from pipeline.vocab.memory import all_words, tally_words
from pipeline.words.arrow import hashes_of
from pipeline.words.rules import ALL_RULES, Rules, rules_of
from schemas import FORMAT_VERSION, shards, storage
from schemas import manifest as manifests
from schemas.errors import DataError, UsageError
from schemas.manifest import PART_ENTRIES, FolderKind, Manifest, Shard, fingerprint, read_manifest
from schemas.shards import read_shard_bytes, shard_name
from schemas.terminal import tell

COUNT_VERSION = 3  # of the rules by which text is counted; version 2 had no zero width joiners in Unigram's words

PARTITIONS = "partitions"
"""Name of the exchange's plan."""

COUNTS = "counts"
"""Name of the exchange's stream, and prefix of the names of its runs."""

LOT_BYTES = 512 << 20
"""Bytes of text that one worker counts and adds up before the counts travel: half a minute of work."""

MIN_LOTS = 16  # if the text has that many shards, so that all workers have something to do

PARTITION_BYTES = 256 << 20
"""Bytes of text per partition. Its counts are at most 64 MB in languages with spaces (some 6% of a small text and 0.4%
of a terabyte), and twice the text in others, where a bytebpe word is a whole clause."""

MIN_PARTITIONS = 16
MAX_PARTITIONS = 4096


# Options and plan, in the launcher


def check_counts_folder(folder: str, overwrite: bool) -> None:
    """Raise UsageError if a folder has a finished result other than counts, which is neither read nor replaced.

    With `overwrite`, a manifest that cannot be read is replaced.
    """
    kind = kind_of_result(folder, overwrite)
    if kind not in (None, "counts"):
        raise UsageError(
            f"--counts {storage.printable(folder)} holds finished {kind}, and counts need a separate folder. Give "
            "another folder as --counts; with --text it is made if it does not exist."
        )


def kind_of_result(folder: str, overwrite: bool) -> FolderKind | None:
    """Return the kind of a finished folder; None without a manifest, or with one that cannot be read if `overwrite`."""
    url = storage.join(folder, manifests.NAME)
    if not storage.exists(url):
        return None
    with contextlib.suppress(DataError) if overwrite else contextlib.nullcontext():
        return manifests.parse_manifest(storage.read(url), url).kind
    return None


def must_count(job: VocabJob, text: Manifest) -> bool:
    """Whether the folder of counts must be made first. Raises UsageError if it has the counts of another text."""
    folder = str(job.counts)
    if kind_of_result(folder, job.overwrite) is None:
        return True

    counts = read_manifest(folder, "counts")
    is_of_text = bool(counts.inputs) and counts.inputs[0].fingerprint == text.fingerprint
    has_rules = rules_of(job.model, job.lowercase, job.keep_accents).name in counts.statistics["tallies"]
    is_current = has_rules and counts.options.get("version") == COUNT_VERSION
    if is_of_text and job.overwrite and not is_current:
        return True
    if is_of_text and not is_current:
        raise UsageError(
            f"--counts {storage.printable(folder)} holds counts by the rules of an older version. Give --overwrite to "
            "count again."
        )
    if is_of_text:
        tell(f"{storage.printable(folder)} holds the counts of this text already.")
        return False

    if job.overwrite:
        return True
    raise UsageError(
        f"--counts {storage.printable(folder)} holds the counts of another text than --text {job.text}. Give another "
        "folder, leave --text out to learn from these counts, or give --overwrite to count again."
    )


def run_counts(job: VocabJob, text: Manifest, options: PipelineOptions) -> Manifest | None:
    """Make a finished folder of counts, for all sets of rules. Returns its manifest, or None after a dry run."""
    recorded = {"version": COUNT_VERSION, "language": language_of_text(text)}
    provenance = Provenance(recorded, [folder_as_input(str(job.text), text.fingerprint)], NO_SEED)
    output = path_for_workers("--counts", str(job.counts), options)
    staging = plan_staging(output, "counts", {"options": recorded, "text": text.fingerprint})

    def execution() -> Execution:
        plan = plan_counts(job, text, ALL_RULES, options)
        count = CountWords(plan, Way(chosen_shuffle(job.shuffle, options), staging))
        return Execution(
            label="Counts",
            graph=PublishCounts(count, provenance),
            options=options,
            staging=staging,
            work=count.work(),
            estimate=estimate.Estimate(plan.partitions * len(ALL_RULES), estimate.COUNTS_BYTES, plan.seconds),
        )

    # Another launcher may have made the folder since `must_count` checked.
    return run_job("vocab", Wanted("counts", provenance, job.overwrite), staging, options, execution)


def plan_counts(job: VocabJob, text: Manifest, rules: tuple[Rules, ...], options: PipelineOptions) -> CountPlan:
    folder = TextFolder.of(path_for_workers("--text", str(job.text), options), text)
    sources = reported_sources(text.statistics["documents_by_source"])
    return CountPlan(folder, sources, rules, is_result=job.counts is not None)


@dataclass(frozen=True)
class CountPlan:
    """What is counted, and how the work is divided.

    sources: those that the counts distinguish.
    is_result: whether the sums are the shards of a folder of counts. Otherwise they stay in staging.
    """

    text: TextFolder
    sources: list[str]
    rules: tuple[Rules, ...]
    is_result: bool

    @property
    def shards_per_lot(self) -> int:
        """The number of text shards in each lot but the last.

        It is a power of two and divides PART_ENTRIES, so no lot spans two manifest parts.
        """
        by_size = LOT_BYTES * self.text.num_shards // max(self.text.text_bytes, 1)
        by_number = self.text.num_shards // MIN_LOTS
        wanted = max(1, min(by_size, by_number, PART_ENTRIES))
        return 1 << (wanted.bit_length() - 1)

    @property
    def lots(self) -> int:
        return -(-self.text.num_shards // self.shards_per_lot)

    @property
    def partitions(self) -> int:
        """The number of partitions of the words: a power of two."""
        wanted = max(1, self.text.text_bytes // PARTITION_BYTES)
        rounded_up = 1 << (wanted - 1).bit_length()
        return min(max(rounded_up, MIN_PARTITIONS), MAX_PARTITIONS)

    @property
    def seconds(self) -> float:
        """The CPU seconds that counting takes on one core, about."""
        return self.text.text_bytes / estimate.COUNT_BYTES_PER_SECOND


# The graph


@dataclass
class CountWords(beam.PTransform):
    """A text -> the reports on each partition's sums."""

    plan: CountPlan
    way: Way

    def expand(self, pbegin: Any) -> PCollection:
        lots = pbegin | "Lots" >> DivideText(self.plan.text, text_lots, self.plan)
        counted = lots | "Count lots" >> generate(count_lot, self.plan, self.way.staging)
        plans = AsSingleton(pbegin | "Plan partitions" >> beam.Create([{PARTITIONS: Plan(self.plan.partitions)}]))

        stream = Stream(0, COUNTS, BY_RULES, _keys_of)
        add = Step("add", partial(add_up_partition, plan=self.plan, staging=self.way.staging), PARTITIONS)
        return pbegin | "Add counts" >> Exchange([Written(stream, counted)], add, plans, self.way)

    def work(self) -> Work:
        """Return what progress is measured by: the lots of text that are counted."""
        return Work(f"{COUNTS}-", self.plan.lots, self.plan.text.text_bytes)


@dataclass
class AddTallies(beam.PTransform):
    """The reports on all partitions -> the tallies of all words."""

    def expand(self, reports: Any) -> PCollection:
        return reports | "Of each" >> beam.Map(tallies_of) | "Add" >> beam.CombineGlobally(add_tallies)


@dataclass
class PublishCounts(beam.PTransform):
    """A text -> a finished folder of counts, for all sets of rules."""

    count: CountWords
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        reports = pbegin | "Count words" >> self.count
        entries = AsList(reports | "Entries" >> beam.Map(entries_of))
        tallies = AsSingleton(reports | "Tallies" >> AddTallies())
        return pbegin | "Finish" >> call_last(
            publish_counts, entries, tallies, self.count.plan, self.provenance, self.count.way.staging
        )


# What workers do


@dataclass(frozen=True)
class TextLot:
    """Neighboring text shards that one worker counts. `number` identifies the lot."""

    number: int
    shards: list[Shard]


def text_lots(part: int, plan: CountPlan) -> Iterator[tuple[int, TextLot]]:
    """Yield (number, lot) for the lots of one part of the text's list of shards.

    Raises DataError if the text was replaced after the job started.
    """
    before, entries = plan.text.read_part(part)
    for start in range(0, len(entries), plan.shards_per_lot):
        number = (before + start) // plan.shards_per_lot
        yield number, TextLot(number, entries[start : start + plan.shards_per_lot])


def count_lot(lot: TextLot, plan: CountPlan, staging: Staging) -> Iterator[tuple[int, list[Any]]]:
    """Count the words of a lot of text shards, and write runs of BY_RULES. Yields (number of the lot, index) for each.

    A lot that an earlier attempt finished is not read again.
    """
    folder = plan.text.path

    def batches() -> Iterator[Addressed]:
        texts = (
            shards.decode_text(read_shard_bytes(folder, shard), storage.join(folder, shard.path))
            for shard in lot.shards
        )
        for counts in count_texts(texts, plan.sources, plan.rules):
            yield 0, (_keys_of(counts), counts)

    stream = Stream(0, COUNTS, BY_RULES)
    runs = keep_runs(f"{COUNTS}-{lot.number:06d}", batches, [(stream, plan.partitions)], staging)
    steps.count_lot(lot.shards)
    for _, index in runs:
        yield lot.number, index.to_row()


def _keys_of(counts: pa.RecordBatch) -> Keys:
    return hashes_of(counts["word"])


def add_up_partition(
    partition: int, read_tables: Callable[[], list[pa.Table]], _: Any, plan: CountPlan, staging: Staging
) -> list[Report]:
    """Add up one partition of all counts. Returns a report for each set of rules: its file's entry and its tally."""
    names = [shard_name(rules.name, partition, plan.partitions) for rules in plan.rules]
    finished = [staging.report(name) for name in names]
    reports = [report for report in finished if report is not None]

    if len(reports) < len(names):
        counts = read_tables()[0] if plan.lots else BY_RULES.empty_table()
        reports = []
        for number, name in enumerate(names):
            added = add_partition(counts, number)
            data, entry = shards.encode_shard(name, added)
            tally = tally_words(sum_counts(added, ["word"])).tolist()
            reports.append(staging.keep(name, data, {"shard": entry, "tally": tally}))

    if plan.is_result:
        steps.count_all(totals_of_counts(tallies_of(reports), plan))
    return reports


def tallies_of(reports: list[Report]) -> list[Any]:
    """Return the tallies of a partition, one for each set of rules."""
    return [report["tally"] for report in reports]


def add_tallies(tallies: Iterable[list[Any]]) -> list[Any]:
    """Add up results of `tallies_of` for some partitions, or such sums. The sum of none is empty."""
    listed = [np.array(of_rules) for of_rules in tallies]
    return np.sum(listed, axis=0).tolist() if listed else []


def totals_of_counts(tallies: list[Any], plan: CountPlan) -> dict[str, int]:
    totals = {}
    for rules, tally in zip(plan.rules, tallies, strict=True):
        amounts = all_words(np.array(tally))
        totals[f"{rules.name}_words"] = amounts.occurrences
        totals[f"{rules.name}_distinct_words"] = amounts.words
    return totals


def entries_of(reports: list[Report]) -> list[Report]:
    """Return the reports of a partition without their tallies, which make up most of them."""
    return [{"shard": report["shard"]} for report in reports]


# The last step


def publish_counts(
    partitions: list[list[Report]], tallies: list[Any], plan: CountPlan, provenance: Provenance, staging: Staging
) -> None:
    """Publish a folder of counts: the tables of all rules and partitions.

    partitions: the result of `entries_of` for each. tallies: of all words, one for each set of rules.
    """
    reports = [report for partition in partitions for report in partition]
    entries = [Shard(**report["shard"]) for report in reports]
    entries.sort(key=lambda entry: entry.path)
    listed, parts = in_parts("shards", entries, staging)

    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="counts",
        options={**provenance.options, "partitions": plan.partitions},
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("counts", entries),
        shards=listed,
        totals=totals_of_counts(tallies, plan),
        statistics={
            "sources": plan.sources,
            "tallies": {rules.name: tally for rules, tally in zip(plan.rules, tallies, strict=True)},
        },
        ledger=[],
        parts=parts,
    )
    publish_output(staging, manifest)
