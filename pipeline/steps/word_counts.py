"""The steps that count words: count lots of text shards, add up partitions of all words, and publish the counts.

A folder of counts has, for each set of rules, tables of COUNTS_BY_SOURCE_SCHEMA. A hash of a word selects its table. So
the number of tables (`partitions`) bounds the size of each, and no word is in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import KeyedBatch
from pipeline.runtime.manifest_parts import list_shards
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import DIRECT, Staging
from pipeline.steps.provenance import Provenance
from pipeline.vocab.counting import BY_RULES, add_partition, count_texts, sum_counts
from pipeline.vocab.memory import all_words, tally_words
from pipeline.words.arrow import hashes_of
from pipeline.words.rules import Rules
from schemas import FORMAT_VERSION, shards, storage
from schemas.manifest import PART_ENTRIES, Manifest, Shard, fingerprint, read_shard_bytes, read_shards_of_part
from schemas.shards import shard_name

LOT_BYTES = 512 << 20
"""Bytes of text that one worker counts and adds up before the counts travel: half a minute of work."""

MIN_LOTS = 16  # if the text has that many shards, so that all workers have something to do

PARTITION_BYTES = 256 << 20
"""Bytes of text per partition. Its counts are at most 64 MB in languages with spaces (some 6% of a small text and 0.4%
of a terabyte), and twice the text in others, where a bytebpe word is a whole clause."""

LOT_NOTES = "lot-"
"""Prefix of the names of the notes that `note_lot` leaves."""

MIN_PARTITIONS = 16
MAX_PARTITIONS = 4096


@dataclass(frozen=True)
class CountPlan:
    """What is counted, and how the work is divided.

    text: the folder, as workers open it. fingerprint: of the text when the job began.
    sources: the sources that the counts distinguish.
    num_parts: of the text's list of shards; 1 if its manifest has no parts.
    is_result: whether the sums are the shards of a folder of counts. Otherwise they stay in staging.
    """

    text: str
    fingerprint: str
    sources: list[str]
    rules: tuple[Rules, ...]
    num_shards: int
    num_parts: int
    text_bytes: int
    is_result: bool

    @property
    def shards_per_lot(self) -> int:
        """The number of text shards in each lot but the last.

        It is a power of two and divides PART_ENTRIES, so no lot spans two manifest parts.
        """
        by_size = LOT_BYTES * self.num_shards // max(self.text_bytes, 1)
        by_number = self.num_shards // MIN_LOTS
        wanted = max(1, min(by_size, by_number, PART_ENTRIES))
        return 1 << (wanted.bit_length() - 1)

    @property
    def lots(self) -> int:
        """The number of lots."""
        return -(-self.num_shards // self.shards_per_lot)

    @property
    def partitions(self) -> int:
        """The number of partitions of the words: a power of two."""
        wanted = max(1, self.text_bytes // PARTITION_BYTES)
        rounded_up = 1 << (wanted - 1).bit_length()
        return min(max(rounded_up, MIN_PARTITIONS), MAX_PARTITIONS)


@dataclass(frozen=True)
class TextLot:
    """Neighboring text shards that one worker counts. `number` identifies the lot."""

    number: int
    shards: list[Shard]


def read_lots(part: int, plan: CountPlan) -> Iterator[tuple[int, TextLot]]:
    """Yield (number, lot) for the lots of one part of the text's manifest, which workers read.

    A manifest without parts is one part. Raises DataError if the text was replaced after the job started.
    """
    before, entries = read_shards_of_part(plan.text, "text", plan.fingerprint, part)
    for start in range(0, len(entries), plan.shards_per_lot):
        number = (before + start) // plan.shards_per_lot
        yield number, TextLot(number, entries[start : start + plan.shards_per_lot])


def name_of_lot(lot: TextLot) -> str:
    """Return the name of a lot in staging."""
    return f"{lot.number:06d}"


def note_lot(lot: TextLot, staging: Staging) -> None:
    """Record in staging that the words of a lot are counted, so that the launcher can see the job's progress."""
    staging.keep_report(LOT_NOTES + name_of_lot(lot), {})


