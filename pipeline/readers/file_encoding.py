"""--encoding auto: the encoding of one file, as its bytes show it.

The decision depends on nothing else, so every worker comes to the same one. A file is looked at as a whole up to
LOOKED_AT bytes of text. Of a larger one, SAMPLES evenly spaced samples are, or the beginning if it is compressed. What
they miss is refused by the reader of the file, as bytes outside its encoding always are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import IO

from pipeline.readers.encoding_guess import encoding_by_letters, guess_encoding
from pipeline.readers.encodings import DAMAGED_UTF8, UTF8, encoding_of_head, is_in_other_encoding
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSION_ERRORS, compression_of, open_plain
from pipeline.readers.ranges import HEAD_BYTES, HeldFile, open_range
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, MIN_PLACES, decode_utf8

LOOKED_AT = 64 << 20
"""Bytes of text up to which a file is looked at as a whole: a tenth of a second."""

SAMPLES = 64
SAMPLE_BYTES = 256 << 10
"""Of a larger file. Together they are read from a store in about a second."""

_MIN_LETTERS = 4  # places; fewer letters of a language may be an accident
_PURE = 0.7  # share of undecodable places among the bytes outside ASCII
_MOST_FREQUENT = "cp1252"  # which even those few are taken for
_BLOCK_BYTES = 1 << 20
_GUESSED_FROM = 1 << 14  # bytes
_LINE_BYTES = 4096  # of one line that are guessed from
_ASCII = bytes(range(0x80))
_CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes that begin no character of UTF-8
_REPLACEMENT = "\ufffd".encode()
_EDGE = re.compile(rb"[\x00-\x2f:-\x3f]")  # bytes that are part of no longer character in any encoding


def file_encoding(file: InputFile, shown: str) -> str:
    """Return Python's name of the encoding of a text file; UTF-8, too, if its bytes show none.

    shown: the file's name in errors. Damaged UTF-8 is UTF-8. Raises DataError and StorageError if the file cannot be
    opened. Other damage is left to the worker that reads it.
    """
    if isinstance(file, HeldFile):  # two members of an archive may have one name
        return _found_encoding(file, shown)
    return _remembered_encoding(file, shown)


def _found_encoding(file: InputFile, shown: str) -> str:
    evidence = Evidence()
    for block, follows in _blocks(file, shown):
        if evidence.size == 0:
            found = encoding_of_head(block[:HEAD_BYTES])
            if found != UTF8:
                return found
        evidence.add(block, follows)
    return evidence.encoding()


_remembered_encoding = lru_cache(1024)(_found_encoding)  # a name for each file that this process reads a range of


def _blocks(file: InputFile, shown: str) -> Iterator[tuple[bytes, bool]]:
    """Yield what is looked at of a file's text, each block with whether it follows on the one before."""
    compression = compression_of(file.path)
    if compression is None and file.size > LOOKED_AT:
        yield from _samples(file)
        return

    left = LOOKED_AT
    with open_plain(open_range(file, 0, file.size), shown, compression) as opened:
        while left > 0 and (block := _read(opened, min(left, _BLOCK_BYTES))):
            yield block, left < LOOKED_AT
            left -= len(block)


def _read(opened: IO[bytes], size: int) -> bytes:
    try:
        return opened.read(size)
    except DECOMPRESSION_ERRORS:
        return b""


def _samples(file: InputFile) -> Iterator[tuple[bytes, bool]]:
    for number in range(SAMPLES):
        start = (file.size - SAMPLE_BYTES) * number // (SAMPLES - 1)
        with open_range(file, start, start + SAMPLE_BYTES) as opened:
            block = opened.read(SAMPLE_BYTES)

        if start == 0:
            yield block, False
        elif b"\n" in block:
            yield block.partition(b"\n")[2], False
        else:
            yield block.lstrip(_CONTINUATIONS), False


@dataclass
class Evidence:
    """What the bytes of a file show, block by block.

    size: their number. foreign: of those outside ASCII. undecodable: places that are not UTF-8.
    sample: lines with such places, from which an encoding is guessed.
    """

    size: int = 0
    foreign: int = 0
    undecodable: int = 0
    sample: bytes = b""
    _rest: bytes = b""  # the beginning of a character at the end of the last block

    def add(self, block: bytes, follows: bool) -> None:
        """Add a block, which begins a line, or follows on the last block within a line or a character."""
        self.size += len(block)
        data = self._rest + block if follows else block
        self._rest = b""
        if data.isascii():
            return

        self.foreign += len(block.translate(None, _ASCII))
        try:
            _, used = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            text, used = codecs.utf_8_decode(data, "replace", False)
            self.undecodable += text.count("\ufffd") - data.count(_REPLACEMENT)
            self._add_to_sample(data.split(b"\n")[follows:])  # without the rest of a line
        self._rest = data[used:]

    def _add_to_sample(self, lines: list[bytes]) -> None:
        for line in lines:
            if len(self.sample) >= _GUESSED_FROM:
                return
            if line.isascii():
                continue
            _, undecodable = decode_utf8(line, 0)
            if undecodable is not None:
                self.sample += _around(line, undecodable.first_offset) + b"\n"

    def encoding(self) -> str:
        """Return the encoding, by the tests that refuse a file in another encoding than its own.

        A short file with fewer than MIN_PLACES is in another encoding if they are letters in it.
        """
        if self.undecodable == 0 or self.undecodable < DAMAGED_UTF8 * self.foreign:
            return UTF8
        if 0 in self.sample:  # data, or UTF-32 that its beginning did not show
            return UTF8

        # Of Western letters of one byte nearly all are undecodable. With fewer, the rest are characters of UTF-8.
        by_letters = encoding_by_letters(self.sample)
        is_western = by_letters != "" or is_in_other_encoding(self.sample)
        if is_western and self.undecodable < _PURE * self.foreign:
            return UTF8
        if self.undecodable < _MIN_LETTERS:
            return by_letters if by_letters == _MOST_FREQUENT else UTF8

        is_much = self.undecodable >= MIN_PLACES and self.undecodable > MAX_UNDECODABLE_RATIO * self.size
        is_other = is_much or is_western
        return (guess_encoding(self.sample) if is_other else "") or UTF8


def _around(line: bytes, place: int) -> bytes:
    """Return the line, or up to _LINE_BYTES around a place, cut where no character is."""
    if len(line) <= _LINE_BYTES:
        return line

    edges = [edge.end() for edge in _EDGE.finditer(line, max(0, place - _LINE_BYTES // 4), place)]
    first = edges[0] if edges else place
    cut = line[first : first + _LINE_BYTES]
    edges = [edge.start() for edge in _EDGE.finditer(cut, _LINE_BYTES // 2)]
    return cut[: edges[-1]] if edges else cut
