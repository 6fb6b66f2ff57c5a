"""Reads large compressed files in ranges, which are cut at the frames that begin early in one of a file's cells.

The launcher does not know where frames begin, so it cuts large compressed files into ranges of CELL_BYTES of the
compressed file and leaves it to the workers to find frames. Cut points are those frames that begin in the first
SEARCH_BYTES of a cell, whatever the ranges are. A range owns all frames from its first cut point up to the first cut
point at or after its end; a range without a cut point owns nothing. Frames are adjacent, so the ranges own every frame
exactly once.

Cost: a range in which no frame begins costs one read of SEARCH_BYTES, a quarter of a cell. If a file is a single large
frame, that is every range but the first. Most such files say in their first or last bytes that they are one frame; then
the cost is a read of a few bytes, remembered by the process. Frames larger than a cell are read once, by the range with
the last cut point before them.

Finding frames: bytes that look like the beginning of a frame also occur inside of frames, by chance or because the
plain text contains compressed data. A place counts only if what begins there can be decompressed, to its end or for
VERIFIED_BYTES, and another frame or the end of the file follows it. By chance that happens less than once in 2^60
places. It is also checked: the reader of a range repeats the next range's search, and raises DataError unless that
finds the frame that it has just reached.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import zstandard

from pipeline.readers.frames import (
    BLOCK_NAME,
    CODECS,
    GZIP_MAGIC,
    ZSTD_MAGIC,
    CompressedBytes,
    Frames,
    block_candidates,
)
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSORS, Stream, as_file, plain_frames
from pipeline.readers.ranges import open_range
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

CELL_BYTES = 4 << 20
"""Compressed bytes between places where a file may be cut. They contain about as much text as one plain split."""

SEARCH_BYTES = 1 << 20
"""A frame that begins within this many bytes of a cell's start is a cut point. Every bzip2 block is shorter."""

VERIFIED_BYTES = 1 << 20
"""Plain bytes of a candidate frame that must decompress without an error, unless the frame is shorter."""

VERIFIED_READ = 1 << 18
"""Minimum compressed bytes to read, so that checking a frame takes one request."""

MAGIC_BYTES = 8
"""Extra bytes that are read after a window, because the beginning of a frame may cross its end."""

ONE_FRAME_GROWTH = 2
"""A frame with this many times the bytes of the whole compressed file is assumed to be its only one: text compresses
better than that."""

_GZIP_RESERVED = 0xE0  # bits of the byte after the magic
_ZSTD_RESERVED = 0x08
_GZIP_SIZE_BYTES = 4  # at the end of a file: plain bytes of its last member, modulo 2^32
_ZSTD_HEADER_BYTES = 18


def _candidates(magic: bytes, reserved_bits: int, data: bytes) -> Iterator[int]:
    """Yield the offsets in `data` at which a frame may begin: with `magic`, and then a byte without reserved bits."""
    place = data.find(magic)
    while place >= 0:
        following = data[place + len(magic) : place + len(magic) + 1]
        if following and not following[0] & reserved_bits:
            yield place
        place = data.find(magic, place + 1)


FRAME_FORMATS: dict[str, Callable[[bytes], Iterator[int]]] = {
    "gzip": partial(_candidates, GZIP_MAGIC, _GZIP_RESERVED),
    "zstd": partial(_candidates, ZSTD_MAGIC, _ZSTD_RESERVED),
    "bz2": block_candidates,
}
"""For each compression, what yields the offsets in some bytes at which a frame may begin."""


def is_cut_point(frame_start: int) -> bool:
    """Return whether a frame that begins at this byte of the compressed file makes a cut point."""
    return frame_start % CELL_BYTES < SEARCH_BYTES


@lru_cache(1024)  # one bit for each file that this process reads a range of
def is_one_frame(file: InputFile, compression: str) -> bool:
    """Return whether the first or last bytes of a file say that it is a single frame, so that no search is needed.

    Files of one frame that do not say so, such as gzip with over 4 GB of plain text, cost their readers a search.
    """
    if compression == "bz2":
        return False

    if compression == "gzip":
        with open_range(file, max(0, file.size - _GZIP_SIZE_BYTES)) as opened:
            plain_bytes = int.from_bytes(opened.read(_GZIP_SIZE_BYTES), "little")
    else:
        with open_range(file) as opened:
            plain_bytes = _declared_plain_bytes(opened.read(_ZSTD_HEADER_BYTES))
    return plain_bytes >= ONE_FRAME_GROWTH * file.size


