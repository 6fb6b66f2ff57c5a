"""The steps that count words: lots of text shards, partitions of all words, and a finished folder of counts.

A folder of counts holds, for each set of rules, tables of COUNTS_BY_SOURCE_SCHEMA. A word is in the table that a hash
of it names, so their number (`partitions`) bounds the size of each, and no word is in two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import KeyedBatch
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import Staging
from pipeline.steps.provenance import Provenance
from pipeline.vocab.counting import BY_RULES, add_partition, count_texts, keys_of_words, sum_counts
from pipeline.vocab.cut_runs import Rules
from pipeline.vocab.rare_words import Tally, all_words, tally_words
from schemas import FORMAT_VERSION, shards, storage
from schemas.errors import DataError
from schemas.manifest import Manifest, Shard, fingerprint, read_part, read_root, read_shard_bytes
from schemas.manifest_entries import PART_ENTRIES
from schemas.shards import COUNTS_BY_SOURCE_SCHEMA, shard_name

LOT_BYTES = 512 << 20
"""Text whose counts are added up in one worker before they travel: half a minute of work."""

MIN_LOTS = 16  # of a text of as many shards, so that all workers have something to do

PARTITION_BYTES = 256 << 20
"""Text behind a partition. Its counts are at most 64 MB in languages with spaces (some 6% of a small text and 0.4% of a
terabyte), and twice the text in others, where a bytebpe word is a whole clause."""

MIN_PARTITIONS = 16
MAX_PARTITIONS = 4096


@dataclass(frozen=True)
class CountPlan:
    """What is counted, and how the work is divided.

    text: the folder, as workers open it. sources: what the counts tell apart, besides words.
    num_parts: in which the list of its shards lies, 1 when its manifest has no parts.
    """

    text: str
    sources: list[str]
    rules: tuple[Rules, ...]
    num_shards: int
    num_parts: int
    text_bytes: int

    @property
    def shards_per_lot(self) -> int:
        """The number of text shards of each lot but the last: a power of two, so that parts of a manifest divide."""
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
    """Neighboring text shards that one worker counts. `number` tells lots apart."""

    number: int
    shards: list[Shard]


def read_lots(part: int, plan: CountPlan) -> Iterator[tuple[int, TextLot]]:
    """Yield (number, lot) for the lots of one part of the text's manifest, which workers read.

    A manifest without parts counts as one part.
    """
    root = read_root(plan.text, "text")
    parts = root.parts_of("shards")
    entries = read_part(plan.text, parts[part]) if parts else root.shards
    before = sum(earlier.count for earlier in parts[:part])

    for start in range(0, len(entries), plan.shards_per_lot):
        number = (before + start) // plan.shards_per_lot
        yield number, TextLot(number, entries[start : start + plan.shards_per_lot])


def name_of_lot(lot: TextLot) -> str:
    """The name of a lot in staging."""
    return f"{lot.number:06d}"


def count_lot(lot: TextLot, plan: CountPlan) -> Iterator[KeyedBatch]:
    """Count the words of a lot of text shards. Yields (keys, BY_RULES)."""
    texts = (_read_text(plan.text, shard) for shard in lot.shards)
    for counts in count_texts(texts, plan.sources, plan.rules):
        yield keys_of_words(counts["word"]), counts


def _read_text(folder: str, shard: Shard) -> pa.Table:
    data = read_shard_bytes(folder, shard)
    return shards.decode_table(data, storage.join(folder, shard.path), shards.TEXT_SCHEMA)


def add_counts(
    partition: int, read_tables: Callable[[], list[pa.Table]], plan: CountPlan, staging: Staging
) -> dict[str, Any]:
    """Add up one partition of all counts. Returns the entries of its files, and the tally of each set of rules."""
    name = f"partition-{partition:05d}"
    finished = staging.report(name)
    if finished is not None:
        return finished

    counts = read_tables()[0] if plan.lots else BY_RULES.empty_table()
    entries = []
    tallies = []
    for number, rules in enumerate(plan.rules):
        added = add_partition(counts, number)
        path = shard_name(rules.name, partition, plan.partitions)
        data, entry = encode_entry(path, added)
        staging.put(path, data)
        entries.append(entry)
        tallies.append(tally_words(sum_counts(added, ["word"])).tolist())

    return staging.keep_report(name, {"entries": entries, "tallies": tallies})


def encode_entry(path: str, table: pa.Table) -> tuple[bytes, Report]:
    """Return the bytes of an Arrow file, and its entry in a manifest as a plain table."""
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


def add_tallies(reports: Any) -> list[Any]:
    """Add up the tallies of partitions, or sums of them: one for each set of rules."""
    tallies = [np.array(report["tallies"] if isinstance(report, dict) else report) for report in reports]
    return np.sum(tallies, axis=0).tolist() if tallies else []


def publish_counts(reports: list[Report], plan: CountPlan, provenance: Provenance, staging: Staging) -> None:
    """Publish a folder of counts: the tables of all rules and partitions."""
    entries = [Shard(**entry) for report in reports for entry in report["entries"]]
    entries.sort(key=lambda entry: entry.path)
    tallies = add_tallies(reports)

    totals = {}
    for rules, tally in zip(plan.rules, tallies, strict=True):
        amounts = all_words(np.array(tally))
        totals[f"{rules.name}_words"] = amounts.occurrences
        totals[f"{rules.name}_distinct_words"] = amounts.words

    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="counts",
        options={**provenance.options, "partitions": plan.partitions},
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("counts", entries),
        shards=entries,
        totals=totals,
        statistics={
            "sources": plan.sources,
            "tallies": {rules.name: tally for rules, tally in zip(plan.rules, tallies, strict=True)},
        },
        ledger=[],
    )
    publish_output(staging, manifest)


@dataclass(frozen=True)
class CountsPlace:
    """Where the sums of one set of rules lie.

    folder: a finished folder of counts; empty when this job has counted, and the sums lie in its staging.
    """

    folder: str
    rules: Rules
    partitions: int
    staging: Staging

    def read(self, partition: int) -> pa.Table:
        """Return (COUNTS_BY_SOURCE_SCHEMA) the sum of one partition. Raises DataError for a damaged file."""
        name = shard_name(self.rules.name, partition, self.partitions)
        if not self.folder:
            return shards.decode_table(self.staging.piece(name), self.staging.url(name), COUNTS_BY_SOURCE_SCHEMA)

        url = storage.join(self.folder, name)
        if not storage.exists(url):
            raise DataError(
                f"{url} is missing. Copy the folder again, or count again with --text and another --counts."
            )
        return shards.decode_table(storage.read(url), url, COUNTS_BY_SOURCE_SCHEMA)

    def read_words(self, partition: int) -> pa.Table:
        """Return (shards.COUNTS_SCHEMA) the counts of one partition over all sources."""
        return sum_counts(self.read(partition), ["word"])


def tally_of(counts: Manifest, rules: Rules) -> Tally:
    """Return the tally of a finished folder of counts. Raises DataError when it lacks these rules."""
    tallies = counts.statistics["tallies"]
    if rules.name not in tallies:
        raise DataError(f"the counts hold no {rules.name} words, only {', '.join(tallies)}. Count the text again.")
    return np.array(tallies[rules.name], dtype=np.int64)
