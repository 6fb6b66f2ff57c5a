"""The steps of `statistics`: count lots of pair shards, add up partitions of all token pairs, and publish the folder.

A lot's counts travel to their partition by a hash of the two tokens. The first partition also gets what is counted of
single tokens: a row with NO_TOKEN in place of a second token says how often the token occurs, and one with ANY_TOKEN
the total weight of its co-occurrences. Lots count both, so they include the pairs that partitions drop.

Shape suffixes: V vocabulary, C distinct pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.runtime.counters import Report
from pipeline.runtime.exchange import KeyedBatch
from pipeline.runtime.manifest_parts import list_shards
from pipeline.runtime.publication import publish_output
from pipeline.runtime.staging import DIRECT, Staging
from pipeline.steps.provenance import Provenance
from pipeline.steps.statistics_plan import StatisticsPlan
from pipeline.steps.word_counts import encode_entry
from schemas import FORMAT_VERSION, shards, storage
from schemas.cooccurrences import (
    add_up,
    blocks_of,
    count_contexts,
    count_cooccurrences,
    count_unigrams,
    least_weight,
    sampled_rows,
)
from schemas.errors import DataError
from schemas.manifest import LedgerEntry, Manifest, Shard, fingerprint, read_part, read_root, read_shard_bytes
from schemas.randomness import mix
from schemas.shards import shard_name
from schemas.statistics import (
    COOCCURRENCES,
    COOCCURRENCES_SCHEMA,
    UNIGRAMS_FILE,
    UNIGRAMS_SCHEMA,
    Cooccurrences,
    unit_weight,
)

NO_TOKEN = np.iinfo(np.uint32).max
ANY_TOKEN = NO_TOKEN - 1

RARE = "pair of tokens below the least weight"


@dataclass(frozen=True)
class PairLot:
    """Shards that one worker counts, each with its index in the folder. `number` identifies the lot."""

    number: int
    shards: list[tuple[int, Shard]]


def read_lots(part: int, plan: StatisticsPlan) -> Iterator[tuple[int, PairLot]]:
    """Yield (number, lot) for the lots of one part of the pairs' manifest. A manifest without parts is one part.

    Raises DataError if the pairs were replaced after the job started.
    """
    root = read_root(plan.pairs, "pairs")
    if root.fingerprint != plan.fingerprint:
        raise DataError(
            f"{plan.pairs} has fingerprint {root.fingerprint}, but had {plan.fingerprint} when this job began: it was "
            "replaced. Run the command again."
        )

    parts = root.parts_of("shards")
    entries = read_part(plan.pairs, parts[part]) if parts else root.shards
    before = sum(earlier.count for earlier in parts[:part])

    for start in range(0, len(entries), plan.shards_per_lot):
        number = (before + start) // plan.shards_per_lot
        places = range(before + start, before + min(start + plan.shards_per_lot, len(entries)))
        read = [(place, entries[place - before]) for place in places if place % plan.stride == 0]
        yield number, PairLot(number, read)


def name_of_lot(lot: PairLot) -> str:
    """Return the name of a lot in staging."""
    return f"{lot.number:06d}"


def count_lot(lot: PairLot, plan: StatisticsPlan) -> Iterator[KeyedBatch]:
    """Count the tokens and co-occurrences of a lot. Yields (keys, COOCCURRENCES_SCHEMA rows) for each of its blocks."""
    vocabulary_size = plan.counting.vocabulary_size
    unigrams_V = np.zeros(vocabulary_size, dtype=np.int64)
    context_weights_V = np.zeros(vocabulary_size, dtype=np.int64)
    for rows in blocks_of(_read_rows(lot, plan), plan.counting.window):
        unigrams_V += count_unigrams(rows, plan.counting)
        found = count_cooccurrences(rows, plan.counting)
        context_weights_V += count_contexts(found, vocabulary_size)
        yield _keys_of(found), record_batch(found)

    # Last, so that there are batches even in a lot without rows.
    yield _batch_of_tokens(unigrams_V, NO_TOKEN)
    yield _batch_of_tokens(context_weights_V, ANY_TOKEN)


def _read_rows(lot: PairLot, plan: StatisticsPlan) -> Iterator[pa.Table]:
    for place, shard in lot.shards:
        data = read_shard_bytes(plan.pairs, shard)
        url = storage.join(plan.pairs, shard.path)
        schema = shards.schema_of_pairs(data, url, plan.counting.vocabulary_size)
        table = shards.decode_table(data, url, schema).select(["input_ids"])
        yield sampled_rows(table, place, plan.limit_of_shard(shard.tokens))


def _batch_of_tokens(counts_V: NDArray[np.int64], marker: int) -> KeyedBatch:
    """Return the counts of single tokens with keys of the first partition. marker: stands for the second token."""
    tokens = np.flatnonzero(counts_V).astype(np.uint32)
    markers = np.full(len(tokens), marker, dtype=np.uint32)
    counts = Cooccurrences(tokens, markers, counts_V[tokens])
    return np.zeros(len(tokens), dtype=np.uint64), record_batch(counts)


def _keys_of(found: Cooccurrences) -> NDArray[np.uint64]:
    """Return (C,) uint64: a hash of each pair of tokens, which decides its partition."""
    return mix((found.first_C.astype(np.uint64) << np.uint64(32)) | found.second_C)


def record_batch(found: Cooccurrences) -> pa.RecordBatch:
    """Return co-occurrences as COOCCURRENCES_SCHEMA rows."""
    return pa.record_batch([pa.array(column) for column in found], schema=COOCCURRENCES_SCHEMA)


def add_counts(
    partition: int, read_tables: Callable[[], list[pa.Table]], plan: StatisticsPlan, staging: Staging
) -> list[Report]:
    """Add up one partition. Returns its files' reports: co-occurrences and, first in partition 0, unigrams."""
    name = shard_name(COOCCURRENCES, partition, plan.partitions)
    names = [UNIGRAMS_FILE, name] if partition == 0 else [name]
    finished = [staging.report_of_shard(name) for name in names]
    reports = [report for report in finished if report is not None]
    if len(reports) == len(names):
        return reports

    table = read_tables()[0]
    sent = Cooccurrences(*(table[column].to_numpy() for column in COOCCURRENCES_SCHEMA.names))
    reports = []
    if partition == 0:
        reports.append(_keep_unigrams(sent, plan, staging))

    is_pair = sent.second_C < ANY_TOKEN
    summed = add_up(sent.take(is_pair), plan.counting.vocabulary_size)
    return [*reports, _keep_cooccurrences(name, summed, plan, staging)]


