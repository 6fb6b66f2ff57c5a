"""Turns one piece of input into records: the text of each document and its source, or why there is no document.

    jsonl          one JSON object per line; the text is under --text_key, the source under "source" if it is there
    parquet        one document per row; the text is in column --text_key, the source in column "source" if there is one
    text           a blank line ends a document (blank_line), every line is one (line), or the file is one (file)
    wikiextractor  <doc id= url= title=> ... </doc>; a first line that repeats the title is not part of the text

A record belongs to the piece in which it begins. So a file can be cut anywhere: a reader skips what began before its
piece, and reads past the end of its piece until its last record ends.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import orjson

from pipeline.shard.decompression import DECOMPRESSION_ERRORS
from pipeline.shard.inputs import Piece
from pipeline.shard.limits import Limits
from pipeline.shard.lines import Lines, lines_of_piece, plain_lines
from pipeline.shard.listing import is_unchanged
from pipeline.shard.parquet import parquet_records
from pipeline.shard.record import (
    EXCERPT_CHARACTERS,
    TOO_LONG,
    Record,
    Rejected,
    decode_utf8,
    excerpt_of,
    load_json,
    too_long_reason,
)
from schemas.errors import DataError

__all__ = ["TOO_LONG", "Record", "Rejected", "TextLayout", "parse_json_line", "read_records"]

TextLayout = Literal["blank_line", "line", "file"]
DEFAULT_LIMITS = Limits()
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_END_TAG = b"</doc>"
_LESS_THAN = ord("<")
_EXCERPT_LINES = 3

MAX_KEYS = 10
NO_OBJECT = "line is not a JSON object"
ENDS_EARLY = "line is not JSON (it ends early)"
OUTSIDE = "text outside of <doc>"

# Characters that are shown of a line that is not JSON: of its beginning, and before the fault.
_SHOWN_OF_BEGINNING = 20
_SHOWN_BEFORE_FAULT = 20

_DOC_TAG = re.compile(rb'\s*(<doc (?:[^">\n]|"[^"\n]*")*>|<doc .*)(?:\s*\n)?')
_TITLE = re.compile(rb' title="(.*)"')


def read_records(
    piece: Piece, text_key: str, layout: TextLayout, limits: Limits = DEFAULT_LIMITS
) -> Iterator[Record | Rejected]:
    """Yield the records that begin in the piece, whose format must be known (see `with_format`).

    Raises DataError if the file cannot be read to its end, or has changed since the job began.
    """
    try:
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
        yield from wikiextractor_records(lines, piece.start == 0, limits)
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

    undecodable = None
    try:
        fields = orjson.loads(line.removeprefix(_BYTE_ORDER_MARK))
    except orjson.JSONDecodeError:
        # orjson also rejects bytes that are not UTF-8, and much that Python writes.
        decoded, undecodable = decode_utf8(line, offset)
        try:
            fields = load_json(decoded)
        except ValueError as error:
            reason, excerpt = _fault_of_json(decoded, error)
            return Rejected(reason, "jsonl", offset, excerpt, undecodable=undecodable, size=len(line))
    if not isinstance(fields, dict):
        return Rejected(NO_OBJECT, "jsonl", offset, excerpt_of(line), undecodable=undecodable, size=len(line))

    source = fields.get("source")
    if not isinstance(source, str) or not source:
        source = "jsonl"
    source = source.encode(errors="replace").decode()  # without lone surrogates, which Arrow cannot store

    text = fields.get(text_key)
    if not isinstance(text, str):
        reason = f"no text under {text_key!r}"
        keys = () if text_key in fields else _keys_of_strings(fields)
        return Rejected(reason, source, offset, excerpt_of(line), undecodable=undecodable, size=len(line), keys=keys)
    return Record(text, source, undecodable, position=offset, size=len(line))


def _keys_of_strings(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return up to MAX_KEYS keys that hold strings, the one with the longest string first."""
    lengths = {key: len(value) for key, value in fields.items() if isinstance(value, str)}
    longest_first = sorted(lengths, key=lambda key: -lengths[key])
    return tuple(excerpt_of(key.encode(errors="replace")) for key in longest_first[:MAX_KEYS])


