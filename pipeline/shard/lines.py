"""Reads the lines of one piece of a text file, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from pipeline.shard.cut_files import bytes_to_end, first_line, is_later_line, open_cut
from pipeline.shard.decompression import open_text
from pipeline.shard.encodings import UTF8, is_line_safe, to_utf8, wide_encoding
from pipeline.shard.inputs import Piece
from pipeline.shard.limits import Limits
from pipeline.shard.ranges import open_range
from schemas.errors import DataError

_BLANKS = b" \t\r\n\v\f"
_RETURN = ord("\r")
# The end of a line is \n or \r\n, and \r where no \n follows, as on old Macs. In \r\r\n, the first \r is none.
_LONE_RETURNS = re.compile(rb"\r+(?![\r\n])")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")

# Spaces of Unicode, and characters without width: a line of nothing else is blank.
_BLANK_CHARACTERS = [character for character in map(chr, range(0x80, 0x10000)) if character.isspace()]
_BLANK_CHARACTERS += "\u200b\u200c\u200d\u2060\ufeff"
_UNICODE_BLANK = re.compile(rb"(?:\s|%b)+" % b"|".join(character.encode() for character in _BLANK_CHARACTERS))
_STARTS_OF_BLANKS = frozenset(_BLANKS) | {character.encode()[0] for character in _BLANK_CHARACTERS}
_HEAD_BYTES = 4096  # searched for UTF-16
_READ_BYTES = 1 << 20  # read at once from a line that is not kept


class Line(NamedTuple):
    """One line of a piece, or of a later one.

    offset: where it begins, in bytes of the plain file, or of its UTF-8 form if the encoding is not line-safe. In a
    piece that is part of a compressed file, in plain bytes from the piece's first frame.
    data: as UTF-8; None for a line above --max_document_bytes, which is not kept.
    is_later: whether the line belongs to a later piece.
    """

    offset: int
    data: bytes | None
    is_later: bool


Lines = Iterable[Line]


def plain_lines(piece: Piece, limits: Limits) -> Iterator[Line]:
    """Yield every line that begins in the piece or after it.

    Consecutive blank lines come as one item, so that millions of them cost little; such an item never crosses the end
    of the piece.

    Raises DataError for a decompression bomb and for UTF-16 or UTF-32, and the exceptions in DECOMPRESSION_ERRORS for a
    damaged file.
    """
    line_safe = is_line_safe(piece.encoding)
    is_cut, end = piece.is_cut, piece.end_of_records

    with _open_lines(piece, limits) as file:
        if line_safe and piece.start == 0:
            _refuse_wide_encoding(file, piece)

        offset = first_line(file, piece) if is_cut else _seek_line(file, piece.start)
        while line := file.readline(limits.document_bytes + 1):
            is_later = is_later_line(file, offset) if is_cut else offset >= end
            length = len(line)
            kept: bytes | None = line

            if length > limits.document_bytes:
                length += _skip_rest_of_line(file, line)
                kept = None
            elif line.isspace():
                kept = line + _read_blank_lines(file, piece, offset + length)
                length = len(kept)

            # open_text has already converted an encoding that is not line-safe to UTF-8.
            if line_safe and kept is not None:
                kept = to_utf8(kept, piece.encoding)

            # As nearly all lines. To search for a number takes a fifth of the time that it takes to search for b"\r".
            if kept is None or (_RETURN not in kept and (kept.isascii() or kept[0] not in _STARTS_OF_BLANKS)):
                yield Line(offset, kept, is_later)
            else:
                yield from _with_plain_ends(kept, offset, is_later)
            offset += length


def _with_plain_ends(data: bytes, offset: int, is_later: bool) -> Iterator[Line]:
    """Yield the lines that a line consists of if some ends are a lone CR, and blanks of Unicode as a blank line."""
    parts = [data]
    if data.find(b"\r", 0, -2) >= 0 and _LONE_RETURNS.search(data):
        parts = _LINE.findall(_LONE_RETURNS.sub(lambda found: b"\n" * len(found[0]), data))
    for part in parts:
        is_blank = not part.isascii() and _UNICODE_BLANK.fullmatch(part)
        yield Line(offset, b"\n" if is_blank else part, is_later)
        offset += len(part)


def _open_lines(piece: Piece, limits: Limits) -> IO[bytes]:
    if piece.is_cut:
        return open_cut(piece, limits.decompression_ratio)

    file = open_range(piece.file, end=piece.end)
    return open_text(piece.display_path, piece.compression, piece.encoding, limits.decompression_ratio, file)


def lines_of_piece(lines: Lines) -> Iterator[Line]:
    """Yield lines until the first one that belongs to a later piece."""
    for line in lines:
        if line.is_later:
            return
        yield line


def _seek_line(file: IO[bytes], start: int) -> int:
    """Move to the first line that begins at or after `start`, and return its offset.

    A line that crosses the cut belongs to the previous piece.
    """
    if start == 0:
        return 0

    # Reading starts one byte early: if that byte is a newline, a line begins exactly at `start`.
    file.seek(start - 1)
    offset = start - 1
    while True:
        part = file.readline(_READ_BYTES)
        offset += len(part)
        if not part or part.endswith(b"\n"):
            return offset


def _skip_rest_of_line(file: IO[bytes], line: bytes) -> int:
    """Read to the end of a line that begins with `line`, without keeping it. Return the number of bytes skipped."""
    skipped = 0
    part = line
    while part and not part.endswith(b"\n"):
        part = file.readline(_READ_BYTES)
        skipped += len(part)
    return skipped


def _read_blank_lines(file: IO[bytes], piece: Piece, offset: int) -> bytes:
    """Read the blank lines at `offset`, as far as they are buffered and begin before the end of the piece."""
    # In a part of a compressed file, the end is known only once the bytes after it are buffered.
    buffer = file.peek()  # type: ignore[attr-defined]
    max_bytes = bytes_to_end(file, offset) if piece.is_cut else piece.end_of_records - offset
    if max_bytes <= 0:
        return b""

    blank_bytes = len(buffer) - len(buffer.lstrip(_BLANKS))

    # Only whole lines: what follows the last newline may be the indentation of a line of text.
    length = buffer.rfind(b"\n", 0, blank_bytes) + 1
    if length > max_bytes:
        # The last line to read begins before `max_bytes`, so it is the one that contains the byte before it.
        length = buffer.index(b"\n", max_bytes - 1) + 1
    return file.read(length) if length else b""


def _refuse_wide_encoding(file: IO[bytes], piece: Piece) -> None:
    """Raise DataError for UTF-16 and UTF-32, in which the byte 0x0A alone does not end a line."""
    head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]  # type: ignore[attr-defined]
    found = wide_encoding(head)
    if found is None:
        return

    expected = UTF8.upper() if piece.encoding == UTF8 else piece.encoding
    raise DataError(
        f"{piece.display_path} is {found.upper()}, but {expected} was expected. Read it with --encoding {found}, or "
        f"convert it: iconv -f {found.upper()} -t UTF-8 {piece.display_path}."
    )
