"""What gzip, xz, zstd and bzip2 files have in common: parts that can be read without the parts before them.

Here all such parts are called frames: the members of gzip, the streams of xz, the frames of zstd, the blocks of bzip2.
Their readers (`gzip_members`, `xz_streams`, `zstd_frames`, and `bzip2_blocks` in bzip2_blocks.py) are generators of
(offset of the frame in the compressed file, plain bytes) pairs. Each frame begins with a pair without bytes, so empty
frames are seen too. The bytes of one pair are few, so a decompression bomb can be refused before it fills memory.

gzip (RFC 1952): several members are written by `cat a.gz b.gz`, bgzip and the writers of WARC files.

zstd (RFC 8878): several frames are written by pzstd, t2sz, `cat a.zst b.zst` and the seekable format. The block headers
of a frame say where it ends, so a frame that the end of the file cuts off is detected. Each block is decompressed
separately: it has at most 128 KB of plain bytes, so memory is bounded by the frame's window. Skippable frames, such as
the seek table of the seekable format, are skipped.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO

import zstandard

from schemas.errors import DataError

CHUNK_BYTES = 1 << 17
"""Maximum plain bytes of one pair. For bzip2, a pair is one block, which may have 46 MB."""

READ_BYTES = 1 << 16

Frames = Iterator[tuple[int, bytes]]


class CompressedBytes:
    """The bytes of a compressed file in order. `offset` is the position in the file of the next byte.

    path: the file's name in errors.
    file: positioned at `offset`.
    """

    def __init__(self, path: str, file: IO[bytes], offset: int = 0):
        self.path = path
        self.offset = offset
        self._file = file
        self._held = b""  # read from the file, but not taken yet

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes; fewer only at the end of the file."""
        data = self.peek(size)
        self._held = self._held[len(data) :]
        self.offset += len(data)
        return data

    def take_some(self) -> bytes:
        """Return the next bytes: those already held, or the result of one read; empty only at the end of the file."""
        data = self._held or self._file.read(READ_BYTES)
        self._held = b""
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without taking them; fewer only at the end of the file."""
        while len(self._held) < size:
            data = self._file.read(max(READ_BYTES, size - len(self._held)))
            if not data:
                break
            self._held += data
        return self._held[:size]

    def give_back(self, data: bytes) -> None:
        """Undo the taking of `data`, the last bytes that were taken."""
        self._held = data + self._held
        self.offset -= len(data)


FrameReader = Callable[[CompressedBytes], Frames]


def damaged(source: CompressedBytes, frame: str, start: int, cause: object) -> DataError:
    """Return the error for an unreadable frame: `frame` names its kind, `start` is its compressed offset."""
    return DataError(
        f"{source.path} is damaged: the {frame} that begins at byte {start:,} of the compressed file cannot be read "
        f"({cause}). Copy the file again, or leave it out."
    )


def check_magic(source: CompressedBytes, frame: str, magic: bytes, frames_before: int) -> None:
    """Raise DataError unless the next bytes, as far as the file has any, begin a frame.

    frames_before: the number of frames read before it. If there are some, the message says that they are whole.
    """
    head = source.peek(len(magic))
    if magic.startswith(head):
        return

    start = source.offset
    if start == 0:
        raise misnamed(source.path, frame.partition(" ")[0])
    if not frames_before:
        raise damaged(source, frame, start, "there is none")
    raise DataError(
        f"{source.path} is damaged: the {frame} that begins at byte {start:,} of the compressed file cannot be read "
        f"(there is none), and what comes before is whole. If something was appended there, cut it off with `head -c "
        f"{start} FILE > NEW_FILE`; otherwise copy the file again, or leave it out."
    )


def misnamed(path: str, compression: str) -> DataError:
    """Return the error for a file that is not compressed in the way that its suffix says."""
    return DataError(
        f"{path} is not {compression}, although its name says so. Rename it after what it is, or compress it."
    )


def no_end(frame: str, start: int) -> EOFError:
    """Return the error for a frame that the end of the file cuts off."""
    return EOFError(f"the {frame} that begins at byte {start:,} of the compressed file has no end")


def candidates(magic: bytes, reserved_bits: int, data: bytes) -> Iterator[int]:
    """Yield the offsets in `data` at which a frame may begin: with `magic`, and then a byte without reserved bits."""
    place = data.find(magic)
    while place >= 0:
        following = data[place + len(magic) : place + len(magic) + 1]
        if following and not following[0] & reserved_bits:
            yield place
        place = data.find(magic, place + 1)


# ---- gzip ----

GZIP_MAGIC = b"\x1f\x8b\x08"  # with the only compression method that exists
_MEMBER = "gzip member"
GZIP_RESERVED = 0xE0  # bits of the byte after the magic
_GZIP_WINDOW = 31  # zlib's number for a gzip header and a window of 32 KB


def gzip_members(source: CompressedBytes) -> Frames:
    """Yield the members from the next byte to the end of the file. Zeros after a member are padding.

    Raises DataError for a damaged member, and EOFError for a member without an end.
    """
    members = 0
    while _skip_padding(source):
        check_magic(source, _MEMBER, GZIP_MAGIC[:2], members)
        members += 1
        start = source.offset
        yield start, b""

        decoder = zlib.decompressobj(_GZIP_WINDOW)
        while not decoder.eof:
            block = decoder.unconsumed_tail or source.take_some()
            if not block:
                raise no_end(_MEMBER, start)
            try:
                data = decoder.decompress(block, CHUNK_BYTES)
            except zlib.error as error:
                raise damaged(source, _MEMBER, start, error) from error
            if data:
                yield start, data

        source.give_back(decoder.unused_data)


def _skip_padding(source: CompressedBytes) -> bool:
    """Skip zeros. Return whether anything follows them."""
    while block := source.take_some():
        rest = block.lstrip(b"\0")
        if rest:
            source.give_back(rest)
            return True
    return False


# ---- xz ----

_XZ_MAGIC = b"\xfd7zXZ\x00"
_LZMA_MAGIC = b"\x5d\x00\x00"  # of the older .lzma format
_STREAM = "xz stream"


def xz_streams(source: CompressedBytes) -> Frames:
    """Yield the streams to the end of the file, as `xz -T` and `cat a.xz b.xz` write them. Zeros between are padding.

    Raises DataError for a damaged stream, and EOFError for a stream without an end. Python's own reader takes anything
    after a complete stream for garbage and stops there without an error, so a damaged header would silently lose the
    rest of the file.
    """
    streams = 0
    while _skip_padding(source):
        # Damaged data could pass for the older format, which has no magic number. So a later stream cannot be one.
        is_older = streams == 0 and source.peek(len(_LZMA_MAGIC)) == _LZMA_MAGIC
        if not is_older:
            check_magic(source, _STREAM, _XZ_MAGIC, streams)
        streams += 1
        start = source.offset
        yield start, b""

        decoder = lzma.LZMADecompressor(lzma.FORMAT_ALONE if is_older else lzma.FORMAT_XZ)
        while not decoder.eof:
            block = source.take_some() if decoder.needs_input else b""
            if decoder.needs_input and not block:
                raise no_end(_STREAM, start)
            try:
                data = decoder.decompress(block, CHUNK_BYTES)
            except lzma.LZMAError as error:
                raise damaged(source, _STREAM, start, error) from error
            if data:
                yield start, data

        source.give_back(decoder.unused_data)


# ---- zstd ----

MAX_WINDOW_BYTES = 512 << 20
"""Memory that a frame may need. Plain zstd needs 8 MB, and `--long=27` 128 MB. Only files made with longer windows need
more, and `--long=31` needs more than a worker has."""

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME = "zstd frame"
ZSTD_RESERVED = 0x08  # likewise

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
        if head[1:4] == _SKIPPABLE_MAGIC and head[0] >> 4 == 5:
            _skip_frame(source)
            continue

        check_magic(source, _FRAME, ZSTD_MAGIC, frames - 1)
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
            if len(head) < _MAX_HEADER_BYTES and ZSTD_MAGIC.startswith(head[: len(ZSTD_MAGIC)]):
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
