"""Counts the runs of non-spaces in sentences ("don't,"), most of which repeat.

Runs are found and counted as arrays: a boolean for each byte says where a run begins, and Arrow's hash table numbers
the distinct runs. No run becomes a Python string.

Shape suffixes: B bytes of the text, R runs in the text, R1 one more, for the end of the text, S sentences, D distinct
runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.vocab.arrow_strings import bytes_of_strings, offsets_of_strings, strings_of

SPACE = 0x20
CUT_AT_ONCE = 1 << 20  # bytes of sentences that are cut at once: their arrays stay in the processor's cache
COUNTED_AT_ONCE = 64 << 20  # bytes of runs that are counted with one hash table, which takes some 3 times their memory

RUNS_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("source", pa.uint16()),
        ("count", pa.int64()),
    ]
)
"""How often each run occurs in a source. `source` is an index into a list of sources."""


def count_runs(text: pa.Table, source_of_row: NDArray[np.uint16]) -> Iterator[pa.Table]:
    """Yield tables of RUNS_SCHEMA whose sum is the count of all runs in a text shard (shards.TEXT_SCHEMA)."""
    pieces: list[_Piece] = []
    size = 0

    for batch in text.to_batches():
        documents = batch["sentences"]
        for start, end in _ranges(documents):
            piece = _runs_of(documents[start:end], source_of_row[start:end])
            pieces.append(piece)
            size += piece.runs_R.nbytes

            if size >= COUNTED_AT_ONCE:
                yield _count_pieces(pieces)
                pieces = []
                size = 0

        source_of_row = source_of_row[batch.num_rows :]

    yield _count_pieces(pieces)


@dataclass(frozen=True)
class _Piece:
    """The runs of some documents, in order, and the source of each."""

    runs_R: pa.StringArray
    source_R: NDArray[np.uint16]


def _ranges(documents: pa.ListArray) -> list[tuple[int, int]]:
    """Cut documents into ranges of rows of about CUT_AT_ONCE bytes."""
    if len(documents) == 0:
        return []

    # A row's offset is the index of its first sentence, whose own offset is in bytes.
    first_sentence_of_row = documents.offsets.to_numpy()
    byte_of_sentence = offsets_of_strings(documents.values)
    byte_of_row = byte_of_sentence[first_sentence_of_row]
    bytes_before_row = byte_of_row - byte_of_row[0]

    # A new range begins at the first row in each CUT_AT_ONCE bytes of text.
    range_of_row = bytes_before_row[:-1] // CUT_AT_ONCE
    starts = np.flatnonzero(np.diff(range_of_row, prepend=-1)).tolist()
    ends = [*starts[1:], len(documents)]
    return list(zip(starts, ends, strict=True))


def _runs_of(documents: pa.ListArray, source_of_row: NDArray[np.uint16]) -> _Piece:
    """Cut the sentences of some documents at spaces."""
    sentences = documents.flatten()
    text_B = bytes_of_strings(sentences)
    offsets = offsets_of_strings(sentences)
    sentence_starts_S1 = offsets - offsets[0]
    is_space_B = text_B == SPACE

    # A run begins at the start of a sentence and after each space. Runs between two spaces are empty.
    is_start_B1 = np.zeros(len(text_B) + 1, dtype=bool)
    is_start_B1[1:] = is_space_B
    is_start_B1[sentence_starts_S1] = True
    start_R1 = np.flatnonzero(is_start_B1)

    # A run ends where the next one begins, or one byte earlier if there is a space between them.
    ends_with_space_R = is_space_B[start_R1[1:] - 1]
    lengths_R = np.diff(start_R1) - ends_with_space_R

    # Without the spaces, the runs are end to end, which is the layout of an Arrow column.
    runs_R = strings_of(text_B[~is_space_B], lengths_R)

    sentences_of_row = documents.value_lengths().to_numpy(zero_copy_only=False)
    source_S = np.repeat(source_of_row, sentences_of_row)
    runs_of_sentence_S = np.diff(np.searchsorted(start_R1, sentence_starts_S1))
    source_R = np.repeat(source_S, runs_of_sentence_S)
    return _Piece(runs_R, source_R)


def _count_pieces(pieces: list[_Piece]) -> pa.Table:
    """Return the counts of the runs in some pieces (RUNS_SCHEMA). Each run and source has one row."""
    if not pieces:
        return RUNS_SCHEMA.empty_table()

    # Arrow numbers the runs of all chunks with one hash table, so the last chunk's dictionary has all of them.
    runs = pa.chunked_array([piece.runs_R for piece in pieces], pa.string())
    encoded = runs.dictionary_encode()
    runs_D = encoded.chunk(encoded.num_chunks - 1).dictionary
    run_R = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    source_R = np.concatenate([piece.source_R for piece in pieces])

    pairs = _count_pairs(run_R, source_R, len(runs_D))
    columns = [
        runs_D.take(pa.array(pairs.run)),
        pa.array(pairs.source),
        pa.array(pairs.count),
    ]
    counted = pa.table(columns, schema=RUNS_SCHEMA)

    is_run = pc.not_equal(counted["run"], "")  # type: ignore[attr-defined]
    return counted.filter(is_run)


@dataclass(frozen=True)
class _Pairs:
    """The pairs of run and source that occur, and their counts."""

    run: NDArray[np.int64]
    source: NDArray[np.uint16]
    count: NDArray[np.int64]


def _count_pairs(run_R: NDArray[np.int32], source_R: NDArray[np.uint16], distinct_runs: int) -> _Pairs:
    """Count the pairs of run and source. They are sorted by source, then by run."""
    # Start with empty arrays, because a text may have no runs.
    runs = [np.zeros(0, np.int64)]
    sources = [np.zeros(0, np.uint16)]
    counts = [np.zeros(0, np.int64)]

    for source in np.unique(source_R).tolist():
        runs_of_source = run_R[source_R == source]
        count_D = np.bincount(runs_of_source, minlength=distinct_runs)
        occurring = np.flatnonzero(count_D)

        runs.append(occurring)
        sources.append(np.full(len(occurring), source, dtype=np.uint16))
        counts.append(count_D[occurring])

    return _Pairs(
        run=np.concatenate(runs),
        source=np.concatenate(sources),
        count=np.concatenate(counts),
    )
