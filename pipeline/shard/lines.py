"""The lines of a piece of a text file, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO

from pipeline.shard.decompression import open_text
from pipeline.shard.encodings import UTF8, is_line_safe, to_utf8, wide_encoding
from pipeline.shard.inputs import Piece
from pipeline.shard.limits import Limits
from schemas.errors import DataError

Lines = Iterable[tuple[int, bytes | None]]
_BLANKS = b" \t\r\n\v\f"
_HEAD = 4096  # bytes in which UTF-16 is looked for


def plain_lines(piece: Piece, limits: Limits) -> Iterator[tuple[int, bytes | None]]:
    """Yield (place, line) of every line that begins at `piece.start` or after, as UTF-8.

    Lines above `limits.document_bytes` are None. Consecutive blank lines come as one item, so that millions of them
    cost little; no such item crosses the end of the piece. `place` is the offset in bytes of the plain file, or of its
    UTF-8 form when its encoding is not line-safe.

    Raises DataError for a decompression bomb and for UTF-16, and what UNREADABLE lists for a damaged file.
    """
    line_safe = is_line_safe(piece.encoding)
    end = piece.end_of_records

    with open_text(piece.path, piece.compression, piece.encoding, limits.decompression_ratio) as file:
        if line_safe and piece.start == 0:
            _refuse_wide(file, piece)

        place = _seek_line(file, piece.start)
        while line := file.readline(limits.document_bytes + 1):
            length = len(line)
            kept: bytes | None = line
            if length > limits.document_bytes:
                length += _skip_line(file, line)
                kept = None
            elif line.isspace():
                kept = line + _blank_lines(file, end - place - length)
                length = len(kept)

            if line_safe and kept is not None:
                kept = to_utf8(kept, piece.encoding)
            yield place, kept
            place += length


def _seek_line(file: IO[bytes], start: int) -> int:
    """Return the place of the first line that begins at `start` or after.

    A line across the cut belongs to the piece before.
    """
    if start == 0:
        return 0

    file.seek(start - 1)
    place = start - 1
    while True:
        part = file.readline(1 << 20)
        place += len(part)
        if not part or part.endswith(b"\n"):
            return place


def _skip_line(file: IO[bytes], line: bytes) -> int:
    """Read to the end of a line without keeping it; returns how many bytes were left of it."""
    skipped = 0
    while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
        skipped += len(line)
    return skipped


def _blank_lines(file: IO[bytes], room: int) -> bytes:
    """Read the blank lines that come next and are in the reader's buffer, those that begin within `room` bytes."""
    if room <= 0:
        return b""

    buffer = file.peek()  # type: ignore[attr-defined]
    blank = len(buffer) - len(buffer.lstrip(_BLANKS))
    length = buffer.rfind(b"\n", 0, blank) + 1
    if length > room:
        # The last line to take begins before `room`, so it is the one that holds the byte before it.
        length = buffer.index(b"\n", room - 1) + 1
    return file.read(length) if length else b""


def _refuse_wide(file: IO[bytes], piece: Piece) -> None:
    """Raise DataError for UTF-16 and UTF-32, whose lines do not end with the byte 0x0A alone."""
    head = file.peek(_HEAD)[:_HEAD]  # type: ignore[attr-defined]
    found = wide_encoding(head)
    if found is None:
        return
    expected = UTF8.upper() if piece.encoding == UTF8 else piece.encoding
    raise DataError(
        f"{piece.shown_path} is {found.upper()}, but {expected} is expected. Read it with --encoding {found}, or "
        f"convert it: iconv -f {found.upper()} -t UTF-8 {piece.shown_path}."
    )


def until(lines: Lines, end: int) -> Lines:
    """Yield the lines that begin before `end`."""
    for place, line in lines:
        if place >= end:
            return
        yield place, line
