"""From one piece of input to its records: the text of each document and where it came from, or why there is none.

    jsonl          one object a line; the text under --text_key, the source under "source" when it is there
    parquet        one document a row; the text in the column --text_key, the source in "source" if there is one
    text           a blank line ends a document (blank_line), or every line is one (line), or the file is (file)
    wikiextractor  <doc id= url= title=> ... </doc>; the title line is not part of the text

A record belongs to the piece in which it begins, so pieces can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import orjson

from pipeline.shard.decompression import UNREADABLE
from pipeline.shard.inputs import Piece, version_of
from pipeline.shard.limits import Limits
from pipeline.shard.lines import Lines, plain_lines, until
from pipeline.shard.parquet import parquet_records
from pipeline.shard.record import TOO_LONG, Record, Rejected, decoded, shown, too_long
from schemas.errors import DataError

__all__ = ["TOO_LONG", "Record", "Rejected", "TextLayout", "parse_json_line", "read_records"]

TextLayout = Literal["blank_line", "line", "file"]
DEFAULT_LIMITS = Limits()


def read_records(
    piece: Piece, text_key: str, layout: TextLayout, limits: Limits = DEFAULT_LIMITS
) -> Iterator[Record | Rejected]:
    """Yield the records that begin in the piece.

    Raises DataError when the file cannot be read or decompressed to its end, or has changed since the job began.
    """
    try:
        if piece.format == "parquet":
            yield from parquet_records(piece, text_key, limits)
        elif piece.format == "jsonl":
            lines = until(plain_lines(piece, limits), piece.end_of_records)
            yield from (parse_json_line(line, text_key, place, limits) for place, line in lines)
        else:
            yield from text_records(plain_lines(piece, limits), piece, layout, limits)
    except UNREADABLE as error:
        raise DataError(
            f"{piece.shown_path} cannot be read to its end ({error}). "
            "It may be cut or damaged: copy it again, or leave it out."
        ) from error
    if version_of(piece.path) != piece.version:
        raise DataError(
            f"{piece.shown_path} changed while it was read. Run the job again once nothing writes to its inputs."
        )


def text_records(lines: Lines, piece: Piece, layout: TextLayout, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the records of a format of plain lines."""
    end = piece.end_of_records
    if piece.format == "wikiextractor":
        yield from wikiextractor_records(lines, end, limits)
    elif layout == "line":
        yield from line_records(until(lines, end), limits)
    elif layout == "file":
        yield from whole_file(lines, limits) if piece.start == 0 else ()
    else:
        yield from text_documents(lines, end, piece.start == 0, limits)


def parse_json_line(
    line: bytes | None, text_key: str, place: int, limits: Limits = DEFAULT_LIMITS
) -> Record | Rejected:
    """Return the record of one JSONL line. Blank lines are rejected as such, for they hide no document."""
    if line is None:
        return Rejected(too_long(limits), "jsonl", place)
    if line.isspace():
        return Rejected("blank line", "jsonl", place, count=max(1, line.count(b"\n")))

    try:
        fields = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        undecodable = decoded(line, place)[1]
        return Rejected("line is not JSON", "jsonl", place, shown(line), undecodable=undecodable, size=len(line))
    if not isinstance(fields, dict):
        return Rejected("line is not a JSON object", "jsonl", place, shown(line), size=len(line))

    source = fields.get("source")
    source = source if isinstance(source, str) and source else "jsonl"
    text = fields.get(text_key)
    if not isinstance(text, str):
        return Rejected(f"no text under {text_key!r}", source, place, shown(line), size=len(line))
    return Record(text, source, place=place, size=len(line))


def line_records(lines: Lines, limits: Limits) -> Iterator[Record | Rejected]:
    """Every line that is not blank is a document."""
    for place, line in lines:
        if line is None:
            yield Rejected(too_long(limits), "text", place)
        elif not line.isspace():
            text, undecodable = decoded(line, place)
            yield Record(text, "text", undecodable, place, len(line), 1)


def text_documents(lines: Lines, end: int, begun: bool, limits: Limits) -> Iterator[Record | Rejected]:
    """Runs of lines between blank ones.

    A document belongs to the piece that holds the last blank line before it, or the start of the file (`begun`), so
    that a reader knows it without looking back.
    """
    document = Collected(limits) if begun else None
    for place, line in lines:
        if line is not None and line.isspace():
            if document:
                yield document.finished("text")
            if place >= end:
                return
            document = Collected(limits)
        elif document is not None:
            document.add(line, place)
    if document:
        yield document.finished("text")


def whole_file(lines: Lines, limits: Limits) -> Iterator[Record | Rejected]:
    """The file is one document."""
    document = Collected(limits)
    for place, line in lines:
        document.add(line, place)
    if document:
        yield document.finished("text")


def wikiextractor_records(lines: Lines, end: int, limits: Limits) -> Iterator[Record | Rejected]:
    """The <doc> blocks that begin before `end`. A block that never closes is rejected, not guessed at."""
    document: Collected | None = None
    for place, line in lines:
        if line is not None and line.startswith(b"<doc "):
            if document is not None:
                yield document.unclosed()
            if place >= end:
                return
            document = Collected(limits, place)
        elif line is not None and line.startswith(b"</doc>") and document is not None:
            yield document.finished("wikiextractor", skip=1)  # the first line repeats the title
            document = None
        elif document is not None:
            document.add(line, place)
    if document is not None:
        yield document.unclosed()


class Collected:
    """The lines of a document; past --max_document_bytes they are counted and not kept.

    `place` is where its record begins when that is before its first line.
    """

    def __init__(self, limits: Limits, place: int | None = None):
        self._limits = limits
        self._place = place
        self._text_place = 0
        self._lines: list[bytes] = []
        self._length = 0

    def __bool__(self) -> bool:
        return self._length > 0

    def add(self, line: bytes | None, place: int) -> None:
        if self._length == 0:
            self._text_place = place

        self._length += self._limits.document_bytes + 1 if line is None else len(line)
        if line is not None and self._length <= self._limits.document_bytes:
            self._lines.append(line)

    def finished(self, source: str, skip: int = 0) -> Record | Rejected:
        """Return the document without its first `skip` lines."""
        if self._length > self._limits.document_bytes:
            return Rejected(too_long(self._limits), source, self._record_place(), self._beginning())

        text_place = self._text_place + sum(map(len, self._lines[:skip]))
        text, undecodable = decoded(b"".join(self._lines[skip:]), text_place)
        return Record(text, source, undecodable, self._record_place(), self._length, len(self._lines))

    def unclosed(self) -> Rejected:
        return Rejected("<doc> without </doc>", "wikiextractor", self._record_place(), self._beginning())

    def _record_place(self) -> int:
        return self._text_place if self._place is None else self._place

    def _beginning(self) -> str:
        return shown(b"".join(self._lines[:3]))
