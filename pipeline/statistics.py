"""`python -m pipeline statistics`: counts the tokens of pairs, and which occur near each other, on one machine.

    lots of pair shards -> counts of each lot, cut into partitions of token pairs -> sums of each partition -> a folder

A hash of the two tokens selects the partition of a pair, so that each can be added up in bounded memory. Lots and
partitions are spread over processes. Counts of lots are kept in staging until the folder is published: the same command
continues where it was stopped. Sums of whole numbers depend on no order, so neither processes nor lots show in the
result. Unlike the other jobs, this one does not use Beam: it takes minutes, and no more memory for larger folders.

Shape suffixes: V vocabulary, C distinct pairs of tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import ceil

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.beam import stop_signals
from pipeline.commit import leases
from pipeline.commit.finished import NO_SEED, Provenance, Wanted, check_other_files, finished_manifest, folder_as_input
from pipeline.commit.parts import in_parts
from pipeline.commit.publish import clean_up, publish_output
from pipeline.commit.reports import Report, total
from pipeline.commit.staging import Staging, plan_staging
from pipeline.environment import set_in_environment
from pipeline.exchange.runs import RunIndex, encode_run, read_buckets
from pipeline.flags import recorded_options
from pipeline.options import StatisticsJob
from pipeline.processes import WORTH_A_PROCESS, in_processes, with_progress
from schemas import FORMAT_VERSION, shards, storage
from schemas.cooccurrences import MAX_WINDOW, Counting, add_up, count_blocks, count_contexts, counting_of, sampled_rows
from schemas.errors import DataError, UsageError
from schemas.host_limits import available_bytes, usable_cores
from schemas.manifest import LedgerEntry, Manifest, Shard, fingerprint, read_manifest
from schemas.randomness import mix
from schemas.row_checks import read_pairs_vocabulary
from schemas.shards import read_shard_bytes, shard_name
from schemas.statistics import (
    COOCCURRENCES,
    COOCCURRENCES_SCHEMA,
    UNIGRAMS_FILE,
    UNIGRAMS_SCHEMA,
    Cooccurrences,
    unit_weight,
)
from schemas.terminal import megabytes, print_lines, tell

LOT_TOKENS = 4 << 20
"""Tokens per lot, at least: one block, and a second or two of work."""

PARTITION_OCCURRENCES = 12 << 20
"""Co-occurrences counted per partition: those of 4 million tokens with a window of 3. Adding up a partition takes some
100 bytes for each distinct pair of tokens of each block: up to 2.6 GB if no pair occurred twice. In English most do."""

MAX_PARTITIONS = 4096

MAX_OCCURRENCES = MAX_PARTITIONS * PARTITION_OCCURRENCES
"""The most co-occurrences that may be counted: those of 17 billion tokens with a window of 3. With more, the index of
all runs, with a range of bytes for each partition, would outgrow memory. Sums stay far below 64 bits."""

LEAST_SHARDS = 64
"""A sample is drawn from at least this many shards, if the folder has them. Chosen by hand: all rows of a document are
in one shard, so a sample of few shards would have few documents, and a long one would weigh too much in it."""

TOKENS_PER_SECOND = 0.45e6  # of one core; docs/measurements.md ("Statistics of pairs")
BYTES_PER_TOKEN = 2  # of the result of a large text; a small one has more distinct co-occurrences per token
PROCESS_BYTES = 3 << 29  # of memory that a process takes; docs/measurements.md ("Statistics of pairs")

RARE = "pair of tokens below the least weight"


# The job


def run(job: StatisticsJob, dry_run: bool) -> Manifest | None:
    """Run the job to its end and return the published manifest; None after a dry run. Raises as other jobs do."""
    if job.window > MAX_WINDOW:
        raise UsageError(f"--window {job.window} is more than {MAX_WINDOW}. Tokens that far apart say little.")

    pairs = read_manifest(job.pairs, "pairs")
    counting = counting_of(read_pairs_vocabulary(job.pairs, pairs), job.window)
    source = folder_as_input(job.pairs, pairs.fingerprint)
    provenance = Provenance(recorded_options(job), [source], NO_SEED)
    staging = plan_staging(job.output, "statistics", {"options": provenance.options, "pairs": pairs.fingerprint})
    wanted = Wanted("statistics", provenance, job.overwrite)
    finished = finished_manifest(wanted, staging, dry_run)
    if finished is not None:
        return finished
    check_other_files(wanted, staging.output)

    plan = plan_statistics(job, pairs, counting)
    lots = lots_of(plan, pairs.shards)
    input_bytes = sum(shard.bytes for lot in lots for _, shard in lot)
    if dry_run:
        print_lines(_estimate(plan, input_bytes))
        tell("dry run. The statistics job can run; nothing was written or removed.")
        return None

    processes = job.processes or processes_for(input_bytes)
    set_in_environment(os.environ)  # processes inherit it
    with leases.held(staging.output, staging.token):
        counts = _count(lots, plan, staging, processes)
        reports = _add_up(counts, plan, staging, processes)
        _publish(counts, reports, plan, provenance, staging)

        with stop_signals.reported_as_finished(storage.printable(staging.output)):
            manifest = read_manifest(staging.output, "statistics")
            clean_up(staging)
            return manifest


def processes_for(input_bytes: int) -> int:
    """Return the number of processes: one for each core, if the input is large enough and memory suffices."""
    if input_bytes < WORTH_A_PROCESS:
        return 1
    return max(1, min(usable_cores(), available_bytes() // PROCESS_BYTES))


def _estimate(plan: StatisticsPlan, input_bytes: int) -> Iterator[str]:
    output_bytes = plan.counted_tokens * BYTES_PER_TOKEN
    hours = plan.counted_tokens / TOKENS_PER_SECOND / 3600
    yield f"statistics: up to {plan.counted_tokens:,} tokens, from {megabytes(input_bytes)} of pairs"
    yield f"  result: {plan.partitions + 1:,} files, about {megabytes(output_bytes)} (estimate)"
    yield f"  work: about {hours:.2g} hours of one core (estimate)"


# How the work is divided


def stride_of(num_shards: int, tokens: int, max_tokens: int) -> int:
    """Return s if every s-th shard is read. Documents are assigned to shards by hash, so any shard is a sample."""
    needed = ceil(num_shards * min(1.0, max_tokens / max(tokens, 1)))
    wanted = min(num_shards, max(needed, LEAST_SHARDS))
    return max(1, num_shards // max(wanted, 1))


@dataclass(frozen=True)
class StatisticsPlan:
    """What is counted, and how the work is divided.

    vocabulary: its fingerprint. num_shards: of the pairs.
    tokens: of all rows, special tokens included. tokens_read: of the shards that are read, every stride-th.
    """

    pairs: str
    vocabulary: str
    counting: Counting
    num_shards: int
    tokens: int
    tokens_read: int
    max_tokens: int
    max_cooccurrences: int

    @property
    def stride(self) -> int:
        """The distance between two shards that are read."""
        return stride_of(self.num_shards, self.tokens, self.max_tokens)

    @property
    def shards_read(self) -> int:
        return ceil(self.num_shards / self.stride)

    @property
    def share_of_rows(self) -> float:
        """The maximum share of the tokens in the shards read that is counted. Manifests call it share_of_rows."""
        return min(1.0, self.max_tokens / max(self.tokens_read, 1))

    def limit_of_shard(self, tokens: int) -> int:
        """Return the maximum number of a shard's tokens to count. All limits add up to max_tokens or less."""
        return min(tokens, tokens * self.max_tokens // max(self.tokens_read, 1))

    @property
    def counted_tokens(self) -> int:
        """The number of tokens to count, at most: rows that no longer fit into a sample are left out whole."""
        return min(self.tokens, self.max_tokens)

    @property
    def partitions(self) -> int:
        """The number of partitions of token pairs: a power of two.

        A partition has fewer than 2 * PARTITION_OCCURRENCES of all co-occurrences, apart from chance.
        """
        wanted = max(1, self.counted_tokens * self.counting.window // PARTITION_OCCURRENCES)
        return 1 << (wanted - 1).bit_length()

    @property
    def most_in_partition(self) -> int:
        """The maximum token pairs that a partition keeps. Pairs are assigned by hash, so partitions are about equal.

        At least one, so that a small --max_cooccurrences does not leave all partitions empty.
        """
        return max(1, self.max_cooccurrences // self.partitions)


def plan_statistics(job: StatisticsJob, pairs: Manifest, counting: Counting) -> StatisticsPlan:
    """Return the plan of the job. Raises UsageError if more co-occurrences would be counted than MAX_OCCURRENCES."""
    stride = stride_of(pairs.num_shards, pairs.totals["tokens"], job.max_tokens)
    plan = StatisticsPlan(
        pairs=job.pairs,
        vocabulary=pairs.options["vocabulary"],
        counting=counting,
        num_shards=pairs.num_shards,
        tokens=pairs.totals["tokens"],
        tokens_read=sum(shard.tokens for shard in islice(pairs.shards, 0, None, stride)),
        max_tokens=job.max_tokens,
        max_cooccurrences=job.max_cooccurrences,
    )
    check_size(plan)
    return plan


def check_size(plan: StatisticsPlan) -> None:
    """Raise UsageError if more co-occurrences would be counted than MAX_OCCURRENCES."""
    window = plan.counting.window
    limit = MAX_OCCURRENCES // window
    if plan.counted_tokens > limit:
        raise UsageError(
            f"--max_tokens {plan.max_tokens:,} is too much for --window {window}: the co-occurrences of "
            f"{plan.counted_tokens:,} tokens would not fit into memory. Give --max_tokens {limit}."
        )


PairLot = list[tuple[int, Shard]]
"""Shards that are counted together, each with its index in the folder."""


def lots_of(plan: StatisticsPlan, all_shards: list[Shard]) -> list[PairLot]:
    """Cut the shards that are read, every stride-th, into lots of LOT_TOKENS or more."""
    lots: list[PairLot] = []
    for numbered in islice(enumerate(all_shards), 0, None, plan.stride):
        if not lots or sum(shard.tokens for _, shard in lots[-1]) >= LOT_TOKENS:
            lots.append([])
        lots[-1].append(numbered)
    return lots


# Counting lots


@dataclass(frozen=True)
class LotCounts:
    """The counts of all lots.

    unigrams_V: how often each token occurs. context_weights_V: the total weight of each token's pairs, including those
    that partitions drop.
    runs: files with pairs of tokens and their weights, cut into partitions.
    """

    unigrams_V: NDArray[np.int64]
    context_weights_V: NDArray[np.int64]
    runs: list[RunIndex]


def _count(lots: list[PairLot], plan: StatisticsPlan, staging: Staging, processes: int) -> LotCounts:
    unigrams_V, context_weights_V = np.zeros((2, plan.counting.vocabulary_size), dtype=np.int64)
    runs = []
    count = partial(count_lot, plan=plan, staging=staging)
    for report in with_progress(in_processes(count, enumerate(lots), processes), len(lots), "statistics, lots counted"):
        unigrams_V += report["unigrams"]
        context_weights_V += report["context_weights"]
        runs += [RunIndex.from_row(row) for row in report["runs"]]

    if not unigrams_V.any():
        raise DataError(
            f"{plan.pairs}: no row was counted. Expected rows with tokens, and a --max_tokens that is larger than a "
            "row in each shard."
        )
    return LotCounts(unigrams_V, context_weights_V, runs)


def count_lot(numbered: tuple[int, PairLot], plan: StatisticsPlan, staging: Staging) -> Report:
    """Count a lot, unless an earlier attempt has. A block of its rows becomes one run file in staging."""
    lot_number, lot = numbered
    name = f"lot-{lot_number:06d}"
    counted = staging.report(name)
    if counted is not None:
        return counted

    unigrams_V, context_weights_V = np.zeros((2, plan.counting.vocabulary_size), dtype=np.int64)
    runs = []
    for number, (block_unigrams_V, found) in enumerate(count_blocks(_read_rows(lot, plan), plan.counting)):
        unigrams_V += block_unigrams_V
        context_weights_V += count_contexts(found, plan.counting.vocabulary_size)

        pairs_C = (found.first_C.astype(np.uint64) << np.uint64(32)) | found.second_C
        data, index = encode_run(_record_batch(found), mix(pairs_C), plan.partitions, f"{name}-{number:04d}.run")
        staging.put(index.name, data)
        runs.append(index.to_row())

    report = {"unigrams": unigrams_V.tolist(), "context_weights": context_weights_V.tolist(), "runs": runs}
    return staging.keep_report(name, report)


def _read_rows(lot: PairLot, plan: StatisticsPlan) -> Iterator[pa.Table]:
    for place, shard in lot:
        data = read_shard_bytes(plan.pairs, shard)
        url = storage.join(plan.pairs, shard.path)
        schema = shards.schema_of_pairs(data, url, plan.counting.vocabulary_size)
        table = shards.decode_table(data, url, schema).select(["input_ids"])
        yield sampled_rows(table, place, plan.limit_of_shard(shard.tokens))


def _record_batch(found: Cooccurrences) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column) for column in found], schema=COOCCURRENCES_SCHEMA)


