"""The sentences of many documents as one Arrow column, which takes half the memory of Python strings."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from schemas.shards import TEXT_SCHEMA

_TYPE = TEXT_SCHEMA.field("sentences").type

CHUNK_BYTES = 1 << 20
"""Bytes of text that wait as Python strings. This little stays in the processor's cache, and its memory is reused."""


_ITERATED_ROWS = 256  # rows that become Python strings at once


class SentenceColumn:
    """An append-only list of documents, each a list of sentences."""

    def __init__(self) -> None:
        self._chunks: list[pa.ListArray] = []
        self._pending: list[list[str]] = []
        self._pending_bytes = 0

    def append(self, sentences: list[str], text_bytes: int) -> None:
        """Add a document whose sentences have `text_bytes` bytes of UTF-8."""
        self._pending.append(sentences)
        self._pending_bytes += text_bytes
        if self._pending_bytes >= CHUNK_BYTES:
            self._close_chunk()

    def to_arrow(self) -> pa.ListArray:
        """Return the column: (documents,) list<string>."""
        self._close_chunk()
        whole = pa.concat_arrays(self._chunks)
        self._chunks = [whole]  # releases the parts
        pa.default_memory_pool().release_unused()
        return whole

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the sentences of each document."""
        for chunk in self._chunks:
            for start in range(0, len(chunk), _ITERATED_ROWS):
                yield from chunk.slice(start, _ITERATED_ROWS).to_pylist()
        yield from self._pending

    def _close_chunk(self) -> None:
        self._chunks.append(pa.array(self._pending, _TYPE))
        self._pending = []
        self._pending_bytes = 0
