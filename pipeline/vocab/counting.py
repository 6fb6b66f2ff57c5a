"""Exact word counts of text shards, by source.

The text of a shard is split at spaces into runs ("don't,"). Most runs repeat, so each distinct run is cut into words
once, and its words are counted as often as the run occurred.

Each shard's table of counts goes to a file that is divided into PARTITIONS by a hash of the word. A partition is then
summed over all files, a few files at a time, so that memory is bounded by the number of distinct words. Counts are
64-bit integers, and nothing is dropped before everything is summed.
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
MAX_SOURCES = 64  # reported separately; the others are counted as one
OTHERS = "(other sources)"
DOCUMENTS_AT_ONCE = 256  # that are Python strings at the same time: about 2 MB
FILES_AT_ONCE = 64  # whose tables of one partition are in memory at the same time

BY_SOURCE = pa.schema([("word", pa.string()), ("source", pa.uint16()), ("count", pa.int64())])
"""A table of counts. `source` is an index into the list that `sources_told_apart` returns."""


def reported_sources(documents_by_source: dict[str, int]) -> list[str]:
    """Return the sources that are reported separately, sorted by name.

    These are the MAX_SOURCES with the most documents. If there are more, OTHERS comes last and stands for the rest.
    """
    ranked = sorted(documents_by_source, key=lambda name: (-documents_by_source[name], name))
    largest = sorted(ranked[:MAX_SOURCES])
    if len(ranked) > MAX_SOURCES:
        return [*largest, OTHERS]
    return largest


def count_runs(texts: Iterable[Iterable[str]]) -> Counter[str]:
    """Count the runs of non-spaces in texts, which are lists of sentences."""
    runs: Counter[str] = Counter()
    for sentences in texts:
        runs.update(chain.from_iterable(sentence.split(" ") for sentence in sentences))
    return runs


def words_of_runs(runs: Counter[str], cut: Cut) -> Counter[str]:
    """Return the counts of words that follow from the counts of runs."""
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word in cut(run):
            words[word] += count
    return words


def count_shard(text: pa.Table, sources: Sequence[str], cut: Cut) -> pa.RecordBatch:
    """Return the word counts of one text shard as BY_SOURCE."""
    # A source that is not in the list counts as OTHERS, which is last.
    listed = pa.array(sources[:MAX_SOURCES])
    found = pc.index_in(text["source"], listed)  # type: ignore[attr-defined]
    source_of_row = pc.fill_null(found, len(sources) - 1)

    parts = [BY_SOURCE.empty_table()]
    for source in pc.unique(source_of_row).to_pylist():  # type: ignore[attr-defined]
        rows = text.filter(pc.equal(source_of_row, source))  # type: ignore[attr-defined]
        counts = words_of_runs(count_runs(_read_sentences(rows)), cut)

        words = pa.array(counts.keys(), pa.string())
        source_of_word = pa.array(np.full(len(counts), source, np.uint16))
        amounts = pa.array(counts.values(), pa.int64())
        parts.append(pa.table([words, source_of_word, amounts], schema=BY_SOURCE))

    return one_batch(pa.concat_tables(parts))


def _read_sentences(rows: pa.Table) -> Iterator[list[str]]:
    """Yield the sentences of a few documents at a time: as Python strings a shard would take ten times its size."""
    for start in range(0, rows.num_rows, DOCUMENTS_AT_ONCE):
        documents = rows["sentences"].slice(start, DOCUMENTS_AT_ONCE)
        yield pc.list_flatten(documents).to_pylist()  # type: ignore[attr-defined]


def encode_partitions(counts: pa.RecordBatch) -> bytes:
    """Return the bytes of a file of counts, one record batch for each partition."""
    # A bucket file is divided by the highest bits of 64-bit hashes, and CRC-32 has 32 bits.
    hashes = [zlib.crc32(word.encode()) for word in counts["word"].to_pylist()]
    hashes_64 = np.array(hashes, dtype=np.uint64) << np.uint64(32)
    return encode_buckets(counts, hashes_64, PARTITIONS)


def add_partition(partition: int, names: Sequence[str], staging: Staging) -> pa.Table:
    """Return the sum of one partition over all files, sorted by word and source."""
    total = BY_SOURCE.empty_table()
    for start in range(0, len(names), FILES_AT_ONCE):
        names_at_once = names[start : start + FILES_AT_ONCE]
        counts = read_buckets(names_at_once, partition, partition + 1, BY_SOURCE, staging)
        total = sum_counts(pa.concat_tables([total, counts]), ["word", "source"])

    return total.sort_by([("word", "ascending"), ("source", "ascending")])


def sum_counts(counts: pa.Table, by: list[str]) -> pa.Table:
    """Return the sum of the counts of equal keys. 64 bits overflow only at 9 quintillion words."""
    summed = counts.group_by(by).aggregate([("count", "sum")])
    return summed.rename_columns([*by, "count"]).combine_chunks()


def most_frequent_first(partitions: Iterable[pa.Table]) -> pa.Table:
    """Return the counts over all sources as shards.COUNTS: the most frequent word first, ties sorted by word."""
    # No word is in two partitions, so it is enough to sum within each.
    total = pa.concat_tables(sum_counts(by_source, ["word"]) for by_source in partitions)
    return total.sort_by([("count", "descending"), ("word", "ascending")]).cast(shards.COUNTS_SCHEMA)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, which may be empty."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], table.schema)
    return batches[0]
