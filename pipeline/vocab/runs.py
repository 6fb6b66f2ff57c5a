"""Counting the runs of non-spaces in sentences ("don't,"), most of which repeat.

Runs are found and counted as arrays: a boolean for each byte says where a run begins, and Arrow's hash table numbers
the distinct runs. No run becomes a Python string.

Shape suffixes: B bytes of the text, R runs in the text, D distinct runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from schemas.ragged import offsets_of

SPACE = 0x20
CUT_AT_ONCE = 1 << 20  # bytes of sentences that are cut at once: their arrays stay in the processor's cache
COUNTED_AT_ONCE = 64 << 20  # bytes of runs that are counted with one hash table, in some 3 bytes per byte

RUNS_SCHEMA = pa.schema([("run", pa.string()), ("source", pa.uint16()), ("count", pa.int64())])
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
    """Cut documents into ranges of rows of some CUT_AT_ONCE bytes."""
    if len(documents) == 0:
        return []

    # The offsets of sentences are those of bytes, so two look-ups give the size of a document.
    sentence_of_row = documents.offsets.to_numpy()
    byte_of_sentence = offsets_of_strings(documents.values)
    bytes_before_row = byte_of_sentence[sentence_of_row] - byte_of_sentence[sentence_of_row[0]]

    piece_of_row = bytes_before_row[:-1] // CUT_AT_ONCE
    starts = np.flatnonzero(np.diff(piece_of_row, prepend=-1)).tolist()
    return list(zip(starts, [*starts[1:], len(documents)], strict=True))


def _runs_of(documents: pa.ListArray, source_of_row: NDArray[np.uint16]) -> _Piece:
    """Cut the sentences of some documents at spaces."""
    sentences = documents.flatten()
    text_B = bytes_of_strings(sentences)
    offsets = offsets_of_strings(sentences)
    offsets = offsets - offsets[0]
    is_space_B = text_B == SPACE

    # A run begins where a sentence does and after each space. Runs between two spaces are empty.
    is_start_B1 = np.zeros(len(text_B) + 1, dtype=bool)
    is_start_B1[1:] = is_space_B
    is_start_B1[offsets] = True
    start_R1 = np.flatnonzero(is_start_B1)
    lengths_R = np.diff(start_R1) - is_space_B[start_R1[1:] - 1]

    # Without the spaces, the runs lie end to end, which is the form of an Arrow column.
    runs_R = strings_of(text_B[~is_space_B], lengths_R)

    sentences_of_row = documents.value_lengths().to_numpy(zero_copy_only=False)
    runs_of_sentence = np.diff(np.searchsorted(start_R1, offsets))
    source_R = np.repeat(np.repeat(source_of_row, sentences_of_row), runs_of_sentence)
    return _Piece(runs_R, source_R)


def _count_pieces(pieces: list[_Piece]) -> pa.Table:
    """Return (RUNS_SCHEMA) the counts of the runs in some pieces. Each run of a source has one row."""
    if not pieces:
        return RUNS_SCHEMA.empty_table()

    # Arrow numbers the runs of all chunks with one hash table.
    encoded = pa.chunked_array([piece.runs_R for piece in pieces], pa.string()).dictionary_encode()
    runs_D = encoded.chunk(encoded.num_chunks - 1).dictionary
    run_R = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    source_R = np.concatenate([piece.source_R for piece in pieces])
    distinct, source_of_distinct, counts = _count_pairs(run_R, source_R, len(runs_D))

    columns = [runs_D.take(pa.array(distinct)), pa.array(source_of_distinct), pa.array(counts)]
    counted = pa.table(columns, schema=RUNS_SCHEMA)
    return counted.filter(pc.not_equal(counted["run"], ""))  # type: ignore[attr-defined]


def _count_pairs(
    run_R: NDArray[np.int32], source_R: NDArray[np.uint16], distinct_runs: int
) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64]]:
    """Count the pairs of run and source. Returns the run, the source and the count of each pair that occurs."""
    found = []
    for source in np.unique(source_R).tolist():
        counts_D = np.bincount(run_R[source_R == source], minlength=distinct_runs)
        runs = np.flatnonzero(counts_D)
        found.append((runs, np.full(len(runs), source, dtype=np.uint16), counts_D[runs]))

    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.uint16), np.zeros(0, np.int64)
    runs, sources, counts = zip(*found, strict=True)
    return np.concatenate(runs), np.concatenate(sources), np.concatenate(counts)


def strings_of(text_B: NDArray[np.uint8], lengths: NDArray[Any]) -> pa.StringArray:
    """Return strings that lie end to end in `text_B`, by their lengths in bytes."""
    offsets = offsets_of(np.asarray(lengths)).astype(np.int32)
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text_B))


def offsets_of_strings(strings: pa.StringArray) -> NDArray[np.int32]:
    """Return (strings + 1,) where each string begins in its buffer, and where the last one ends."""
    _, offsets, _ = strings.buffers()
    return np.frombuffer(offsets, np.int32)[strings.offset :][: len(strings) + 1]


def bytes_of_strings(strings: pa.StringArray) -> NDArray[np.uint8]:
    """Return the bytes of all strings, end to end."""
    _, _, text = strings.buffers()
    if text is None:
        return np.zeros(0, dtype=np.uint8)

    offsets = offsets_of_strings(strings)
    return np.frombuffer(text, np.uint8)[offsets[0] : offsets[-1]]


def slices_of_strings(strings: pa.StringArray, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive slices with at most so many bytes each, or with one longer string."""
    ends = offsets_of_strings(strings).astype(np.int64)
    start = 0
    while start < len(strings):
        within = int(np.searchsorted(ends, ends[start] + num_bytes, side="right")) - 1
        stop = max(within, start + 1)
        yield start, stop
        start = stop
