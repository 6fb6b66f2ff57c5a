"""What gzip, xz, zstd and bzip2 files have in common: parts that can be read without the parts before them.

Here all such parts are called frames: the members of gzip, the streams of xz, the frames of zstd, the blocks of bzip2.
Their readers (`read_frames` with one of CODECS, and `bzip2_blocks`) are generators of (offset of the frame in the
compressed file, plain bytes) pairs. Each frame begins with a pair without bytes, so empty frames are seen too. A
decoder gets few bytes at a time, so that a decompression bomb can be refused before it fills memory.

Several gzip members are written by `cat a.gz b.gz`, bgzip and the writers of WARC files; several xz streams by `xz -T`;
several zstd frames by pzstd, t2sz and the seekable format, whose seek table is skipped. Python's own readers of files
take anything after a whole xz stream for garbage and stop there without an error, so a damaged header would silently
lose the rest of the file.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import zstandard

from schemas.errors import DataError

READ_BYTES = 1 << 16

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


class Codec(NamedTuple):
    """A compression, and Python's decoder of one frame.

    frame: what a frame is called in errors. magics: what one may begin with. padding: bytes that may stand after one.
    decoder: returns a new decoder. failure: what it raises. piece_bytes: given at once; it makes at most 32 MB of them.
    """

    frame: str
    magics: tuple[bytes, ...]
    decoder: Callable[[], Any]
    failure: type[Exception]
    piece_bytes: int
    padding: bytes = b""


GZIP_MAGIC = b"\x1f\x8b\x08"  # with the only compression method that exists
_GZIP_WINDOW = 31  # zlib's number for a gzip header and a window of 32 KB

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))  # frames without plain bytes

CODECS = {
    "gzip": Codec("gzip member", (GZIP_MAGIC,), lambda: zlib.decompressobj(_GZIP_WINDOW), zlib.error, 1 << 14, b"\0"),
    "xz": Codec(
        "xz stream", (b"\xfd7zXZ\0",), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), lzma.LZMAError, 1 << 12, b"\0"
    ),
    "zstd": Codec(
        "zstd frame",
        (ZSTD_MAGIC, *_SKIPPABLE),
        lambda: zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj(),
        zstandard.ZstdError,
        1 << 10,
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
            piece = source.take_some(codec.piece_bytes)
            if not piece:
                raise no_end(codec.frame, start)
            try:
                data = decoder.decompress(piece)
            except codec.failure as error:
                if "too much memory" in str(error):
                    raise DataError(
                        f"{source.path} needs more than {MAX_WINDOW_BYTES >> 20} MB of memory to decompress. Compress "
                        "it again without --long."
                    ) from error
                raise damaged(source, codec.frame, start, error) from error
            if data:
                yield start, data
        source.give_back(decoder.unused_data)


def _skip_padding(source: CompressedBytes, padding: bytes) -> bool:
    """Return whether anything follows."""
    while block := source.take_some():
        if rest := block.lstrip(padding):
            source.give_back(rest)
            return True
    return False


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

    start = source.offset
    if start == 0:
        raise misnamed(source.path, codec.frame.partition(" ")[0])
    if not frames_before:
        raise damaged(source, codec.frame, start, "there is none")
    raise DataError(
        f"{source.path} is damaged: the {codec.frame} that begins at byte {start:,} of the compressed file cannot be "
        "read (there is none), and what comes before is whole. If something was appended there, cut it off with `head "
        f"-c {start} FILE > NEW_FILE`; otherwise copy the file again, or leave it out."
    )


def misnamed(path: str, compression: str) -> DataError:
    """Return the error for a file that is not compressed in the way that its suffix says."""
    return DataError(
        f"{path} is not {compression}, although its name says so. Rename it after what it is, or compress it."
    )


def no_end(frame: str, start: int) -> EOFError:
    """Return the error for a frame that the end of the file cuts off."""
    return EOFError(f"the {frame} that begins at byte {start:,} of the compressed file has no end")


# ---- bzip2 ----

# A block begins with a magic number of 48 bits at any bit offset, not only at whole bytes, and contains up to 900,000
# bytes before the first step of compression. There is no table of blocks and no size in their headers: a block ends at
# the next magic number, that of a block or of the end of a stream. To be decompressed, a block is shifted to a byte
# boundary and wrapped as the only block of a stream, and its checksum tells whether it is sound. By chance, the bits of
# a magic number occur inside of one of 10^14 blocks, which is then taken for a damaged one.

_BLOCK = 0x314159265359
_END = 0x177245385090
_MAGIC_BITS = 48
_CHECKSUM_BITS = 32
_STREAM_HEADER_BYTES = 4
_STREAM_HEADERS = [b"BZh%d" % level for level in range(1, 10)]
BLOCK_NAME = "bz2 block"
_KEPT_BYTES = 1 << 18  # before a block, so that what is behind it is not copied for each small block

MAX_BLOCK_BYTES = 5 << 18
"""More than any block has: incompressible data grows by less than 2 % over the 900,000 bytes of the largest block."""


def bzip2_blocks(source: CompressedBytes) -> Frames:
    """Yield the blocks from the next byte to the end of the file. A stream or a block must begin in that byte.

    Raises DataError for a damaged block, and EOFError for a block or a stream without an end.
    """
    bits = _Bits(source)
    place: int | None = _first_block(bits)

    while place is not None:
        if bits.number(place, _MAGIC_BITS) == _END:
            place = _next_stream(bits, place)
            continue

        start = place // 8
        yield start, b""
        data, place = _decompress_block(bits, place)
        yield start, data


def check_end(tail: bytes) -> None:
    """Raise EOFError unless these last bytes of a file have the end of a stream. An empty file has no stream."""
    bits = int.from_bytes(tail, "big") >> _CHECKSUM_BITS
    if tail and all(bits >> padding & (1 << _MAGIC_BITS) - 1 != _END for padding in range(8)):
        raise EOFError("the last bz2 stream has no end")


def block_candidates(data: bytes) -> Iterator[int]:
    """Return the byte offsets in `data` at which the magic number of a block begins, at any bit of the byte."""
    return (place // 8 for place in sorted(_places_of(_BLOCK, data)))


class _Bits:
    """Bits of the compressed file, from where it was opened. Places are bit offsets from the beginning of the file."""

    def __init__(self, source: CompressedBytes):
        self.source = source
        self.start = source.offset
        self._magics: deque[int] = deque()  # places of magic numbers that were read, in order
        self._data = b""
        self._data_start = source.offset

    def number(self, place: int, size: int) -> int:
        """Return `size` bits at `place` as a big-endian number; -1 if the file has fewer."""
        while 8 * (self._data_start + len(self._data)) < place + size:
            if not self._read():
                return -1

        end = place + size
        first, last = place // 8, (end + 7) // 8
        number = int.from_bytes(self._data[first - self._data_start : last - self._data_start], "big")
        return (number >> (8 * last - end)) & ((1 << size) - 1)

    def drop_before(self, place: int) -> None:
        """Forget the magic numbers up to `place`, and the data before it once it is much."""
        while self._magics and self._magics[0] <= place:
            self._magics.popleft()
        dropped = place // 8 - self._data_start
        if dropped > _KEPT_BYTES:
            self._data = self._data[dropped:]
            self._data_start += dropped

    def magic_after(self, place: int) -> int | None:
        """Return the place of the next magic number, as far as a block may extend, and drop what is before `place`."""
        self.drop_before(place)
        while not self._magics:
            if 8 * (self._data_start + len(self._data)) > place + 8 * MAX_BLOCK_BYTES or not self._read():
                return None
        return self._magics[0]

    def _read(self) -> bool:
        """Read more bytes. Return False at the end of the file."""
        data = self.source.take_some()

        # A magic number may have begun in the last bytes of the earlier data.
        overlap = self._data[-(_MAGIC_BITS // 8) :]
        base = 8 * (self._data_start + len(self._data) - len(overlap))
        found = sorted(_places_of(_BLOCK, overlap + data) + _places_of(_END, overlap + data))
        self._magics += [base + place for place in found if place + _MAGIC_BITS > 8 * len(overlap)]
        self._data += data
        return bool(data)


def _first_block(bits: _Bits) -> int | None:
    """Return the place of the first magic number: in the first byte, or after the header of a stream."""
    first_byte = 8 * bits.start
    for place in range(first_byte, first_byte + 8):
        if bits.number(place, _MAGIC_BITS) == _BLOCK:
            return place
    return _in_stream(bits, bits.start)


def _next_stream(bits: _Bits, end_place: int) -> int | None:
    """Return the place of the first magic number of the stream that follows an end; None at the end of the file."""
    end = end_place + _MAGIC_BITS + _CHECKSUM_BITS
    if bits.number(end - 1, 1) < 0:
        raise no_end("bz2 stream with its end", end_place // 8)

    start = (end + 7) // 8
    bits.drop_before(8 * start)
    return _in_stream(bits, start)


def _in_stream(bits: _Bits, start: int) -> int | None:
    """Return the place of the first magic number of the stream at byte `start`; None if the file ends there."""
    if bits.number(8 * start, 8) < 0:
        return None

    header = bits.number(8 * start, 8 * _STREAM_HEADER_BYTES)
    place = 8 * (start + _STREAM_HEADER_BYTES)
    magic = bits.number(place, _MAGIC_BITS)
    if header >= 0 and header.to_bytes(4, "big") not in _STREAM_HEADERS:
        if start == 0:
            raise misnamed(bits.source.path, "bz2")
        raise damaged(bits.source, "bz2 stream", start, "it has no header")
    if magic < 0:
        raise no_end("bz2 stream", start)
    if magic not in (_BLOCK, _END):
        raise damaged(bits.source, "bz2 stream", start, "it begins neither with a block nor with its end")
    return place


def _decompress_block(bits: _Bits, place: int) -> tuple[bytes, int]:
    """Return the plain bytes of the block at `place`, and the place of the magic number after it."""
    end = bits.magic_after(place)
    if end is None and bits.number(place + 8 * MAX_BLOCK_BYTES, 1) < 0:
        raise no_end(BLOCK_NAME, place // 8)
    if end is None:
        raise damaged(bits.source, BLOCK_NAME, place // 8, "it has no end within the size of a block")

    # The only block of a stream, whose checksum is then that of the block.
    checksum = bits.number(place + _MAGIC_BITS, _CHECKSUM_BITS)
    block = bits.number(place, end - place)
    stream = (block << (_MAGIC_BITS + _CHECKSUM_BITS)) | (_END << _CHECKSUM_BITS) | checksum
    size = end - place + _MAGIC_BITS + _CHECKSUM_BITS
    padding = -size % 8
    data = (stream << padding).to_bytes((size + padding) // 8, "big")

    decoder = bz2.BZ2Decompressor()
    try:
        plain = decoder.decompress(b"BZh9" + data)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(bits.source, BLOCK_NAME, place // 8, error) from error
    if not decoder.eof:
        raise damaged(bits.source, BLOCK_NAME, place // 8, "it is not finished where the next one begins")
    return plain, end


def _places_of(magic: int, data: bytes) -> list[int]:
    """Return the bit offsets in `data` of a magic number, in no particular order."""
    places: list[int] = []
    padded = data + b"\0\0"

    for shift in range(8):
        # Shifted, the number fills five whole bytes and parts of the bytes before and after. Search for the five, then
        # compare all 48 bits.
        core = (magic << (8 - shift)).to_bytes(7, "big")[1:6]
        found = padded.find(core, 1)
        while found >= 0:
            around = int.from_bytes(padded[found - 1 : found + 6], "big")
            place = 8 * (found - 1) + shift
            is_whole = place + _MAGIC_BITS <= 8 * len(data)
            if is_whole and (around >> (8 - shift)) & ((1 << _MAGIC_BITS) - 1) == magic:
                places.append(place)
            found = padded.find(core, found + 1)
    return places
