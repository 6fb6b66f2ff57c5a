"""Reads zstd files frame by frame (RFC 8878), as written by pzstd, t2sz, `cat a.zst b.zst` and the seekable format.

The block headers of a frame say where it ends, so a frame that the end of the file cuts off is detected. Each block is
decompressed separately: it has at most 128 KB of plain bytes, so memory is bounded by the frame's window. Skippable
frames, such as the seek table of the seekable format, are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import zstandard

from pipeline.shard.frames import READ_BYTES, CompressedBytes, Frames, check_magic, damaged, no_end
from schemas.errors import DataError

MAX_WINDOW_BYTES = 512 << 20
"""Memory that a frame may need. Plain zstd needs 8 MB, and `--long=27` 128 MB. Only files made with longer windows need
more, and `--long=31` needs more than a worker has."""

MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME = "zstd frame"
_RESERVED_BIT = 0x08  # of the byte after the magic

_MAX_HEADER_BYTES = 18
_BLOCK_HEADER_BYTES = 3
_MAX_BLOCK_BYTES = 1 << 17
_RLE_BLOCK = 1
_CHECKSUM_BYTES = 4

# Sixteen magic numbers that differ in their first four bits.
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
_SKIPPABLE_HEADER_BYTES = 8


def zstd_frames(source: CompressedBytes) -> Frames:
    """Yield the frames from the next byte to the end of the file.

    Raises DataError for a frame that is damaged or needs a window above MAX_WINDOW_BYTES, and EOFError for a frame
    without an end.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    frames = 0
    while head := source.peek(_MAX_HEADER_BYTES):
        frames += 1
        if _is_skippable(head):
            _skip_frame(source)
            continue

        check_magic(source, _FRAME, MAGIC, frames - 1)
        start = source.offset
        yield start, b""
        try:
            header_bytes = zstandard.frame_header_size(head)
            parameters = zstandard.get_frame_parameters(head)
            _refuse_long_window(source, parameters.window_size)

            decoder = decompressor.decompressobj()
            decoder.decompress(source.take(header_bytes))
            for block in _blocks(source, start, parameters.has_checksum):
                data = decoder.decompress(block)
                if data:
                    yield start, data
        except zstandard.ZstdError as error:
            if len(head) < _MAX_HEADER_BYTES and MAGIC.startswith(head[: len(MAGIC)]):
                raise no_end(_FRAME, start) from error
            raise damaged(source, _FRAME, start, error) from error


def _refuse_long_window(source: CompressedBytes, window_bytes: int) -> None:
    if window_bytes > MAX_WINDOW_BYTES:
        megabytes = -(-window_bytes // (1 << 20))
        raise DataError(
            f"{source.path} needs a window of {megabytes:,} MB to decompress, and workers have "
            f"{MAX_WINDOW_BYTES >> 20} MB for it. Compress it again without --long."
        )


def declared_plain_bytes(head: bytes) -> int | None:
    """Return the number of plain bytes that the first frame of a file declares; None if it declares none."""
    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return None
    return None if size == zstandard.CONTENTSIZE_UNKNOWN else size


def frame_candidates(data: bytes) -> Iterator[int]:
    """Yield the offsets in `data` at which a frame may begin."""
    place = data.find(MAGIC)
    while place >= 0:
        descriptor = data[place + 4 : place + 5]
        if descriptor and not descriptor[0] & _RESERVED_BIT:
            yield place
        place = data.find(MAGIC, place + 1)


def _blocks(source: CompressedBytes, start: int, has_checksum: bool) -> Iterator[bytes]:
    """Yield the compressed blocks of a frame with their headers, the last one also with the frame's checksum."""
    is_last = False
    while not is_last:
        header = int.from_bytes(source.peek(_BLOCK_HEADER_BYTES), "little")
        is_last = bool(header & 1)
        kind = (header >> 1) & 3
        size = header >> 3
        if size > _MAX_BLOCK_BYTES:
            raise damaged(source, _FRAME, start, f"a block of {size:,} bytes at byte {source.offset:,}")

        # An RLE block stores one byte, which is repeated; its size field is the number of plain bytes.
        wanted = _BLOCK_HEADER_BYTES + (1 if kind == _RLE_BLOCK else size)
        if is_last and has_checksum:
            wanted += _CHECKSUM_BYTES
        block = source.take(wanted)
        if len(block) < wanted:
            raise no_end(_FRAME, start)
        yield block


def _is_skippable(head: bytes) -> bool:
    return head[1:4] == _SKIPPABLE_MAGIC and head[0] >> 4 == 5


def _skip_frame(source: CompressedBytes) -> None:
    start = source.offset
    header = source.take(_SKIPPABLE_HEADER_BYTES)
    remaining = int.from_bytes(header[4:], "little")
    if len(header) < _SKIPPABLE_HEADER_BYTES:
        raise no_end("skippable zstd frame", start)

    while remaining:
        data = source.take(min(READ_BYTES, remaining))
        if not data:
            raise no_end("skippable zstd frame", start)
        remaining -= len(data)
