"""Reads gzip files member by member (RFC 1952), as written by `cat a.gz b.gz`, bgzip and the writers of WARC files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from pipeline.shard.frames import CHUNK_BYTES, CompressedBytes, Frames, check_magic, damaged, no_end

MAGIC = b"\x1f\x8b\x08"  # with the only compression method that exists
_MEMBER = "gzip member"
_RESERVED_FLAGS = 0xE0
_GZIP_WINDOW = 31  # zlib's number for a gzip header and a window of 32 KB


def gzip_members(source: CompressedBytes) -> Frames:
    """Yield the members from the next byte to the end of the file. Zeros after a member are padding.

    Raises DataError for a damaged member, and EOFError for a member without an end.
    """
    members = 0
    while _skip_padding(source):
        check_magic(source, _MEMBER, MAGIC[:2], members)
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


def member_candidates(data: bytes) -> Iterator[int]:
    """Yield the offsets in `data` at which a member may begin."""
    place = data.find(MAGIC)
    while place >= 0:
        flags = data[place + 3 : place + 4]
        if flags and not flags[0] & _RESERVED_FLAGS:
            yield place
        place = data.find(MAGIC, place + 1)


def _skip_padding(source: CompressedBytes) -> bool:
    """Skip zeros. Return whether anything follows them."""
    while block := source.take_some():
        rest = block.lstrip(b"\0")
        if rest:
            source.give_back(rest)
            return True
    return False
