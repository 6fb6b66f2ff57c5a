"""Exact word counts of text shards, by source and by set of rules.

Sentences are split at spaces into runs ("don't,"), most of which repeat, and Arrow's hash table numbers the distinct
ones. Each of them is cut into words once for every set of rules (pipeline/words). Counts are added up inside a worker
before they travel. Then an exchange brings all counts of a word together, by a hash of the word, and a partition of the
words is added up over all lots. Counts are 64-bit integers, and nothing is dropped before everything is added up.

Shape suffixes: R runs in the text, S sentences, D distinct runs, T rows of a table of runs, which has a row for each
run and source, K words of all runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.exchange.runs import one_batch
from pipeline.vocab.cut_words import cut_runs
from pipeline.words.arrow import Ints
from pipeline.words.rules import Rules
from schemas import shards
from schemas.ragged import places_of_ranges

ROWS_AT_ONCE = 128  # documents that are cut at once, so that most are in the processor's cache
CUT_AT_ONCE = 8 << 20  # bytes of those documents, on average
COUNTED_AT_ONCE = 64 << 20  # bytes of runs that are counted with one hash table, which takes some 3 times their memory

MAX_SOURCES = 64  # reported separately; the others are counted as one
OTHERS = "(other sources)"

MAX_RUN_BYTES = 40 << 20
"""Maximum bytes of runs that are added up inside a worker before they are cut into words and sent on.

This is what Beam calls combiner lifting. Beam's own (CombinePerKey) bounds the number of keys that a worker holds, not
their bytes, and its keys would be Python objects. The engine also chooses the size of a bundle, so a restarted job
could not find a bundle's table in staging again; it can find the table of a lot of shards.
"""

RUNS_SCHEMA = pa.schema([("run", pa.string()), ("source", pa.uint16()), ("count", pa.int64())])
"""How often each run occurs in a source. `source` is an index into a list of sources."""

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
    tables: list[pa.Table] = []  # the sum so far, then the tables after it
    for text in texts:
        for counted in _count_runs(text, _source_of_row(text, sources)):
            tables.append(counted)
            # The sum is never larger than what is added to it, so adding up takes two passes over all tables at most.
            if _bytes_of(tables[1:]) > tables[0].nbytes:
                tables = [_add_up(tables)]
            if _bytes_of(tables) > MAX_RUN_BYTES:
                yield words_of_runs(_add_up(tables), rules)
                tables = []

    # Sent even if it is empty, so that there is always a batch.
    yield words_of_runs(_add_up(tables), rules)


def _add_up(tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:  # it has no run of a source twice
        return tables[0]
    return sum_counts(pa.concat_tables([RUNS_SCHEMA.empty_table(), *tables]), ["run", "source"])


def _bytes_of(tables: list[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def _source_of_row(text: pa.Table, sources: Sequence[str]) -> NDArray[np.uint16]:
    # A source that is not in the list counts as OTHERS, which is last.
    listed = pa.array(sources[:MAX_SOURCES], pa.string())
    others = len(sources) - 1

    index = pc.index_in(text["source"], listed)  # type: ignore[attr-defined]
    index = pc.fill_null(index, others)
    return index.to_numpy().astype(np.uint16)


def _count_runs(text: pa.Table, source_of_row: NDArray[np.uint16]) -> Iterator[pa.Table]:
    """Yield tables of RUNS_SCHEMA whose sum is the count of all runs in a text shard (shards.TEXT_SCHEMA)."""
    runs: list[pa.StringArray] = []
    sources: list[NDArray[np.uint16]] = []
    size = 0

    rows_at_once = max(1, min(ROWS_AT_ONCE, CUT_AT_ONCE * text.num_rows // max(1, text.nbytes)))
    for batch in text.to_batches(max_chunksize=rows_at_once):
        sentences_of_row = batch["sentences"]
        runs_of_sentence = pc.split_pattern(sentences_of_row.flatten(), " ")  # type: ignore[attr-defined]
        source_S = np.repeat(source_of_row[: batch.num_rows], sentences_of_row.value_lengths())
        source_of_row = source_of_row[batch.num_rows :]

        runs.append(runs_of_sentence.flatten())
        sources.append(np.repeat(source_S, runs_of_sentence.value_lengths()))
        size += runs[-1].nbytes
        if size >= COUNTED_AT_ONCE:
            yield _count_occurrences(runs, np.concatenate(sources))
            runs = []
            sources = []
            size = 0

    if runs:
        yield _count_occurrences(runs, np.concatenate(sources))


def _count_occurrences(runs: list[pa.StringArray], source_R: NDArray[np.uint16]) -> pa.Table:
    """Return the counts of runs (RUNS_SCHEMA), sorted by source. Each run and source has one row."""
    # Arrow numbers the runs of all chunks with one hash table, so the last chunk's dictionary has all of them.
    encoded = pa.chunked_array(runs, pa.string()).dictionary_encode()
    runs_D = encoded.chunk(encoded.num_chunks - 1).dictionary
    run_R = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])

    parts = [RUNS_SCHEMA.empty_table()]
    for source in np.unique(source_R).tolist():
        count_D = np.bincount(run_R[source_R == source], minlength=len(runs_D))
        occurring = np.flatnonzero(count_D)
        sources = np.full(len(occurring), source, dtype=np.uint16)
        columns = [runs_D.take(pa.array(occurring)), pa.array(sources), pa.array(count_D[occurring])]
        parts.append(pa.table(columns, schema=RUNS_SCHEMA))

    counted = pa.concat_tables(parts)
    return counted.filter(pc.not_equal(counted["run"], ""))  # type: ignore[attr-defined]


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
        words_K, run_K = cut_runs(runs_D, one)
        row_K = run_K
        if len(run_T) != len(runs_D):  # otherwise each run has one row, in the order in which Arrow numbered the runs
            word, row_K = _words_of_rows(run_K, run_T, len(runs_D))
            words_K = words_K.take(pa.array(word))

        occurrences = pa.table([words_K, pa.array(source_T[row_K]), pa.array(count_T[row_K])], schema=BY_SOURCE)
        counts = sum_counts(occurrences, ["word", "source"])

        numbers = pa.array(np.full(counts.num_rows, number, dtype=np.uint8))
        parts.append(pa.table([numbers, *counts.columns], schema=BY_RULES))

    return one_batch(pa.concat_tables(parts))


def _words_of_rows(run_K: Ints, run_T: NDArray[np.int32], distinct_runs: int) -> tuple[Ints, Ints]:
    """Return (indices into the words of distinct runs, the row of each), for the words of all rows."""
    # The positions of each run's words after sorting by run.
    words_by_run = np.argsort(run_K, kind="stable")
    words_of_run_D = np.bincount(run_K, minlength=distinct_runs)
    first_of_run_D = np.cumsum(words_of_run_D) - words_of_run_D

    words_of_row_T = words_of_run_D[run_T]
    places = places_of_ranges(first_of_run_D[run_T], words_of_row_T)
    return words_by_run[places], np.repeat(np.arange(len(run_T)), words_of_row_T)


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
