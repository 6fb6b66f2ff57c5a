"""Exact word counts of text shards, by source and by set of rules.

The text is split at spaces into runs (runs.py), and each distinct run is cut into words once for every set of rules
(cut_runs.py). Counts are added up inside a worker before they travel: within a lot of neighboring shards, most runs
repeat. Then an exchange brings all counts of a word together, by a hash of the word (word_keys.py), and a partition of
the words is added up over all lots. Counts are 64-bit integers, and nothing is dropped before everything is added up.

Shape suffixes: D distinct runs, T rows of a table of runs, which has a row for each run and source, K words of all
runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.vocab.cut_runs import CutRuns, Rules, cut_runs
from pipeline.vocab.runs import RUNS_SCHEMA, count_runs
from schemas import shards
from schemas.ragged import places_of_ranges

MAX_SOURCES = 64  # reported separately; the others are counted as one
OTHERS = "(other sources)"

MAX_RUN_BYTES = 40 << 20
"""Maximum bytes of runs that are added up inside a worker before they are cut into words and sent on.

This is what Beam calls combiner lifting. Beam's own (CombinePerKey) bounds the number of keys that a worker holds, not
their bytes, and its keys would be Python objects. The engine also chooses the size of a bundle, so a restarted job
could not find a bundle's table in staging again; it can find the table of a lot of shards.
"""

BY_SOURCE = shards.COUNTS_BY_SOURCE_SCHEMA
"""Schema of a table of counts. `source` is an index into the list that `reported_sources` returns."""

BY_RULES = pa.schema([("rules", pa.uint8()), *BY_SOURCE])
"""Schema of counts on their way to their partition. `rules` is an index into the sets of rules that are counted."""


def reported_sources(documents_by_source: dict[str, int]) -> list[str]:
    """Return the sources that are reported separately, sorted by name.

    These are the MAX_SOURCES with the most documents. If there are more, OTHERS comes last and stands for the rest.
    """

    def most_documents_first(name: str) -> tuple[int, str]:
        return -documents_by_source[name], name

    ranked = sorted(documents_by_source, key=most_documents_first)
    largest = sorted(ranked[:MAX_SOURCES])
    if len(ranked) > MAX_SOURCES:
        return [*largest, OTHERS]
    return largest


def count_texts(texts: Iterable[pa.Table], sources: Sequence[str], rules: Sequence[Rules]) -> Iterator[pa.RecordBatch]:
    """Yield the word counts of text shards as BY_RULES batches.

    A word has one row for each set of rules and source, in each batch. There is one batch unless the runs of the texts
    exceed MAX_RUN_BYTES.
    """
    added = _AddedRuns()
    for text in texts:
        source_of_row = _source_of_row(text, sources)
        for counted in count_runs(text, source_of_row):
            added.add(counted)
            if added.is_full():
                yield words_of_runs(added.take(), rules)

    # Sent even if it is empty, so that there is always a batch.
    yield words_of_runs(added.take(), rules)


def _source_of_row(text: pa.Table, sources: Sequence[str]) -> NDArray[np.uint16]:
    # A source that is not in the list counts as OTHERS, which is last.
    listed = pa.array(sources[:MAX_SOURCES], pa.string())
    others = len(sources) - 1

    index = pc.index_in(text["source"], listed)  # type: ignore[attr-defined]
    index = pc.fill_null(index, others)  # type: ignore[attr-defined]
    return index.to_numpy().astype(np.uint16)


class _AddedRuns:
    """Tables of runs, which are added up whenever the new tables have more bytes than the sum.

    The sum is then never larger than what is added to it, so adding up takes at most two passes over all tables.
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []  # the sum so far, then the tables after it
        self._sum_bytes = 0
        self._new_bytes = 0

    def add(self, counted: pa.Table) -> None:
        """Add a table of RUNS_SCHEMA."""
        self._tables.append(counted)
        self._new_bytes += counted.nbytes
        if self._new_bytes > self._sum_bytes:
            self._add_up()

    def is_full(self) -> bool:
        """Whether the limit on memory is reached."""
        return self._sum_bytes + self._new_bytes > MAX_RUN_BYTES

    def take(self) -> pa.Table:
        """Return the sum of all that was added, and start over."""
        self._add_up()
        taken = pa.concat_tables([RUNS_SCHEMA.empty_table(), *self._tables])

        self._tables = []
        self._sum_bytes = 0
        self._new_bytes = 0
        return taken

    def _add_up(self) -> None:
        # A single table has no run of a source twice.
        if len(self._tables) < 2:
            return

        total = sum_counts(pa.concat_tables(self._tables), ["run", "source"])
        self._tables = [total]
        self._sum_bytes = total.nbytes
        self._new_bytes = 0