# Adding up partitions


def _add_up(counts: LotCounts, plan: StatisticsPlan, staging: Staging, processes: int) -> list[Report]:
    partitions = (
        (number, [run.part(*np.searchsorted(run.numbers, [number, number + 1]).tolist()) for run in counts.runs])
        for number in range(plan.partitions)
    )
    add = partial(add_partition, plan=plan, staging=staging)
    return list(with_progress(in_processes(add, partitions, processes), plan.partitions, "statistics, files written"))


def add_partition(numbered: tuple[int, list[RunIndex]], plan: StatisticsPlan, staging: Staging) -> Report:
    """Add up a partition's pairs of tokens, and write them without those below the least weight. Returns its report."""
    number, rows = numbered
    name = shard_name(COOCCURRENCES, number, plan.partitions)
    finished = staging.report(name)
    if finished is not None:
        return finished

    table = pa.Table.from_batches(read_buckets(rows, COOCCURRENCES_SCHEMA, staging), COOCCURRENCES_SCHEMA)
    found = Cooccurrences(*(table[column].to_numpy() for column in COOCCURRENCES_SCHEMA.names))
    del table
    summed = add_up(found, plan.counting.vocabulary_size)
    least = least_weight(summed.weight_C, plan.most_in_partition)
    is_kept_C = summed.weight_C >= least
    kept = summed.take(is_kept_C)

    data, entry = shards.encode_shard(name, pa.Table.from_batches([_record_batch(kept)]))
    dropped = {
        "least_weight": least,
        "dropped": int((~is_kept_C).sum()),
        "dropped_weight": int(summed.weight_C[~is_kept_C].sum()),
        "weight": int(kept.weight_C.sum()),
    }
    return staging.keep(name, data, {"shard": entry, **dropped})


