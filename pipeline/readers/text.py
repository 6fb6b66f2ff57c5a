"""Reads plain text: its lines, in bounded memory, and the documents that they form.

A blank line ends a document (--text_layout blank_line), every line is one (line), or the file is one (file).

A record belongs to the range in which it begins. So a file can be cut anywhere: a reader skips what began before its
range, and reads past the end of its range until its last record ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, NamedTuple

from pipeline.readers.encodings import is_line_safe, to_utf8
from pipeline.readers.open import Stream
from pipeline.readers.record import Record, RecordOptions, Rejected, decode_utf8, excerpt_of, too_long_reason

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

_BLANKS = b" \t\r\n\v\f"
_RETURN = ord("\r")
# The end of a line is \n or \r\n, and \r where no \n follows, as on old Macs. In \r\r\n, the first \r is none.
_LONE_RETURNS = re.compile(rb"(?<!\r)\r++(?!\n)")
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")

# Spaces of Unicode, and characters without width: a line of nothing else is blank.
_BLANK_CHARACTERS = [character for character in map(chr, range(0x80, 0x10000)) if character.isspace()]
_BLANK_CHARACTERS += "\u200b\u200c\u200d\u2060\ufeff"
_UNICODE_BLANK = re.compile(rb"(?:\s|%b)+" % b"|".join(character.encode() for character in _BLANK_CHARACTERS))
_STARTS_OF_BLANKS = frozenset(_BLANKS) | {character.encode()[0] for character in _BLANK_CHARACTERS}
_BLANK_BEGINS = re.compile(rb"[ \t\v\f]*[%b]" % bytes(first for first in _STARTS_OF_BLANKS if first >= 0x80))
_BLANK_FOLLOWS = re.compile(rb"\n" + _BLANK_BEGINS.pattern)

_READ_BYTES = 1 << 20  # read at once from a line that is not kept
_EXCERPT_LINES = 3


class Line(NamedTuple):
    """One line of a range, or of a later one.

    offset: where it begins; see `Stream`.
    data: as UTF-8; None for a line above --max_document_bytes, which is not kept.
    is_later: whether the line belongs to a later range.
    """

    offset: int
    data: bytes | None
    is_later: bool


Lines = Iterable[Line]


def all_lines(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Line]:
    """Yield every line that begins in the range or after it.

    Consecutive blank lines come as one item, so that millions of them cost little; such an item never crosses the end
    of the range.
    """
    file = stream.file
    line_safe = is_line_safe(file_range.encoding)
    max_bytes = options.max_document_bytes

    # A line that crosses the cut belongs to the range before.
    if file_range.start > 0:
        stream.offset += _skip_line(file)

    while line := file.readline(max_bytes + 1):
        offset = stream.offset
        is_later = offset > stream.end
        length = len(line)
        kept: bytes | None = line

        if length > max_bytes:
            if not line.endswith(b"\n"):
                length += _skip_line(file)
            kept = None
        elif line.isspace():
            kept = line + _read_blank_lines(stream, offset + length)
            length = len(kept)
        stream.offset += length

        # Encodings that are not line-safe have been converted to UTF-8 already.
        if line_safe and kept is not None:
            kept = to_utf8(kept, file_range.encoding)

        # As nearly all lines. To search for a number takes a fifth of the time that it takes to search for b"\r".
        if kept is None or (_RETURN not in kept and (kept.isascii() or kept[0] not in _STARTS_OF_BLANKS)):
            yield Line(offset, kept, is_later)
        else:
            yield from _with_plain_ends(kept, offset, is_later)


def read_lines_before(stream: Stream, mark: bytes, max_bytes: int) -> bytes | None:
    """Read the next lines at once, as far as they are buffered, up to the line that contains `mark`.

    For readers of all_lines, which spend most of their time on lines that they only keep. Reads nothing and returns
    None if the lines are longer than `max_bytes`, or if all_lines may change one. They must be UTF-8.
    """
    buffer = stream.file.peek()  # type: ignore[attr-defined]
    end = buffer.find(mark)
    length = buffer.rfind(b"\n", 0, end if end >= 0 else len(buffer)) + 1
    lines = buffer[:length]
    may_change = b"\r" in lines or _BLANK_BEGINS.match(lines) or _BLANK_FOLLOWS.search(lines)
    if may_change or length > max_bytes:
        return None
    stream.offset += length
    return stream.file.read(length)


def lines_of_range(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Line]:
    """Yield the lines that begin in the range."""
    for line in all_lines(stream, file_range, options):
        if line.is_later:
            return
        yield line


def _skip_line(file: IO[bytes]) -> int:
    """Read to the end of a line without keeping it. Return the number of bytes skipped."""
    skipped = 0
    while part := file.readline(_READ_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _read_blank_lines(stream: Stream, offset: int) -> bytes:
    """Read the blank lines at `offset`, as far as they are buffered and begin in the range."""
    # In a part of a compressed file, the end is known only once the bytes after it are buffered.
    buffer = stream.file.peek()  # type: ignore[attr-defined]
    max_bytes = stream.end + 1 - offset
    if max_bytes <= 0:
        return b""

    blank_bytes = len(buffer) - len(buffer.lstrip(_BLANKS))

    # Only whole lines: what follows the last newline may be the indentation of a line of text.
    length = buffer.rfind(b"\n", 0, blank_bytes) + 1
    if length > max_bytes:
        # The last line to read begins before `max_bytes`, so it is the one that contains the byte before it.
        length = buffer.index(b"\n", max_bytes - 1) + 1
    return stream.file.read(length) if length else b""


def _with_plain_ends(data: bytes, offset: int, is_later: bool) -> Iterator[Line]:
    """Yield the lines that a line consists of if some ends are a lone CR, and blanks of Unicode as a blank line."""
    parts = [data]
    if data.find(b"\r", 0, -2 if data.endswith(b"\n") else -1) >= 0 and _LONE_RETURNS.search(data):
        parts = _LINE.findall(_LONE_RETURNS.sub(lambda found: b"\n" * len(found[0]), data))
    for part in parts:
        is_blank = not part.isascii() and _UNICODE_BLANK.fullmatch(part)
        yield Line(offset, b"\n" if is_blank else part, is_later)
        offset += len(part)


# ---- Documents ----


def text_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the documents of plain text that begin in the range."""
    if options.text_layout == "line":
        yield from _line_records(lines_of_range(stream, file_range, options), options)
        return

    lines = all_lines(stream, file_range, options)
    if options.text_layout == "blank_line":
        yield from _blank_line_records(lines, file_range.start == 0, options)
    elif file_range.start == 0:  # layout "file": the first range reads the whole file
        yield from _whole_file_record(lines, options)


