"""Turns one piece of input into records: the text of each document and its source, or why there is no document.

    jsonl          one JSON object per line; the text is under --text_key, the source under "source" if it is there
    parquet        one document per row; the text is in column --text_key, the source in column "source" if there is one
    text           a blank line ends a document (blank_line), every line is one (line), or the file is one (file)
    wikiextractor  <doc id= url= title=> ... </doc>; the title line is not part of the text

A record belongs to the piece in which it begins. So a file can be cut anywhere: a reader skips what began before its
piece, and reads past the end of its piece until its last record ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import orjson

from pipeline.shard.decompression import DECOMPRESSION_ERRORS
from pipeline.shard.inputs import Piece, with_format
from pipeline.shard.limits import Limits
from pipeline.shard.lines import Lines, lines_of_piece, plain_lines
from pipeline.shard.listing import is_unchanged
from pipeline.shard.parquet import parquet_records
from pipeline.shard.record import TOO_LONG, Record, Rejected, decode_utf8, excerpt_of, too_long_reason
from schemas.errors import DataError

__all__ = ["TOO_LONG", "Record", "Rejected", "TextLayout", "parse_json_line", "read_records"]

TextLayout = Literal["blank_line", "line", "file"]
DEFAULT_LIMITS = Limits()
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXCERPT_LINES = 3


def read_records(
    piece: Piece, text_key: str, layout: TextLayout, limits: Limits = DEFAULT_LIMITS
) -> Iterator[Record | Rejected]:
    """Yield the records that begin in the piece.

    Raises DataError if the file cannot be read to its end, or has changed since the job began.
    """
    try:
        piece = with_format(piece)
        yield from _records(piece, text_key, layout, limits)
    except DECOMPRESSION_ERRORS as error:
        raise DataError(
            f"{piece.display_path} cannot be read to its end ({error}). "
            "It may be truncated or damaged: copy it again, or leave it out."
        ) from error

    if not is_unchanged(piece.path, piece.version):
        raise DataError(
            f"{piece.display_path} changed while it was read. Run the job again once nothing writes to its inputs."
        )


def _records(piece: Piece, text_key: str, layout: TextLayout, limits: Limits) -> Iterator[Record | Rejected]:
    if piece.format == "parquet":
        yield from parquet_records(piece, text_key, limits)
    elif piece.format == "jsonl":
        for line in lines_of_piece(plain_lines(piece, limits)):
            yield parse_json_line(line.data, text_key, line.offset, limits)
    else:
        yield from text_records(plain_lines(piece, limits), piece, layout, limits)


def text_records(lines: Lines, piece: Piece, layout: TextLayout, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the records of a format that is made of plain lines."""
    if piece.format == "wikiextractor":
        yield from wikiextractor_records(lines, limits)
    elif layout == "line":
        yield from line_records(lines_of_piece(lines), limits)
    elif layout == "blank_line":
        yield from blank_line_records(lines, piece.start == 0, limits)
    elif piece.start == 0:  # layout "file": the first piece reads the whole file
        yield from whole_file_record(lines, limits)


def parse_json_line(
    line: bytes | None, text_key: str, offset: int, limits: Limits = DEFAULT_LIMITS
) -> Record | Rejected:
    """Return the record of one line of JSON. `line` is None if it was too long to keep."""
    if line is None:
        return Rejected(too_long_reason(limits), "jsonl", offset)
    if line.isspace():
        return Rejected("blank line", "jsonl", offset, count=max(1, line.count(b"\n")))

    try:
        fields = orjson.loads(line.removeprefix(_BYTE_ORDER_MARK))
    except orjson.JSONDecodeError:
        # orjson also rejects bytes that are not UTF-8, which are counted separately.
        _, undecodable = decode_utf8(line, offset)
        return Rejected("line is not JSON", "jsonl", offset, excerpt_of(line), undecodable=undecodable, size=len(line))
    if not isinstance(fields, dict):
        return Rejected("line is not a JSON object", "jsonl", offset, excerpt_of(line), size=len(line))

    source = fields.get("source")
    if not isinstance(source, str) or not source:
        source = "jsonl"

    text = fields.get(text_key)
    if not isinstance(text, str):
        return Rejected(f"no text under {text_key!r}", source, offset, excerpt_of(line), size=len(line))
    return Record(text, source, position=offset, size=len(line))