def least_weight(weight_C: NDArray[np.int64], most_pairs: int) -> int:
    """Return the smallest weight that at most `most_pairs` of these pairs of tokens reach; 1 if all may stay."""
    if len(weight_C) <= most_pairs:
        return 1

    # Drop every pair with the weight of the heaviest pair that must go, so that no arbitrary order decides between
    # equals.
    first_dropped = np.partition(weight_C, len(weight_C) - most_pairs - 1)[len(weight_C) - most_pairs - 1]
    return int(first_dropped) + 1


# Publishing


def _publish(
    counts: LotCounts, reports: list[Report], plan: StatisticsPlan, provenance: Provenance, staging: Staging
) -> None:
    """Publish the folder. reports: of all partitions, in order."""
    columns = [pa.array(counts.unigrams_V), pa.array(counts.context_weights_V)]
    data, entry = shards.encode_shard(UNIGRAMS_FILE, pa.table(columns, schema=UNIGRAMS_SCHEMA))
    unigrams = staging.keep(UNIGRAMS_FILE, data, {"shard": entry})
    entries = [Shard(**report["shard"]) for report in [*reports, unigrams]]  # sorted by path
    listed, parts = in_parts("shards", entries, staging)

    manifest = Manifest(
        format_version=FORMAT_VERSION,
        kind="statistics",
        options=provenance.options | {"vocabulary": plan.vocabulary, "vocabulary_size": plan.counting.vocabulary_size},
        inputs=provenance.inputs,
        seed=provenance.seed,
        fingerprint=fingerprint("statistics", entries),
        shards=listed,
        totals={"tokens": int(counts.unigrams_V.sum()), "cooccurrences": sum(entry.rows for entry in entries[:-1])},
        statistics={
            "unit_weight": unit_weight(plan.counting.window),
            "least_weight": max(report["least_weight"] for report in reports),
            "weight": total(reports, "weight"),
            "dropped_weight": total(reports, "dropped_weight"),
            "shards_read": plan.shards_read,
            "share_of_rows": plan.share_of_rows,
        },
        ledger=[LedgerEntry(RARE, "all", total(reports, "dropped"))] if total(reports, "dropped") else [],
        parts=parts,
    )
    publish_output(staging, manifest)