def _fault_of_json(line: str, error: ValueError) -> tuple[str, str]:
    """Return why a line is not JSON, for the ledger, and an excerpt of the line that shows the place."""
    if not isinstance(error, json.JSONDecodeError):
        return f"line is not JSON ({str(error).partition(':')[0]})", line[:EXCERPT_CHARACTERS]

    cause = error.msg.removesuffix(" at")
    if error.pos >= len(line.rstrip()) - 1 or cause.startswith("Unterminated string"):
        return ENDS_EARLY, line[:EXCERPT_CHARACTERS].rstrip("\n")

    excerpt = line
    if error.pos > _SHOWN_BEFORE_FAULT + _SHOWN_OF_BEGINNING:
        excerpt = f"{line[:_SHOWN_OF_BEGINNING]} ... {line[error.pos - _SHOWN_BEFORE_FAULT :]}"
    return f"line is not JSON ({cause})", excerpt[:EXCERPT_CHARACTERS].rstrip("\n")


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


def wikiextractor_records(lines: Lines, is_file_start: bool, limits: Limits) -> Iterator[Record | Rejected]:
    """Yield the <doc> blocks that begin in the piece, and rejections of unclosed blocks and of lines outside of blocks.

    Lines outside of blocks belong to the piece that contains the tag before them, or the start of the file. So a reader
    that begins in the middle of a file skips to the first tag.
    """
    document: _DocumentLines | None = None
    title = ""
    is_outside = is_file_start

    for line_offset, line, is_later in lines:
        if is_later and document is None and not is_outside:
            return
        if document is not None and (line is None or _LESS_THAN not in line):  # as nearly all lines
            document.add(line, line_offset)
            continue

        for offset, part, is_tag in _cut_at_tags(line_offset, line):
            if not is_tag:
                if document is not None:
                    document.add(part, offset)
                elif is_outside and (part is None or not part.isspace()):
                    yield Rejected(OUTSIDE, "wikiextractor", offset, excerpt_of(part or b""))
                continue

            is_end = part == _END_TAG
            if document is not None:
                yield document.to_article(title) if is_end else document.to_unclosed()
            if is_later:
                return

            document = None if is_end else _DocumentLines(limits, offset)
            title = _title_of(part or b"")
            is_outside = is_end

    if document is not None:
        yield document.to_unclosed()


def _cut_at_tags(offset: int, line: bytes | None) -> list[tuple[int, bytes | None, bool]]:
    """Return the parts of a line as (offset, part, is a tag). A <doc> tag begins a line or follows </doc>."""
    if line is None:
        return [(offset, None, False)]

    parts: list[tuple[int, bytes | None, bool]] = []
    for number, part in enumerate(line.split(_END_TAG)):
        if number > 0:
            parts.append((offset, _END_TAG, True))
            offset += len(_END_TAG)

        start = len(_BYTE_ORDER_MARK) if part.startswith(_BYTE_ORDER_MARK) else 0
        if tag := _DOC_TAG.match(part, start):
            parts.append((offset, tag[1], True))
            start = tag.end()
        if text := part[start:]:
            parts.append((offset + start, text, False))
        offset += len(part)
    return parts


def _title_of(tag: bytes) -> str:
    """Return the title in a <doc> tag; empty if it has none."""
    title = _TITLE.search(tag)
    return html.unescape(title[1].decode(errors="replace")).strip() if title else ""


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

    def to_article(self, title: str) -> Record | Rejected:
        """Return the text of a <doc> block, without its first line if that repeats the title.

        WikiExtractor escapes `&`, `<` and `>` in what it writes.
        """
        first_line = self._lines[0].decode(errors="replace") if self._lines else ""
        repeats_title = title != "" and html.unescape(first_line).strip() == title
        record = self.to_record("wikiextractor", skipped_lines=1 if repeats_title else 0)
        if isinstance(record, Rejected) or "&" not in record.text:
            return record
        return replace(record, text=record.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))

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