def line_records(lines: Lines, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield every line that is not blank as a document."""
    for offset, line, _ in lines:
        if line is None:
            yield Rejected(too_long_reason(limits), "text", offset)
        elif not line.isspace():
            text, undecodable = decode_utf8(line, offset)
            yield Record(text, "text", undecodable, position=offset, size=len(line), line_count=1)


def blank_line_records(lines: Lines, is_file_start: bool, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the documents between blank lines.

    A document belongs to the piece that contains the last blank line before it, or the start of the file. So a reader
    that begins in the middle of a file skips to the first blank line, and never has to look back.
    """
    document = _DocumentLines(limits) if is_file_start else None

    for offset, line, is_later in lines:
        if line is not None and line.isspace():
            if document:
                yield document.to_record("text")
            if is_later:
                return
            document = _DocumentLines(limits)
        elif document is not None:
            document.add(line, offset)

    if document:
        yield document.to_record("text")


def whole_file_record(lines: Lines, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the file as one document."""
    document = _DocumentLines(limits)
    for offset, line, _ in lines:
        document.add(line, offset)

    if document:
        yield document.to_record("text")


def wikiextractor_records(lines: Lines, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the <doc> blocks that begin in the piece. A block that is never closed is rejected."""
    document: _DocumentLines | None = None

    for offset, line, is_later in lines:
        if line is not None and line.startswith(b"<doc "):
            if document is not None:
                yield document.to_unclosed()
            if is_later:
                return
            document = _DocumentLines(limits, offset)
        elif line is not None and line.startswith(b"</doc>") and document is not None:
            yield document.to_record("wikiextractor", skipped_lines=1)  # the first line repeats the title
            document = None
        elif document is not None:
            document.add(line, offset)

    if document is not None:
        yield document.to_unclosed()


class _DocumentLines:
    """The lines of one document. Beyond --max_document_bytes they are counted but not kept.

    record_offset: where the record begins, if that is before its first line of text (at the <doc> tag).
    """

    def __init__(self, limits: Limits, record_offset: int | None = None):
        self._limits = limits
        self._record_offset = record_offset
        self._text_offset = 0
        self._lines: list[bytes] = []
        self._length = 0

    def __bool__(self) -> bool:
        """Return whether any line was added."""
        return self._length > 0

    def add(self, line: bytes | None, offset: int) -> None:
        """Add the next line; None stands for a line that is longer than a whole document may be."""
        if self._length == 0:
            self._text_offset = offset

        self._length += self._limits.document_bytes + 1 if line is None else len(line)
        if line is not None and self._length <= self._limits.document_bytes:
            self._lines.append(line)

    def to_record(self, source: str, skipped_lines: int = 0) -> Record | Rejected:
        """Return the document without its first `skipped_lines`, or a rejection if it is too long."""
        if self._length > self._limits.document_bytes:
            return Rejected(too_long_reason(self._limits), source, self._position(), self._excerpt())

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

    def to_unclosed(self) -> Rejected:
        """Return the rejection of a <doc> block without an end."""
        return Rejected("<doc> without </doc>", "wikiextractor", self._position(), self._excerpt())

    def _position(self) -> int:
        if self._record_offset is not None:
            return self._record_offset
        return self._text_offset

    def _excerpt(self) -> str:
        # Blank lines may have been added together or one by one, so split the joined text to count lines.
        first_lines = b"".join(self._lines[:_EXCERPT_LINES]).splitlines(keepends=True)[:_EXCERPT_LINES]
        return excerpt_of(b"".join(first_lines))
