"""Reads bzip2 files block by block, from any block on.

A block begins with a magic number of 48 bits at any bit offset, not only at whole bytes, and contains up to 900,000
bytes before the first step of compression. There is no table of blocks and no size in their headers: a block ends at
the next magic number, that of a block or of the end of a stream. To be decompressed, a block is shifted to a byte
boundary and wrapped as the only block of a stream, and its checksum tells whether it is sound. By chance, the bits of a
magic number occur inside of one of 10^14 blocks, which is then taken for a damaged one.
"""

from __future__ import annotations

import bz2
from collections import deque
from collections.abc import Iterator

from pipeline.readers.frames import CompressedBytes, Frames, damaged, misnamed, no_end

_BLOCK = 0x314159265359
_END = 0x177245385090
_MAGIC_BITS = 48
_CHECKSUM_BITS = 32
_STREAM_HEADER_BYTES = 4
_STREAM_HEADERS = [b"BZh%d" % level for level in range(1, 10)]
_BLOCK_NAME = "bz2 block"
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
        if data:
            yield start, data


def check_end(tail: bytes) -> None:
    """Raise EOFError unless these last bytes of a file have the end of a stream. An empty file has no stream."""
    bits = int.from_bytes(tail, "big") >> _CHECKSUM_BITS
    if tail and all(bits >> padding & (1 << _MAGIC_BITS) - 1 != _END for padding in range(8)):
        raise EOFError("the last bz2 stream has no end")


def block_candidates(data: bytes) -> Iterator[int]:
    """Yield the byte offsets in `data` at which the magic number of a block begins, at any bit of the byte."""
    for place in sorted(_places_of(_BLOCK, data)):
        yield place // 8


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

        first = place // 8 - self._data_start
        last = (place + size + 7) // 8 - self._data_start
        surplus = 8 * last - (place + size - 8 * self._data_start)
        number = int.from_bytes(self._data[first:last], "big") >> surplus
        return number & ((1 << size) - 1)

    def magic_after(self, place: int) -> int | None:
        """Return the place of the next magic number, as far as a block may extend, and drop the data before `place`."""
        dropped = place // 8 - self._data_start
        if dropped > _KEPT_BYTES:
            self._data = self._data[dropped:]
            self._data_start += dropped

        while True:
            while self._magics and self._magics[0] <= place:
                self._magics.popleft()
            if self._magics:
                return self._magics[0]
            if 8 * (self._data_start + len(self._data)) > place + 8 * MAX_BLOCK_BYTES or not self._read():
                return None

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
    """Return the place of the first magic number: after the header of a stream, or in the first byte."""
    first_byte = 8 * bits.start
    if bits.number(first_byte, 24) == int.from_bytes(b"BZh", "big"):
        return _in_stream(bits, bits.start)

    for place in range(first_byte, first_byte + 8):
        if bits.number(place, _MAGIC_BITS) == _BLOCK:
            return place
    if bits.number(first_byte, 8) < 0:
        return None
    if bits.start == 0:
        raise misnamed(bits.source.path, "bz2")
    raise damaged(bits.source, "bz2 stream", bits.start, "it has no header")


def _next_stream(bits: _Bits, end_place: int) -> int | None:
    """Return the place of the first magic number of the stream that follows an end; None at the end of the file."""
    end = end_place + _MAGIC_BITS + _CHECKSUM_BITS
    if bits.number(end - 1, 1) < 0:
        raise no_end("bz2 stream with its end", end_place // 8)

    start = (end + 7) // 8
    return _in_stream(bits, start) if bits.number(8 * start, 1) >= 0 else None


def _in_stream(bits: _Bits, start: int) -> int:
    """Return the place of the first magic number of the stream that begins at byte `start`."""
    header = bits.number(8 * start, 8 * _STREAM_HEADER_BYTES)
    place = 8 * (start + _STREAM_HEADER_BYTES)
    magic = bits.number(place, _MAGIC_BITS)

    if header >= 0 and header.to_bytes(4, "big") not in _STREAM_HEADERS:
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
        raise no_end(_BLOCK_NAME, place // 8)
    if end is None:
        raise damaged(bits.source, _BLOCK_NAME, place // 8, "it has no end within the size of a block")
    try:
        return _decompress_alone(bits, place, end), end
    except (OSError, ValueError, EOFError) as error:
        raise damaged(bits.source, _BLOCK_NAME, place // 8, error) from error


def _decompress_alone(bits: _Bits, place: int, end: int) -> bytes:
    """Decompress the block in bits [place, end). Raises OSError, ValueError or EOFError if that is not a block."""
    checksum = bits.number(place + _MAGIC_BITS, _CHECKSUM_BITS)
    block = bits.number(place, end - place)

    # The stream's checksum is that of its only block.
    stream = (block << (_MAGIC_BITS + _CHECKSUM_BITS)) | (_END << _CHECKSUM_BITS) | checksum
    size = end - place + _MAGIC_BITS + _CHECKSUM_BITS
    padding = -size % 8
    data = (stream << padding).to_bytes((size + padding) // 8, "big")

    decoder = bz2.BZ2Decompressor()
    plain = decoder.decompress(b"BZh9" + data)
    if not decoder.eof:
        raise EOFError("it is not finished where the next one begins")
    return plain


def _places_of(magic: int, data: bytes) -> list[int]:
    """Return the bit offsets in `data` of a magic number, in no particular order."""
    places: list[int] = []
    padded = data + b"\0"

    for shift in range(8):
        # Shifted, the number fills five whole bytes and parts of the bytes before and after. Search for the five, then
        # compare all 48 bits.
        shifted = magic << (8 - shift)
        core = shifted.to_bytes(7, "big")[1:6]

        found = padded.find(core, 1)
        while found >= 0:
            around = int.from_bytes(padded[found - 1 : found + 6].ljust(7, b"\0"), "big")
            place = 8 * (found - 1) + shift
            is_whole = place + _MAGIC_BITS <= 8 * len(data)
            if is_whole and (around >> (8 - shift)) & ((1 << _MAGIC_BITS) - 1) == magic:
                places.append(place)
            found = padded.find(core, found + 1)
    return places
