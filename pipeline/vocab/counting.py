"""Exact word counts of text shards, by source.

A shard's text falls into runs of non-spaces; most recur, so each different one is cut into words once and its words
are counted as often as it occurred. Each shard's table goes to a file, cut into PARTITIONS by a hash of the word; a
partition is then added up over all files with 64-bit integers, a few files at a time, so that memory is bounded by the
different words. Nothing is dropped before all are added.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.runtime.bucket_files import encode_buckets, read_buckets
from pipeline.runtime.staging import Staging
from pipeline.vocab.pretokenize import Cut
from schemas import shards

PARTITIONS = 16
MOST_SOURCES = 64  # told apart in reports; the others are counted as one
OTHERS = "(other sources)"
AT_ONCE = 256  # documents whose text is cut into runs at once: about 2 MB
FILES_AT_ONCE = 64  # tables of one partition that are added up at once

BY_SOURCE = pa.schema([("word", pa.string()), ("source", pa.uint16()), ("count", pa.int64())])
"""source: a place in the list of sources that the job tells apart."""


def sources_told_apart(documents_by_source: dict[str, int]) -> list[str]:
    """The sources with most documents, sorted by name, and then OTHERS when there are more."""
    ranked = sorted(documents_by_source, key=lambda name: (-documents_by_source[name], name))
    told = sorted(ranked[:MOST_SOURCES])
    return [*told, OTHERS] if len(ranked) > MOST_SOURCES else told


def count_runs(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """How often each run of non-spaces occurs."""
    runs: Counter[str] = Counter()
    for sentences in texts:
        runs.update(chain.from_iterable(sentence.split(" ") for sentence in sentences))
    return runs


def words_of_runs(runs: Counter[str], cut: Cut) -> Counter[str]:
    """How often each word occurs in runs that occur so often."""
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word in cut(run):
            words[word] += count
    return words


def count_shard(text: pa.Table, sources: Sequence[str], cut: Cut) -> pa.RecordBatch:
    """The word counts of one text shard as BY_SOURCE."""
    found = pc.fill_null(pc.index_in(text["source"], pa.array(sources[:MOST_SOURCES])), len(sources) - 1)  # type: ignore[attr-defined]
    parts = []
    for source in pc.unique(found).to_pylist():  # type: ignore[attr-defined]
        rows = text.filter(pc.equal(found, source))  # type: ignore[attr-defined]
        counts = words_of_runs(count_runs(_lots(rows)), cut)
        numbers = np.full(len(counts), source, np.uint16)
        columns = [pa.array(counts.keys(), pa.string()), pa.array(numbers), pa.array(counts.values(), pa.int64())]
        parts.append(pa.table(columns, schema=BY_SOURCE))
    return one_batch(pa.concat_tables(parts) if parts else BY_SOURCE.empty_table())


def _lots(rows: pa.Table) -> Iterator[list[str]]:
    """The sentences, AT_ONCE documents at a time: as Python's strings a shard would take ten times its size."""
    for start in range(0, rows.num_rows, AT_ONCE):
        yield pc.list_flatten(rows["sentences"].slice(start, AT_ONCE)).to_pylist()  # type: ignore[attr-defined]


def encode_partitions(counts: pa.RecordBatch) -> bytes:
    """The bytes of a file of counts, one record batch for each partition."""
    hashes = [zlib.crc32(word.encode()) for word in counts["word"].to_pylist()]
    return encode_buckets(counts, np.array(hashes, dtype=np.uint64) << np.uint64(32), PARTITIONS)


def add_partition(partition: int, names: Sequence[str], staging: Staging) -> pa.Table:
    """One partition of all files, the counts of equal words and sources added up."""
    total = BY_SOURCE.empty_table()
    for start in range(0, len(names), FILES_AT_ONCE):
        lot = read_buckets(names[start : start + FILES_AT_ONCE], partition, partition + 1, BY_SOURCE, staging)
        total = add_counts(pa.concat_tables([total, lot]), ["word", "source"])
    return total.sort_by([("word", "ascending"), ("source", "ascending")])


def add_counts(counts: pa.Table, by: list[str]) -> pa.Table:
    """The counts of equal keys added up. 64-bit: a corpus would need 9 quintillion words to overflow."""
    summed = counts.group_by(by).aggregate([("count", "sum")])
    return summed.rename_columns([*by, "count"]).combine_chunks()


def commonest_first(partitions: Iterable[pa.Table]) -> pa.Table:
    """The counts over all sources as shards.COUNTS, by falling count and then by word. No word is in two partitions."""
    total = pa.concat_tables(add_counts(by_source, ["word"]) for by_source in partitions)
    return total.sort_by([("count", "descending"), ("word", "ascending")]).cast(shards.COUNTS)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
