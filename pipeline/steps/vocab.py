"""The steps of `vocab` that run on workers: counting the words of a shard, and adding up a partition of all counts.

counts-<shard>       the counts of one text shard, cut into PARTITIONS by a hash of the word
sum-<partition>      one partition of all shards, added up
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pipeline.options import VocabJob
from pipeline.runtime.staging import Staging
from pipeline.vocab.counting import BY_SOURCE, PARTITIONS, add_partition, count_shard, encode_partitions
from pipeline.vocab.pretokenize import word_cutter
from schemas import shards, storage
from schemas.manifest import Shard, read_shard_bytes


def counts_name(shard: Shard) -> str:
    """The name in staging of the counts of a text shard."""
    return f"counts-{shard.path}"


def sum_name(partition: int) -> str:
    """The name in staging of the sum of a partition."""
    return f"sum-{partition:05d}.arrow"


def count_words(shard: Shard, job: VocabJob, sources: list[str], staging: Staging) -> str:
    """Count the words of one text shard by source, and return the name of the counts in staging."""
    name = counts_name(shard)
    if staging.report(name) is not None:
        return name

    data = read_shard_bytes(job.text, shard)
    text = shards.decode_table(data, storage.join(job.text, shard.path), shards.TEXT_SCHEMA)
    counts = count_shard(text, sources, word_cutter(job.model, job.lowercase))
    staging.keep(name, encode_partitions(counts), {"words": counts.num_rows})
    return name


def add_counts(partition: int, names: list[str], staging: Staging) -> str:
    """Add up one partition of all counts, and return the name of the sum in staging."""
    name = sum_name(partition)
    if staging.report(name) is not None:
        return name

    # Sorted, because the names arrive in any order.
    added = add_partition(partition, sorted(names), staging)
    staging.keep(name, shards.encode_table(added), {"words": added.num_rows})
    return name


def read_sums(staging: Staging) -> Iterator[pa.Table]:
    """Yield the sum of each partition, one at a time."""
    for partition in range(PARTITIONS):
        name = sum_name(partition)
        yield shards.decode_table(staging.piece(name), staging.url(name), BY_SOURCE)
