"""The sentences of many documents as one Arrow column, which takes half the memory of as many Python strings."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from schemas.shards import TEXT_SCHEMA

_TYPE = TEXT_SCHEMA.field("sentences").type

CHUNK_BYTES = 1 << 20
"""Text that waits as Python strings. So little stays in the processor's cache, and its memory is used again."""


_ITERATED_ROWS = 256  # become Python strings at once


class SentenceColumn:
    """A list of documents, each a list of sentences, that only grows."""

    def __init__(self) -> None:
        self._chunks: list[pa.ListArray] = []
        self._pending: list[list[str]] = []
        self._pending_bytes = 0

    def append(self, sentences: list[str], text_bytes: int) -> None:
        """Add a document with that many bytes of UTF-8."""
        self._pending.append(sentences)
        self._pending_bytes += text_bytes
        if self._pending_bytes >= CHUNK_BYTES:
            self._close_chunk()

    def to_arrow(self) -> pa.ListArray:
        """Return the column: (documents,) list<string>."""
        self._close_chunk()
        whole = pa.concat_arrays(self._chunks)
        self._chunks = [whole]  # so that the parts are free
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
