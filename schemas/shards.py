"""Arrow IPC files: how a shard is laid out, written to bytes, opened and checked.

    text-00000-of-00008.arrow    document uint64 | source string | sentences list<string>
    pairs-00000-of-00008.arrow   input_ids | segment_b_start | pair_label | word_starts | document_a | document_b
                                 | mask_positions | mask_tokens, only where static masks were asked for

Arrow's *file* format, zstd buffers, record batches of ROWS_PER_BATCH rows, no pandas metadata: pyarrow, polars, DuckDB
and Hugging Face datasets open them as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from schemas.errors import DataError

ROWS_PER_BATCH = 1024
"""Rows in every record batch but a shard's last, so that row i is in batch i // 1024."""

TEXT = pa.schema([("document", pa.uint64()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])
"""document: stable id from the content. source: where it came from. sentences: in order, never empty."""

COUNTS = pa.schema([("word", pa.string()), ("count", pa.int64())])
"""word: one pre-token as the vocabulary's model sees it. count: its exact number of occurrences."""


def token_type(vocabulary_size: int) -> pa.DataType:
    """The type of a token id: uint16, or uint32 above 65,536 tokens."""
    return pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()


def pairs_schema(vocabulary_size: int, static_masks: bool = False) -> pa.Schema:
    """The columns of a pair shard.

    input_ids: the whole sequence, special tokens included, never padded. segment_b_start: position of B's first
    token, the sequence's length when there is one segment. pair_label: 0 = B follows A (order kept), 1 = random B
    (NSP) or swapped order (SOP), null without a pair objective. word_starts: true where a word begins. document_a,
    document_b: where each segment came from; with one segment, the first and the last document in the row.
    mask_positions, mask_tokens: K masks of the row, each the positions chosen, rising, and the ids that are put there.
    """
    ids = pa.list_(token_type(vocabulary_size))
    columns = [
        ("input_ids", ids),
        ("segment_b_start", pa.int32()),
        ("pair_label", pa.int8()),
        ("word_starts", pa.list_(pa.bool_())),
        ("document_a", pa.uint64()),
        ("document_b", pa.uint64()),
    ]
    masks = [("mask_positions", pa.list_(pa.list_(pa.uint16()))), ("mask_tokens", pa.list_(ids))]
    return pa.schema(columns + masks if static_masks else columns)


def schema_of_pairs(data: bytes | pa.Buffer, path: str, vocabulary_size: int) -> pa.Schema:
    """The schema that a pair shard's bytes should have, with or without static masks as it says itself.

    Raises DataError when the bytes are no Arrow file.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            return pairs_schema(vocabulary_size, static_masks="mask_positions" in reader.schema.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error


def shard_name(kind: str, index: int, count: int) -> str:
    """Example: `shard_name("text", 0, 8)` -> `"text-00000-of-00008.arrow"`."""
    return f"{kind}-{index:05d}-of-{count:05d}.arrow"


def encode_table(table: pa.Table) -> bytes:
    """A table as the bytes of an Arrow file with this project's layout. The same rows give the same bytes."""
    return encode_batches(equal_batches(table), table.schema)


def encode_batches(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """The same for a table that `equal_batches` has cut already."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def equal_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Record batches of ROWS_PER_BATCH rows, whatever the table's chunks were."""
    batch = table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)
    starts = range(0, batch.num_rows, ROWS_PER_BATCH)
    # Taken, not sliced: Arrow writes a slice of nested columns with the offsets of all their values.
    return [batch.take(pa.array(np.arange(i, min(i + ROWS_PER_BATCH, batch.num_rows)))) for i in starts]


def decode_table(data: bytes | pa.Buffer, path: str, expected: pa.Schema) -> pa.Table:
    """The rows of an Arrow file, fully validated. Raises DataError naming `path` and every difference."""
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            problems = schema_differences(reader.schema, expected)
            if problems:
                raise DataError(f"{path} has another layout than this version reads: {'; '.join(problems)}.")
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # offsets out of range would otherwise crash the process, not raise
    except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error
    return pa.Table.from_batches(batches, expected)


def schema_differences(found: pa.Schema, expected: pa.Schema) -> list[str]:
    """Every way in which `found` is not `expected`, in words; empty when they agree."""
    known = {field.name: field.type for field in expected}
    types = dict(zip(found.names, found.types, strict=True))
    missing = [f"column {name} ({kind}) is missing" for name, kind in known.items() if name not in types]
    extra = [f"column {name} is unknown" for name in types if name not in known]
    wrong = [
        f"column {name} is {types[name]}, expected {kind}"
        for name, kind in known.items()
        if name in types and types[name] != kind
    ]
    if not (missing or extra or wrong) and found.names != expected.names:
        wrong = [f"columns are in the order {found.names}, expected {expected.names}"]
    return missing + extra + wrong


def check_pairs(table: pa.Table, path: str, vocabulary_size: int) -> None:
    """Raises DataError naming the first row whose values are out of range; an id too large would crash a GPU kernel."""
    if table.num_rows == 0:
        return
    ids, starts = table["input_ids"].combine_chunks(), table["word_starts"].combine_chunks()
    lengths = np.diff(ids.offsets.to_numpy())
    cut, label = table["segment_b_start"].to_numpy(), table["pair_label"].combine_chunks().fill_null(0).to_numpy()
    is_wide = ids.flatten().to_numpy() >= vocabulary_size
    wide = np.repeat(np.arange(len(lengths)), lengths)[is_wide] if is_wide.any() else np.zeros(0, dtype=int)
    faults = {
        f"an id of {vocabulary_size} or more": wide,
        "no tokens": np.flatnonzero(lengths == 0),
        "a segment_b_start outside of the row": np.flatnonzero((cut < 0) | (cut > lengths)),
        "a pair_label other than 0, 1 or null": np.flatnonzero((label != 0) & (label != 1)),
        "word_starts of another length than input_ids": np.flatnonzero(np.diff(starts.offsets.to_numpy()) != lengths),
    }
    if "mask_positions" in table.column_names:
        faults |= _mask_faults(table, lengths, vocabulary_size)
    for fault, rows in faults.items():
        if len(rows):
            raise DataError(f"{path}, row {rows[0]}, has {fault}. Rebuild the folder with --overwrite.")


def _mask_faults(table: pa.Table, lengths: np.ndarray, vocabulary_size: int) -> dict[str, np.ndarray]:
    """Rows whose stored masks are out of range, by what is wrong with them."""
    positions, tokens = (table[name].combine_chunks() for name in ("mask_positions", "mask_tokens"))
    sizes, token_sizes = (np.diff(column.flatten().offsets.to_numpy()) for column in (positions, tokens))
    variants = np.diff(positions.offsets.to_numpy())
    if not np.array_equal(variants, np.diff(tokens.offsets.to_numpy())) or not np.array_equal(sizes, token_sizes):
        return {"mask_tokens of another length than mask_positions": np.zeros(1, dtype=int)}
    row = np.repeat(np.repeat(np.arange(len(variants)), variants), sizes)
    return {
        "a mask position outside of the row": row[positions.flatten().flatten().to_numpy() >= lengths[row]],
        f"a mask token of {vocabulary_size} or more": row[tokens.flatten().flatten().to_numpy() >= vocabulary_size],
    }


def content_fingerprint(batches: Iterable[pa.RecordBatch]) -> str:
    """A hash of the rows alone: independent of compression, so that it outlives a change of codec."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        digest.update(batch.serialize())
    return digest.hexdigest()