def words_of_runs(runs: pa.Table, rules: Sequence[Rules]) -> pa.RecordBatch:
    """Return the counts of words (BY_RULES) that follow from the counts of runs (RUNS_SCHEMA)."""
    # A run with several sources has several rows, and is cut once.
    encoded = runs["run"].combine_chunks().dictionary_encode()
    runs_D = encoded.dictionary
    run_T = encoded.indices.to_numpy()
    source_T = runs["source"].to_numpy()
    count_T = runs["count"].to_numpy()

    parts = [BY_RULES.empty_table()]
    for number, one in enumerate(rules):
        cut = cut_runs(runs_D, one)
        words = _words_of_rows(cut, run_T, len(runs_D))

        columns = [
            words.words_K,
            pa.array(source_T[words.row_K]),
            pa.array(count_T[words.row_K]),
        ]
        occurrences = pa.table(columns, schema=BY_SOURCE)
        counts = sum_counts(occurrences, ["word", "source"])

        numbers = pa.array(np.full(counts.num_rows, number, dtype=np.uint8))
        parts.append(pa.table([numbers, *counts.columns], schema=BY_RULES))

    return one_batch(pa.concat_tables(parts))


@dataclass(frozen=True)
class _WordsOfRows:
    """`words_K[k]` is a word of the run in row `row_K[k]`."""

    words_K: pa.Array
    row_K: NDArray[np.int64]


def _words_of_rows(cut: CutRuns, run_T: NDArray[np.int32], distinct_runs: int) -> _WordsOfRows:
    """Return the words of all rows, given the words of each distinct run."""
    if len(run_T) == distinct_runs:
        # Each run has one row, in the order in which Arrow numbered the runs.
        return _WordsOfRows(cut.words_K, cut.run_K)

    # The positions of each run's words after sorting by run.
    words_by_run = np.argsort(cut.run_K, kind="stable")
    words_of_run_D = np.bincount(cut.run_K, minlength=distinct_runs)
    first_of_run_D = np.cumsum(words_of_run_D) - words_of_run_D

    words_of_row_T = words_of_run_D[run_T]
    places = places_of_ranges(first_of_run_D[run_T], words_of_row_T)
    return _WordsOfRows(
        words_K=cut.words_K.take(pa.array(words_by_run[places])),
        row_K=np.repeat(np.arange(len(run_T)), words_of_row_T),
    )


def add_partition(counts: pa.Table, number: int) -> pa.Table:
    """Return the sum of one rule set's counts (BY_RULES) as BY_SOURCE, sorted by word and source."""
    is_of_rules = pc.equal(counts["rules"], number)  # type: ignore[attr-defined]
    rows = counts.filter(is_of_rules).drop_columns(["rules"])

    total = sum_counts(rows, ["word", "source"])
    in_order = total.sort_by([("word", "ascending"), ("source", "ascending")])
    return in_order.cast(BY_SOURCE)


def sum_counts(counts: pa.Table, by: list[str]) -> pa.Table:
    """Return the sum of the counts of equal keys, in an order that depends only on `counts`.

    64 bits overflow only at 9 quintillion words.
    """
    # With Arrow's threads the order would change from run to run, and so would the bytes that workers exchange.
    groups = counts.group_by(by, use_threads=False)
    summed = groups.aggregate([("count", "sum")])
    return summed.rename_columns([*by, "count"]).combine_chunks()


def most_frequent_first(counts: pa.Table) -> pa.Table:
    """Return counts (shards.COUNTS_SCHEMA) sorted by descending count, ties by word."""
    in_order = counts.sort_by([("count", "descending"), ("word", "ascending")])
    return in_order.cast(shards.COUNTS_SCHEMA)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch, which may be empty."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], table.schema)
    return batches[0]