def _keep_unigrams(sent: Cooccurrences, plan: StatisticsPlan, staging: Staging) -> Report:
    """Write the file with the counts and context weights of all tokens. sent: all rows of the first partition."""
    counts_V = _add_tokens(sent.take(sent.second_C == NO_TOKEN), plan)
    context_weights_V = _add_tokens(sent.take(sent.second_C == ANY_TOKEN), plan)
    table = pa.table([pa.array(counts_V), pa.array(context_weights_V)], schema=UNIGRAMS_SCHEMA)

    data, entry = encode_entry(UNIGRAMS_FILE, table)
    return staging.keep_shard(UNIGRAMS_FILE, data, {"shard": entry, "tokens": int(counts_V.sum())})


def _add_tokens(counted: Cooccurrences, plan: StatisticsPlan) -> NDArray[np.int64]:
    """Return (V,) int64: the sum of the weights of each first token."""
    sums_V = np.zeros(plan.counting.vocabulary_size, dtype=np.int64)
    np.add.at(sums_V, counted.first_C, counted.weight_C)
    return sums_V


def _keep_cooccurrences(name: str, summed: Cooccurrences, plan: StatisticsPlan, staging: Staging) -> Report:
    """Write the file with a partition's pairs of tokens, without those below the least weight."""
    least = least_weight(summed.weight_C, plan.most_in_partition)
    is_kept_C = summed.weight_C >= least
    kept = summed.take(is_kept_C)

    data, entry = encode_entry(name, pa.Table.from_batches([record_batch(kept)]))
    dropped = {
        "least_weight": least,
        "dropped": int((~is_kept_C).sum()),
        "dropped_weight": int(summed.weight_C[~is_kept_C].sum()),
        "weight": int(kept.weight_C.sum()),
    }
    return staging.keep_shard(name, data, {"shard": entry, **dropped})


def publish_statistics(
    partitions: list[list[Report]], plan: StatisticsPlan, provenance: Provenance, staging: Staging
) -> None:
    """Publish the folder. partitions: the result of `add_counts` for each partition."""
    reports = [report for partition in partitions for report in partition]
    reports.sort(key=lambda report: report["shard"]["path"])
    if _total(reports, "tokens") == 0:
        raise DataError(
            f"{plan.pairs}: no row was counted. Expected rows with tokens, and a --max_tokens that is larger than a "
            "row in each shard."
        )

    manifest = _manifest(reports, plan, provenance, staging)
    generations = {report[DIRECT] for report in reports}
    publish_output(staging, manifest, generation=generations.pop() if len(generations) == 1 else "")


def _total(reports: list[Report], name: str) -> int:
    return sum(report.get(name, 0) for report in reports)


def _manifest(reports: list[Report], plan: StatisticsPlan, provenance: Provenance, staging: Staging) -> Manifest:
    """Return the manifest of the folder, and keep its parts in staging. reports: of all files, sorted by path."""
    entries = [Shard(**report["shard"]) for report in reports]
    listed, parts = list_shards(entries, staging)

    counting = plan.counting
    counted = {"vocabulary": plan.vocabulary, "vocabulary_size": counting.vocabulary_size}
    cooccurrences = sum(entry.rows for entry in entries if entry.path != UNIGRAMS_FILE)
    statistics = {
        "unit_weight": unit_weight(counting.window),
        "least_weight": max(report.get("least_weight", 1) for report in reports),
        "weight": _total(reports, "weight"),
        "dropped_weight": _total(reports, "dropped_weight"),
        "shards_read": plan.shards_read,
        "share_of_rows": plan.share_of_rows,
    }
    return Manifest(
        format_version=FORMAT_VERSION,
        kind="statistics",
        options=provenance.options | counted,
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("statistics", entries),
        shards=listed,
        totals={"tokens": _total(reports, "tokens"), "cooccurrences": cooccurrences},
        statistics=statistics,
        ledger=_ledger(_total(reports, "dropped")),
        parts=parts,
    )


def _ledger(dropped: int) -> list[LedgerEntry]:
    return [LedgerEntry(RARE, "all", dropped)] if dropped else []
