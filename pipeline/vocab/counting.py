"""Exact word counts of text shards, by source and by sets of rules.

The text is split at spaces into runs (runs.py), and each distinct run is cut into words once for every set of rules
(cut_runs.py). Counts are added up inside a worker before they travel: over a lot of neighboring shards, most runs
repeat. Then an exchange brings all counts of a word together, by a hash of the word, and a partition of the words is
added up over all lots. Counts are 64-bit integers, and nothing is dropped before everything is added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.vocab.cut_runs import Rules, cut_runs
from pipeline.vocab.runs import RUNS_SCHEMA, bytes_of_strings, count_runs, offsets_of_strings, slices_of_strings
from schemas import shards
from schemas.ragged import places_of_ranges

MAX_SOURCES = 64  # reported separately; the others are counted as one
OTHERS = "(other sources)"

MAX_RUN_BYTES = 40 << 20
"""Most bytes of runs that are added up inside a worker before they are cut into words and sent on.

This is what Beam calls combiner lifting. Beam's own (CombinePerKey) bounds the number of keys that a worker holds, not
their bytes, and its keys would be Python objects. A bundle's size is the engine's choice as well, so a table for each
bundle would leave nothing in staging that a restarted job finds again; a table for each lot of shards does.
"""

BY_SOURCE = shards.COUNTS_BY_SOURCE_SCHEMA
"""A table of counts. `source` is an index into the list that `reported_sources` returns."""

BY_RULES = pa.schema([("rules", pa.uint8()), *BY_SOURCE])
"""Counts on their way to their partition. `rules` is an index into the rules that are counted."""

HASHED_AT_ONCE = 1 << 20  # bytes of words

_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


def reported_sources(documents_by_source: dict[str, int]) -> list[str]:
    """Return the sources that are reported separately, sorted by name.

    These are the MAX_SOURCES with the most documents. If there are more, OTHERS comes last and stands for the rest.
    """
    ranked = sorted(documents_by_source, key=lambda name: (-documents_by_source[name], name))
    largest = sorted(ranked[:MAX_SOURCES])
    if len(ranked) > MAX_SOURCES:
        return [*largest, OTHERS]
    return largest


def count_texts(texts: Iterable[pa.Table], sources: Sequence[str], rules: Sequence[Rules]) -> Iterator[pa.RecordBatch]:
    """Yield the word counts of text shards as BY_RULES.

    A word has one row for each set of rules and source, in each batch. There is one batch unless the runs of the texts
    exceed MAX_RUN_BYTES.
    """
    added = _AddedRuns()
    for text in texts:
        for counted in count_runs(text, _source_of_row(text, sources)):
            added.add(counted)
            if added.is_full():
                yield words_of_runs(added.take(), rules)

    yield words_of_runs(added.take(), rules)


def _source_of_row(text: pa.Table, sources: Sequence[str]) -> NDArray[np.uint16]:
    # A source that is not in the list counts as OTHERS, which is last.
    listed = pa.array(sources[:MAX_SOURCES], pa.string())
    found = pc.index_in(text["source"], listed)  # type: ignore[attr-defined]
    return pc.fill_null(found, len(sources) - 1).to_numpy().astype(np.uint16)  # type: ignore[attr-defined]


class _AddedRuns:
    """Tables of runs, added up whenever as much has come as there was."""

    def __init__(self) -> None:
        self._tables = [RUNS_SCHEMA.empty_table()]
        self._added_bytes = 0
        self._new_bytes = 0

    def add(self, counted: pa.Table) -> None:
        """Add a table of RUNS_SCHEMA."""
        self._tables.append(counted)
        self._new_bytes += counted.nbytes
        if self._new_bytes > self._added_bytes and len(self._tables) > 2:
            self._add_up()

    def is_full(self) -> bool:
        """Whether the bound on memory is reached."""
        return self._added_bytes + self._new_bytes > MAX_RUN_BYTES

    def take(self) -> pa.Table:
        """Return the sum of all that was added, and start over."""
        if len(self._tables) > 2:
            self._add_up()
        taken = pa.concat_tables(self._tables)
        self.__init__()
        return taken

    def _add_up(self) -> None:
        total = sum_counts(pa.concat_tables(self._tables), ["run", "source"])
        self._tables = [RUNS_SCHEMA.empty_table(), total]
        self._added_bytes = total.nbytes
        self._new_bytes = 0


def words_of_runs(runs: pa.Table, rules: Sequence[Rules]) -> pa.RecordBatch:
    """Return (BY_RULES) the counts of words that follow from the counts of runs (RUNS_SCHEMA)."""
    # A run of several sources is cut once.
    encoded = runs["run"].combine_chunks().dictionary_encode()
    run_of_row = encoded.indices.to_numpy()
    source_of_row = runs["source"].to_numpy()
    count_of_row = runs["count"].to_numpy()
    has_one_row_each = len(encoded.dictionary) == len(run_of_row)

    parts = [BY_RULES.empty_table()]
    for number, one in enumerate(rules):
        cut = cut_runs(encoded.dictionary, one)
        if has_one_row_each:
            words = cut.words_K
            rows = cut.run_K
        else:
            words, rows = _repeat_for_rows(cut.words_K, cut.run_K, run_of_row)

        columns = [words, pa.array(source_of_row[rows]), pa.array(count_of_row[rows])]
        counts = sum_counts(pa.table(columns, schema=BY_SOURCE), ["word", "source"])
        numbers = pa.array(np.full(counts.num_rows, number, dtype=np.uint8))
        parts.append(pa.table([numbers, *counts.columns], schema=BY_RULES))

    return one_batch(pa.concat_tables(parts))


def _repeat_for_rows(
    words_K: pa.Array, run_K: NDArray[np.int64], run_of_row: NDArray[np.int32]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the words of all rows, and the row of each, from the words of each distinct run."""
    words_by_run = np.argsort(run_K, kind="stable")
    words_in_run = np.bincount(run_K, minlength=int(run_of_row.max(initial=-1)) + 1)
    first_of_run = np.cumsum(words_in_run) - words_in_run

    places = places_of_ranges(first_of_run[run_of_row], words_in_run[run_of_row])
    rows = np.repeat(np.arange(len(run_of_row)), words_in_run[run_of_row])
    return words_K.take(pa.array(words_by_run[places])), rows


