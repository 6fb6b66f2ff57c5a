"""Arrow IPC files: how a shard is laid out, written to bytes, opened and checked.

    text-00000-of-00008.arrow    document uint64 | source string | sentences list<string>
                                 | language | confidence, only after --language auto
    pairs-00000-of-00008.arrow   input_ids | segment_b_start | pair_label | word_starts | document_a | document_b
                                 | mask_positions | mask_tokens, only with static masks

Arrow's *file* format, zstd buffers, record batches of ROWS_PER_BATCH rows, no pandas metadata: pyarrow, polars, DuckDB
and Hugging Face datasets open them as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas import storage
from schemas.errors import DataError
from schemas.manifest import ADVICE, NAME, Manifest, Shard, check_bytes, check_size
from schemas.row_checks import check_nulls

ARROW_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
"""The exceptions that pyarrow raises on bytes that are not a valid Arrow file."""

ROWS_PER_BATCH = 1024
"""Rows of every record batch except a shard's last one, so that row i is in batch i // 1024."""

TEXT_SCHEMA = pa.schema([("document", pa.uint64()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))])
"""document: stable id from the content. source: where it came from. sentences: in order, never empty."""

LANGUAGE_COLUMNS = pa.schema([("language", pa.string()), ("confidence", pa.float32())])
"""Further columns after `shard --language auto`. language: its code. confidence: how sure the identifier is, 0 to 1."""

COUNTS_SCHEMA = pa.schema([("word", pa.string()), ("count", pa.int64())])
"""word: one pre-token as the vocabulary's model sees it. count: its exact number of occurrences."""

COUNTS_BY_SOURCE_SCHEMA = pa.schema([("word", pa.string()), ("source", pa.uint16()), ("count", pa.int64())])
"""source: an index into the list of sources in the manifest of a folder of counts."""


def token_type(vocabulary_size: int) -> pa.DataType:
    """Return the Arrow type of a token id: uint16, or uint32 above 65,536 tokens."""
    return pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()


def text_schema(has_languages: bool) -> pa.Schema:
    """Return the columns of a text shard."""
    return pa.schema([*TEXT_SCHEMA, *LANGUAGE_COLUMNS]) if has_languages else TEXT_SCHEMA


def schema_of_text(manifest: Manifest) -> pa.Schema:
    """Return the columns of the shards of a text folder with this manifest."""
    return text_schema(manifest.options.get("language") == "auto")


def decode_text(data: bytes | pa.Buffer, path: str) -> pa.Table:
    """Return the rows of a text shard, as `decode_table` does; its own columns decide about languages."""
    return decode_table(data, path, text_schema("language" in columns_of(data, path)))


def pairs_schema(vocabulary_size: int, static_masks: bool = False) -> pa.Schema:
    """Return the columns of a pair shard.

    `to_columns` in pipeline/pairs/layout.py makes their values, and `row_checks.check_pairs` checks them; one that may
    be null is in `row_checks.MAY_BE_NULL`. A change of columns raises FORMAT_VERSION.
    """
    ids = pa.list_(token_type(vocabulary_size))
    columns = {
        "input_ids": ids,  # the whole sequence, special tokens included, never padded
        "segment_b_start": pa.int32(),  # position of B's first token; the sequence's length if there is one segment
        "pair_label": pa.int8(),  # 0 = B follows A (order kept), 1 = random B (NSP) or swapped order (SOP), or null
        "word_starts": pa.list_(pa.bool_()),  # true where a word begins
        "document_a": pa.uint64(),  # where A came from; with one segment, the first document in the row
        "document_b": pa.uint64(),  # where B came from; with one segment, the last document in the row
    }
    masks = {
        "mask_positions": pa.list_(pa.list_(pa.uint16())),  # K masks of the row, each with ascending positions
        "mask_tokens": pa.list_(ids),  # the ids put there
    }
    return pa.schema(columns | masks if static_masks else columns)


def schema_of_pairs(data: bytes | pa.Buffer, path: str, vocabulary_size: int) -> pa.Schema:
    """Return the schema that a pair shard should have; its own columns decide about static masks.

    Raises DataError if the bytes are not an Arrow file.
    """
    return pairs_schema(vocabulary_size, static_masks="mask_positions" in columns_of(data, path))


def columns_of(data: bytes | pa.Buffer, path: str) -> list[str]:
    """Return the names of the columns of an Arrow file. Raises DataError if the bytes are not one."""
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            return reader.schema.names
    except ARROW_ERRORS as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error


def shard_name(kind: str, index: int, count: int) -> str:
    """Return the file name of a shard. Example: `shard_name("text", 0, 8)` -> `"text-00000-of-00008.arrow"`.

    All names in a folder have the same length, so they sort by index.
    """
    digits = max(5, len(str(count)))
    return f"{kind}-{index:0{digits}d}-of-{count:0{digits}d}.arrow"