def count_lot(lot: TextLot, plan: CountPlan) -> Iterator[KeyedBatch]:
    """Count the words of a lot of text shards. Yields (keys, BY_RULES rows)."""
    texts = (_read_text(plan.text, shard) for shard in lot.shards)
    for counts in count_texts(texts, plan.sources, plan.rules):
        yield hashes_of(counts["word"]), counts


def _read_text(folder: str, shard: Shard) -> pa.Table:
    data = read_shard_bytes(folder, shard)
    return shards.decode_table(data, storage.join(folder, shard.path), shards.TEXT_SCHEMA)


def add_counts(
    partition: int, read_tables: Callable[[], list[pa.Table]], plan: CountPlan, staging: Staging
) -> list[Report]:
    """Add up one partition of all counts. Returns a report for each set of rules: its file's entry and its tally."""
    names = [shard_name(rules.name, partition, plan.partitions) for rules in plan.rules]
    finished = [staging.report_of_shard(name) for name in names]
    reports = [report for report in finished if report is not None]
    if len(reports) == len(names):
        return reports

    counts = read_tables()[0] if plan.lots else BY_RULES.empty_table()
    keep = staging.keep_shard if plan.is_result else staging.keep
    reports = []
    for number, name in enumerate(names):
        added = add_partition(counts, number)
        data, entry = encode_entry(name, added)
        tally = tally_words(sum_counts(added, ["word"])).tolist()
        reports.append(keep(name, data, {"shard": entry, "tally": tally}))
    return reports


def encode_entry(path: str, table: pa.Table) -> tuple[bytes, Report]:
    """Return the bytes of an Arrow file and its manifest entry as a dict."""
    batches = shards.equal_batches(table)
    data = shards.encode_batches(batches, table.schema)
    entry = {
        "path": path,
        "rows": table.num_rows,
        "tokens": 0,
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": shards.content_fingerprint(batches),
    }
    return data, entry


def tallies_of(reports: list[Report]) -> list[Any]:
    """Return the tallies of a partition, one for each set of rules."""
    return [report["tally"] for report in reports]


def add_tallies(tallies: Iterable[list[Any]]) -> list[Any]:
    """Add up results of `tallies_of` for some partitions, or such sums. The sum of none is empty."""
    listed = [np.array(of_rules) for of_rules in tallies]
    return np.sum(listed, axis=0).tolist() if listed else []


def totals_of_counts(tallies: list[Any], plan: CountPlan) -> dict[str, int]:
    """Return the numbers of words in the tallies, as totals for the manifest of a folder of counts."""
    totals = {}
    for rules, tally in zip(plan.rules, tallies, strict=True):
        amounts = all_words(np.array(tally))
        totals[f"{rules.name}_words"] = amounts.occurrences
        totals[f"{rules.name}_distinct_words"] = amounts.words
    return totals


def entries_of(reports: list[Report]) -> list[Report]:
    """Return the reports of a partition without their tallies, which make up most of them."""
    return [{"shard": report["shard"], DIRECT: report[DIRECT]} for report in reports]


def publish_counts(
    partitions: list[list[Report]], tallies: list[Any], plan: CountPlan, provenance: Provenance, staging: Staging
) -> None:
    """Publish a folder of counts: the tables of all rules and partitions.

    partitions: the result of `entries_of` for each. tallies: of all words, one for each set of rules.
    """
    reports = [report for partition in partitions for report in partition]
    entries = [Shard(**report["shard"]) for report in reports]
    entries.sort(key=lambda entry: entry.path)
    listed, parts = list_shards(entries, staging)

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
    generations = {report[DIRECT] for report in reports}
    publish_output(staging, manifest, generation=generations.pop() if len(generations) == 1 else "")
