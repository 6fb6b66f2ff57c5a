"""The steps of `statistics`: count lots of pair shards, add up partitions of all token pairs, and publish the folder.

Shape suffixes: V vocabulary, C distinct pairs of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.commit.finished import Provenance
from pipeline.commit.parts import list_shards
from pipeline.commit.publish import publish_output
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import KeyedBatch
from pipeline.steps.statistics_plan import StatisticsPlan
from pipeline.steps.statistics_rows import (
    ANY_TOKEN,
    NO_TOKEN,
    PartitionSums,
    batch_of_pairs,
    batch_of_tokens,
    record_batch,
    sum_pieces,
)
from pipeline.steps.word_counts import encode_entry
from schemas import FORMAT_VERSION, shards, storage
from schemas.cooccurrences import (
    blocks_of,
    count_contexts,
    count_cooccurrences,
    count_unigrams,
    least_weight,
    sampled_rows,
)
from schemas.errors import DataError
from schemas.manifest import LedgerEntry, Manifest, Shard, fingerprint, read_shard_bytes, read_shards_of_part
from schemas.shards import shard_name
from schemas.statistics import (
    COOCCURRENCES,
    UNIGRAMS_FILE,
    UNIGRAMS_SCHEMA,
    Cooccurrences,
    unit_weight,
)

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
    before, entries = read_shards_of_part(plan.pairs, "pairs", plan.fingerprint, part)
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
        yield batch_of_pairs(found)

    # Last, so that there are batches even in a lot without rows.
    yield batch_of_tokens(unigrams_V, NO_TOKEN)
    yield batch_of_tokens(context_weights_V, ANY_TOKEN)


def _read_rows(lot: PairLot, plan: StatisticsPlan) -> Iterator[pa.Table]:
    for place, shard in lot.shards:
        data = read_shard_bytes(plan.pairs, shard)
        url = storage.join(plan.pairs, shard.path)
        schema = shards.schema_of_pairs(data, url, plan.counting.vocabulary_size)
        table = shards.decode_table(data, url, schema).select(["input_ids"])
        yield sampled_rows(table, place, plan.limit_of_shard(shard.tokens))


def add_counts(
    partition: int, read_pieces: Callable[[], Iterable[pa.Table]], plan: StatisticsPlan, staging: Staging
) -> list[Report]:
    """Add up one partition. Returns its files' reports: co-occurrences and, first in partition 0, unigrams."""
    name = shard_name(COOCCURRENCES, partition, plan.partitions)
    names = [UNIGRAMS_FILE, name] if partition == 0 else [name]
    finished = [staging.report_of_shard(name) for name in names]
    reports = [report for report in finished if report is not None]
    if len(reports) == len(names):
        return reports

    sums = sum_pieces(read_pieces(), plan.counting.vocabulary_size)
    reports = [_keep_unigrams(sums, staging)] if partition == 0 else []
    return [*reports, _keep_cooccurrences(name, sums.pairs(), plan, staging)]


def _keep_unigrams(sums: PartitionSums, staging: Staging) -> Report:
    """Write the file with the counts and context weights of all tokens. sums: of the first partition."""
    columns = [pa.array(sums.unigrams_V), pa.array(sums.context_weights_V)]
    data, entry = encode_entry(UNIGRAMS_FILE, pa.table(columns, schema=UNIGRAMS_SCHEMA))
    return staging.keep_shard(UNIGRAMS_FILE, data, {"shard": entry, "tokens": int(sums.unigrams_V.sum())})


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
    publish_output(staging, manifest)


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