def shard_place(name: str) -> tuple[int, int]:
    """Return (index, count) from a name that `shard_name` made. Example: `"text-00003-of-00008.arrow"` -> `(3, 8)`."""
    _, index, _, count = name.removesuffix(".arrow").split("-")
    return int(index), int(count)


class ShardEncoder:
    """Encodes a shard batch by batch, so that its rows need not be in memory together.

    Batches must be cut as by `equal_batches`: ROWS_PER_BATCH rows, and fewer only in the last one. The same rows then
    give the same bytes.
    """

    def __init__(self, schema: pa.Schema):
        """Start without rows."""
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(self._sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self._fingerprint = _no_rows()
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write_batch(batch)
        self._fingerprint.update(batch.serialize())
        self._rows += batch.num_rows

    def finish(self, path: str, tokens: int = 0) -> tuple[bytes, dict[str, Any]]:
        """Return the bytes of the Arrow file, and its `shard_entry`."""
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        return data, shard_entry(path, data, self._rows, self._fingerprint.hexdigest(), tokens)


def encode_shard(path: str, table: pa.Table, tokens: int = 0) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of an Arrow file with these rows, and its `shard_entry`."""
    encoder = ShardEncoder(table.schema)
    for batch in equal_batches(table):
        encoder.add(batch)
    return encoder.finish(path, tokens)


def shard_entry(path: str, data: bytes, rows: int, fingerprint: str, tokens: int = 0) -> dict[str, Any]:
    """Return a file's entry in the manifest (`Shard`), as a dict that reports can hold."""
    return {
        "path": path,
        "rows": rows,
        "tokens": tokens,
        "bytes": len(data),
        "sha256": storage.sha256(data),
        "fingerprint": fingerprint,
    }


def equal_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return record batches of ROWS_PER_BATCH rows, however the table was chunked."""
    if table.num_rows == 0:
        return []

    return list(taken_batches(table.combine_chunks(), np.arange(table.num_rows)))


def taken_batches(table: pa.Table, rows: NDArray[np.integer]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of ROWS_PER_BATCH rows: these rows of a table with one chunk, in this order."""
    for start in range(0, len(rows), ROWS_PER_BATCH):
        # `take`, not `slice`: Arrow writes a slice of nested columns with the offsets of all their values.
        (batch,) = table.take(pa.array(rows[start : start + ROWS_PER_BATCH])).to_batches()
        yield batch


def read_shard_bytes(folder: str, shard: Shard) -> bytes:
    """Return a shard's bytes after checking their size and sha256. Raises DataError naming the shard."""
    url = storage.join(folder, shard.path)
    try:
        data = storage.read(url)
    except DataError as error:
        raise _missing(url) from error
    check_bytes(data, shard, url)
    return data


def check_sizes(folder: str, manifest: Manifest) -> None:
    """Raise DataError for the first shard that is missing or has another size than stated. Lists the folder once."""
    sizes = storage.sizes(folder)
    for shard in manifest.shards:
        url = storage.join(folder, shard.path)
        if shard.path not in sizes:
            raise _missing(url)
        check_size(sizes[shard.path], shard, url)


def _missing(url: str) -> DataError:
    return DataError(f"{url} does not exist, but {NAME} names it. {ADVICE}")


def decode_table(data: bytes | pa.Buffer, path: str, expected: pa.Schema) -> pa.Table:
    """Return the rows of an Arrow file, fully validated, and without nulls in columns that may not have any.

    Raises DataError naming `path` and every difference between its schema and the expected one.
    """
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            problems = schema_differences(reader.schema, expected)
            if problems:
                raise DataError(f"{path} has another layout than this version reads: {'; '.join(problems)}.")
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)  # otherwise offsets out of range would crash the process instead of raising
    except ARROW_ERRORS as error:
        raise DataError(f"{path} is not a readable Arrow file ({error}). Rebuild or copy it again.") from error

    check_nulls(batches, path)
    return pa.Table.from_batches(batches, expected)


def schema_differences(found: pa.Schema, expected: pa.Schema) -> list[str]:
    """Return every difference between two schemas in words; an empty list if they agree."""
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


def content_fingerprint(batches: Iterable[pa.RecordBatch]) -> str:
    """Return the fingerprint of a shard's rows alone. It does not depend on compression, so it outlives a codec."""
    fingerprint = _no_rows()
    for batch in batches:
        fingerprint.update(batch.serialize())
    return fingerprint.hexdigest()


def _no_rows() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def check_fingerprint(table: pa.Table, path: str, stated: str) -> None:
    """Raise DataError if the rows do not have the fingerprint that a manifest states."""
    # The batches of a shard that was just read usually have the right size already; cutting them again is the expensive
    # part.
    if content_fingerprint(table.to_batches()) == stated:
        return

    found = content_fingerprint(equal_batches(table))
    if found != stated:
        raise DataError(
            f"{path} has rows with fingerprint {found}, but its manifest states {stated}: its rows were replaced. "
            "Copy it again or rebuild the folder with --overwrite."
        )