def _declared_plain_bytes(head: bytes) -> int:
    """Return the number of plain bytes that the first zstd frame of a file declares; 0 if it declares none."""
    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return 0
    return 0 if size == zstandard.CONTENTSIZE_UNKNOWN else size


def first_cut_point(file: InputFile, compression: str, start: int, end: int) -> tuple[int, bytes] | None:
    """Return the offset of the first cut point in bytes [start, end) of a compressed file, or None.

    Also returns what was read from there on, to see that it is one.
    """
    cell_start = start - start % CELL_BYTES
    for window_start in range(cell_start, end, CELL_BYTES):
        first = max(start, window_start)
        last = min(end, window_start + SEARCH_BYTES)
        if first >= last:
            continue

        wanted = max(last - first + MAGIC_BYTES, VERIFIED_READ)
        with open_range(file, first, first + wanted) as opened:
            data = opened.read(wanted)

        for place in FRAME_FORMATS[compression](data[: last - first + MAGIC_BYTES]):
            offset, known = first + place, data[place:]
            if offset < last and _is_frame(file, compression, offset, known):
                return offset, known
    return None


def check_next_cut_point(file_range: FileRange, frame_start: int | None) -> None:
    """Raise DataError unless the search by the next range's reader finds the frame at `frame_start`.

    frame_start: the next cut point that this reader reached; None if there is none up to the end of the file.
    """
    file, compression = file_range.file, file_range.compression or ""
    last = file.size if frame_start is None else frame_start + 1
    found = first_cut_point(file, compression, file_range.end, last)
    if (found and found[0]) == frame_start:
        return

    if found is None:
        frame = CODECS[compression].frame if compression in CODECS else BLOCK_NAME
        raise DataError(
            f"{file_range.display_path} is damaged: the {frame} that begins at byte {frame_start:,} of the compressed "
            "file cannot be read. Copy the file again, or leave it out."
        )
    raise DataError(
        f"{file_range.display_path} cannot be read in pieces: at byte {found[0]:,} of the compressed file, it holds "
        "compressed data within compressed data. Decompress it, and compress its text alone."
    )


def _is_frame(file: InputFile, compression: str, start: int, known: bytes) -> bool:
    plain_bytes = 0
    try:
        with open_range(file, start, known=known) as opened:
            for frame_start, data in DECOMPRESSORS[compression](CompressedBytes(file.path, opened, start)):
                plain_bytes += len(data)
                if frame_start != start or plain_bytes >= VERIFIED_BYTES:
                    return True
    except (DataError, EOFError):
        return False
    return True


def open_cut(file_range: FileRange, max_ratio: int) -> Stream:
    """Open a range of a large compressed file: from its first frame to the end of the file; empty if it owns none.

    The stream's `end` is set where the frames of the next range begin. Reading raises DataError for a decompression
    bomb or damage, and the exceptions in DECOMPRESSION_ERRORS.
    """
    stream = Stream(io.BytesIO())  # replaced, because what reads the file sets the end
    chunks = _chunks(file_range, max_ratio, stream)
    stream.file = as_file(chunks, chunks.close)
    return stream


def _chunks(file_range: FileRange, max_ratio: int, stream: Stream) -> Generator[bytes, None, None]:
    file, compression = file_range.file, file_range.compression or ""
    one_frame = is_one_frame(file, compression)
    start, known = 0, b""
    if file_range.start > 0:
        cut_point = None if one_frame else first_cut_point(file, compression, file_range.start, file_range.end)
        if cut_point is None:
            return
        start, known = cut_point

    with open_range(file, start, file_range.size if one_frame else file_range.end, known) as opened:
        frames = plain_frames(CompressedBytes(file_range.display_path, opened, start), compression, max_ratio)
        yield from (data for _, data in frames) if one_frame else _noting_end(frames, file_range, stream)


def _noting_end(frames: Frames, file_range: FileRange, stream: Stream) -> Iterator[bytes]:
    """Yield the bytes of frames, and note where the next range begins."""
    plain_bytes = 0
    found_end = False
    for frame_start, data in frames:
        if not found_end and frame_start >= file_range.end and is_cut_point(frame_start):
            check_next_cut_point(file_range, frame_start)
            stream.end = plain_bytes
            found_end = True

        plain_bytes += len(data)
        yield data
    if not found_end:
        check_next_cut_point(file_range, None)
