"""What gzip, xz, zstd and bzip2 files have in common: parts that can be read without the parts before them.

Here all such parts are called frames: the members of gzip, the streams of xz, the frames of zstd, the blocks of bzip2.
Their readers (`read_frames` with one of CODECS, and `bzip2_blocks` in bzip2_blocks.py) are generators of (offset of the
frame in the compressed file, plain bytes) pairs. Each frame begins with a pair without bytes, so empty frames are seen
too. A decoder gets few bytes at a time, so that a decompression bomb can be refused before it fills memory.

Several gzip members are written by `cat a.gz b.gz`, bgzip and the writers of WARC files; several xz streams by `xz -T`;
several zstd frames by pzstd, t2sz and the seekable format, whose seek table is skipped. Python's own readers of files
take anything after a whole xz stream for garbage and stop there without an error, so a damaged header would silently
lose the rest of the file.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import zstandard

from schemas.errors import DataError

READ_BYTES = 1 << 16

PIECE_BYTES = 1 << 10
"""Compressed bytes that a decoder gets at once. zstd makes at most 32 MB of so many, and the others less."""

MAX_WINDOW_BYTES = 512 << 20
"""Memory that a zstd frame may need. Plain zstd needs 8 MB, and `--long=27` 128 MB. Only files made with longer windows
need more, and `--long=31` needs more than a worker has."""

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

    def take_some(self, size: int = READ_BYTES) -> bytes:
        """Return up to `size` of the next bytes: held ones, or those of one read; empty only at the end of the file."""
        held = self._held or self._file.read(READ_BYTES)
        data, self._held = held[:size], held[size:]
        self.offset += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without taking them; fewer only at the end of the file."""
        while len(self._held) < size and (data := self._file.read(READ_BYTES)):
            self._held += data
        return self._held[:size]

    def give_back(self, data: bytes) -> None:
        """Undo the taking of `data`, the last bytes that were taken."""
        self._held = data + self._held
        self.offset -= len(data)


FrameReader = Callable[[CompressedBytes], Frames]


class Codec(NamedTuple):
    """A compression, and Python's decoder of one frame.

    frame: what a frame is called in errors. magics: what one may begin with. padding: bytes that may stand after one.
    decoder: returns a new decoder. failure: what it raises.
    """

    frame: str
    magics: tuple[bytes, ...]
    decoder: Callable[[], Any]
    failure: type[Exception]
    padding: bytes = b""


GZIP_MAGIC = b"\x1f\x8b\x08"  # with the only compression method that exists
GZIP_RESERVED = 0xE0  # bits of the byte after the magic
_GZIP_WINDOW = 31  # zlib's number for a gzip header and a window of 32 KB

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_RESERVED = 0x08  # likewise
_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))  # frames without plain bytes

CODECS = {
    "gzip": Codec("gzip member", (GZIP_MAGIC,), lambda: zlib.decompressobj(_GZIP_WINDOW), zlib.error, b"\0"),
    "xz": Codec("xz stream", (b"\xfd7zXZ\0",), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), lzma.LZMAError, b"\0"),
    "zstd": Codec(
        "zstd frame",
        (ZSTD_MAGIC, *_SKIPPABLE),
        lambda: zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj(),
        zstandard.ZstdError,
    ),
}
"""RFC 1952, RFC 8878, and the format of XZ Utils."""


def read_frames(codec: Codec, source: CompressedBytes) -> Frames:
    """Yield the frames from the next byte to the end of the file.

    Raises DataError for a frame that is damaged or needs too much memory, and EOFError for one without an end.
    """
    frames = 0
    while _skip_padding(source, codec.padding):
        _check_magic(source, codec, frames)
        frames += 1
        start = source.offset
        if source.peek(len(ZSTD_MAGIC)) not in _SKIPPABLE:
            yield start, b""

        decoder = codec.decoder()
        while not decoder.eof:
            piece = source.take_some(PIECE_BYTES)
            if not piece:
                raise no_end(codec.frame, start)
            try:
                data = decoder.decompress(piece)
            except codec.failure as error:
                raise _failed(source, codec.frame, start, error) from error
            if data:
                yield start, data
        source.give_back(decoder.unused_data)


def _skip_padding(source: CompressedBytes, padding: bytes) -> bool:
    """Skip padding. Return whether anything follows it."""
    while block := source.take_some():
        rest = block.lstrip(padding)
        if rest:
            source.give_back(rest)
            return True
    return False


def _failed(source: CompressedBytes, frame: str, start: int, error: Exception) -> DataError:
    if "too much memory" not in str(error):
        return damaged(source, frame, start, error)
    return DataError(
        f"{source.path} needs more than {MAX_WINDOW_BYTES >> 20} MB of memory to decompress. Compress it again without "
        "--long."
    )


def damaged(source: CompressedBytes, frame: str, start: int, cause: object) -> DataError:
    """Return the error for an unreadable frame: `frame` names its kind, `start` is its compressed offset."""
    return DataError(
        f"{source.path} is damaged: the {frame} that begins at byte {start:,} of the compressed file cannot be read "
        f"({cause}). Copy the file again, or leave it out."
    )


def _check_magic(source: CompressedBytes, codec: Codec, frames_before: int) -> None:
    """Raise DataError unless the next bytes, as far as the file has any, begin a frame.

    frames_before: the number of frames read before it. If there are some, the message says that they are whole.
    """
    head = source.peek(len(codec.magics[0]))
    if any(magic.startswith(head) for magic in codec.magics):
        return

    frame = codec.frame
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


def declared_plain_bytes(head: bytes) -> int | None:
    """Return the number of plain bytes that the first frame of a file declares; None if it declares none."""
    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return None
    return None if size == zstandard.CONTENTSIZE_UNKNOWN else size