def keys_of_words(words: pa.StringArray) -> NDArray[np.uint64]:
    """Return (words,) 64-bit hashes: polynomials of the bytes, mixed so that all bits of a key depend on all bytes.

    Words that collide share a partition and are still counted apart, so the hash decides nothing else.
    """
    hashes = np.zeros(len(words), dtype=np.uint64)

    # A few words at a time, for their bytes become 64-bit numbers: 16 times the memory of the words.
    for start, stop in slices_of_strings(words, HASHED_AT_ONCE):
        hashes[start:stop] = _polynomials(words.slice(start, stop - start))

    hashes ^= hashes >> _SHIFT
    hashes *= _MIX_FACTOR
    return hashes ^ (hashes >> _SHIFT)


def _polynomials(words: pa.StringArray) -> NDArray[np.uint64]:
    """Return (words,) the sums, modulo 2**64, of each byte times a power of _HASH_FACTOR; 0 for an empty word."""
    text = bytes_of_strings(words).astype(np.uint64)
    offsets = offsets_of_strings(words).astype(np.int64)
    starts = offsets[:-1] - offsets[0]
    lengths = np.diff(offsets)
    sums = np.zeros(len(words), dtype=np.uint64)
    if len(text) == 0:
        return sums

    powers = np.full(int(lengths.max()), _HASH_FACTOR, dtype=np.uint64)
    powers = np.multiply.accumulate(powers)
    place_in_word = np.arange(len(text)) - np.repeat(starts, lengths)
    is_word = lengths > 0
    sums[is_word] = np.add.reduceat((text + np.uint64(1)) * powers[place_in_word], starts[is_word])
    return sums


def add_partition(counts: pa.Table, number: int) -> pa.Table:
    """Return (BY_SOURCE) the sum of the counts (BY_RULES) of one set of rules, sorted by word and source."""
    rows = counts.filter(pc.equal(counts["rules"], number)).drop_columns(["rules"])  # type: ignore[attr-defined]
    total = sum_counts(rows, ["word", "source"])
    return total.sort_by([("word", "ascending"), ("source", "ascending")]).cast(BY_SOURCE)


def sum_counts(counts: pa.Table, by: list[str]) -> pa.Table:
    """Return the sum of the counts of equal keys, in an order that depends on `counts` alone.

    64 bits overflow only at 9 quintillion words.
    """
    # With Arrow's threads the order would change from run to run, and with it the bytes that workers exchange.
    summed = counts.group_by(by, use_threads=False).aggregate([("count", "sum")])
    return summed.rename_columns([*by, "count"]).combine_chunks()


def most_frequent_first(counts: pa.Table) -> pa.Table:
    """Return counts (shards.COUNTS_SCHEMA) sorted: the most frequent word first, ties by word."""
    return counts.sort_by([("count", "descending"), ("word", "ascending")]).cast(shards.COUNTS_SCHEMA)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, which may be empty."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], table.schema)
    return batches[0]
