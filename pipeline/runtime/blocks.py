"""Blocks of rows for an engine's own shuffle: the "service" half of pipeline/runtime/exchange.py."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.runtime.exchange import PIECE_BYTES, KeyedBatches, Stream
from pipeline.runtime.run_files import bucket_of, decode_blocks, encode_blocks

BLOCK_BYTES = 1 << 20
"""Maximum bytes of a block in the engine's shuffle. Flink rejects records of 10 MB."""

WireBlock = tuple[int, int, int, bytes, bytes]
"""The fields of a Block. Beam encodes a plain tuple in a sixth of the time that it takes to pickle a named one."""


class Block(NamedTuple):
    """Some rows of a bucket as bytes, or one of several parts of a block that is too large.

    stream: the number of the rows' stream. part: from 0 to parts - 1.
    name: a hash of the whole block, the same in all of its parts; empty for a block of one part.
    data: empty for a block without rows.
    """

    stream: int
    part: int
    parts: int
    name: bytes
    data: bytes

    def to_tuple(self) -> WireBlock:
        """Return the block as it is sent."""
        return (self.stream, self.part, self.parts, self.name, self.data)


NO_ROWS: WireBlock = (0, 0, 1, b"", b"")
"""A block without rows."""


def blocks_of(batches: KeyedBatches, stream: Stream, buckets: int) -> Iterator[tuple[int, WireBlock]]:
    """Yield (bucket, block) for all rows of the batches, in blocks of at most BLOCK_BYTES."""
    for keys, rows in batches:
        order = np.argsort(keys, kind="stable")
        in_order = rows.take(pa.array(order))
        numbers, starts = np.unique(bucket_of(keys[order], buckets), return_index=True)
        ends = np.append(starts, len(order))[1:]

        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True):
            for data in _small_blocks(in_order.slice(start, end - start)):
                for block in _parts_of(data, stream.number):
                    yield number, block.to_tuple()


def _small_blocks(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Halve the rows until each block is small enough or is a single row."""
    if rows.nbytes > BLOCK_BYTES and rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _small_blocks(rows.slice(0, half))
        yield from _small_blocks(rows.slice(half))
    else:
        yield bytes(encode_blocks([rows], rows.schema)[0])


def _parts_of(data: bytes, stream: int) -> Iterator[Block]:
    """Split a block above BLOCK_BYTES into parts. Only a very long document needs that; nearly all stay whole."""
    if len(data) <= BLOCK_BYTES:
        yield Block(stream, 0, 1, b"", data)
        return

    name = hashlib.blake2b(data, digest_size=16).digest()
    parts = -(-len(data) // BLOCK_BYTES)
    for part in range(parts):
        yield Block(stream, part, parts, name, data[part * BLOCK_BYTES : (part + 1) * BLOCK_BYTES])


def tables_of_blocks(blocks: Iterable[WireBlock], streams: list[Stream]) -> list[pa.Table]:
    """Return the table of each stream from the blocks of one bucket, which come in any order."""
    whole: dict[int, list[bytes]] = defaultdict(list)
    data_of_part: dict[tuple[int, bytes], dict[int, bytes]] = defaultdict(dict)
    copies: dict[tuple[int, bytes], int] = defaultdict(int)

    for block in (Block(*fields) for fields in blocks):
        if block.parts == 1:
            whole[block.stream].append(block.data)
            continue

        # Parts carry only their block's hash. A block sent n times delivers each part n times; n is counted on part 0,
        # and the joined block is added n times.
        data_of_part[block.stream, block.name][block.part] = block.data
        if block.part == 0:
            copies[block.stream, block.name] += 1

    for (stream, name), parts in data_of_part.items():
        joined = b"".join(parts[part] for part in sorted(parts))
        whole[stream] += [joined] * copies[stream, name]

    tables = []
    for stream in streams:
        batches = [batch for data in whole[stream.number] for batch in decode_blocks(data, stream.schema)]
        tables.append(pa.Table.from_batches(batches, stream.schema))
    return tables


def pieces_of_blocks(blocks: Iterable[WireBlock], stream: Stream) -> Iterator[pa.Table]:
    """Yield the rows of a bucket's only stream as tables of about PIECE_BYTES.

    Rows of such a stream are small, so every block has one part.
    """
    together: list[WireBlock] = []
    size = 0
    for block in blocks:
        together.append(block)
        size += len(Block(*block).data)
        if size >= PIECE_BYTES:
            yield tables_of_blocks(together, [stream])[0]
            together = []
            size = 0
    yield tables_of_blocks(together, [stream])[0]