def _line_records(lines: Lines, options: RecordOptions) -> Iterator[Record | Rejected]:
    for offset, line, _ in lines:
        if line is None:
            yield Rejected(too_long_reason(options.max_document_bytes), "text", offset)
        elif not line.isspace():
            text, undecodable = decode_utf8(line, offset)
            yield Record(text, "text", undecodable, position=offset, size=len(line), line_count=1)


def _blank_line_records(lines: Lines, is_file_start: bool, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the documents between blank lines.

    A document belongs to the range that contains the last blank line before it, or the start of the file. So a reader
    that begins in the middle of a file skips to the first blank line, and never has to look back.
    """
    document = DocumentLines(options.max_document_bytes) if is_file_start else None

    for offset, line, is_later in lines:
        if line is not None and line.isspace():
            if document:
                yield document.to_record("text")
            if is_later:
                return
            document = DocumentLines(options.max_document_bytes)
        elif document is not None:
            document.add(line, offset)
        elif is_later:
            return  # no document begins in the range

    if document:
        yield document.to_record("text")


def _whole_file_record(lines: Lines, options: RecordOptions) -> Iterator[Record | Rejected]:
    document = DocumentLines(options.max_document_bytes)
    for offset, line, _ in lines:
        document.add(line, offset)

    if document:
        yield document.to_record("text")


class DocumentLines:
    """The lines of one document. Beyond `max_bytes` they are counted but not kept.

    record_offset: where the record begins, if that is before its first line of text.
    """

    def __init__(self, max_bytes: int, record_offset: int | None = None):
        self._max_bytes = max_bytes
        self._record_offset = record_offset
        self._text_offset = 0
        self._lines: list[bytes] = []
        self._length = 0

    def __bool__(self) -> bool:
        return self._length > 0

    @property
    def room(self) -> int:
        """How many bytes may still be added."""
        return self._max_bytes - self._length

    @property
    def first_line(self) -> bytes:
        return self._lines[0] if self._lines else b""

    def add(self, line: bytes | None, offset: int) -> None:
        """Add the next line, or several; None stands for a line that is longer than a whole document may be."""
        if self._length == 0:
            self._text_offset = offset

        self._length += self._max_bytes + 1 if line is None else len(line)
        if line and self._length <= self._max_bytes:
            self._lines.append(line)

    def to_record(self, source: str, skipped_lines: int = 0) -> Record | Rejected:
        """Return the document without its first `skipped_lines`, or a rejection if it is too long."""
        if self._length > self._max_bytes:
            return self.to_rejected(too_long_reason(self._max_bytes), source)

        text_offset = self._text_offset + sum(map(len, self._lines[:skipped_lines]))
        text, undecodable = decode_utf8(b"".join(self._lines[skipped_lines:]), text_offset)
        return Record(
            text,
            source,
            undecodable,
            position=self._position(),
            size=self._length,
            line_count=len(self._lines),
        )

    def to_rejected(self, reason: str, source: str) -> Rejected:
        """Return a rejection of the document, with its first lines."""
        # Blank lines may have been added together or one by one, so split the joined text to count lines.
        first_lines = b"".join(self._lines[:_EXCERPT_LINES]).splitlines(keepends=True)[:_EXCERPT_LINES]
        return Rejected(reason, source, self._position(), excerpt_of(b"".join(first_lines)))

    def _position(self) -> int:
        return self._text_offset if self._record_offset is None else self._record_offset
