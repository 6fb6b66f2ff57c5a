"""Reads JSON that is not JSON lines: arrays, and objects over several lines. A document for each element and object.

Where a value begins and ends is seen from its brackets and strings alone, a block of the file at a time, so that memory
is bounded for arrays of any length. Each value is then read like a line of JSON lines. Where a bracket or a quote is
missing, reading continues at the next line or object that begins like the damaged value. Values without text before the
first one with text are left out, and are not bad: folders have package.json and the like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from pipeline.readers.encodings import UTF8, is_line_safe, utf8_chunks
from pipeline.readers.jsonl import (
    NO_OBJECT,
    NO_TEXT,
    NOT_JSON,
    OBJECT,
    begins_json_lines,
    is_text,
    load_json,
    parse_json_line,
)
from pipeline.readers.open import Stream
from pipeline.readers.record import BYTE_ORDER_MARK, Record, RecordOptions, Rejected, wanted_keys
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

WITHOUT_TEXT = "JSON value without text"
JSON_RULES = (WITHOUT_TEXT,)

_BLOCK_BYTES = 1 << 20
_BEGINS = re.compile(rb"(?:\s*\[(?=\s*\{))?" + OBJECT.pattern)
_MARK = re.compile(rb'["\[\]{},]')
_BRACKET = re.compile(rb'["\[\]{}]')
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:')
_OBJECT_LINE = re.compile(rb"\n([ \t]*)(\{)")
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def begins_json(head: bytes) -> bool:
    """Return whether a file begins with an object that has a key, or an array of them, whatever its name is."""
    return _BEGINS.match(head) is not None


def is_other_json(head: bytes, may_be_one_line: bool) -> bool:
    """Return whether a file of JSON with these first bytes is not JSON lines, of which the first may be damaged.

    may_be_one_line: whether it is one value in one line, if no line ends in these bytes.
    """
    head = head.strip()
    if head[:1] == b"[":
        return True
    if head[:1] != b"{":
        return False
    first, *others = head.split(b"\n")
    if not others:
        return may_be_one_line
    if begins_json_lines(head):
        return False
    return not OBJECT.match(first) or not any(begins_json_lines(line) for line in others if line.startswith(b"{"))


def value_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the records of a file."""
    # Some two-byte encodings have brackets and quotes as second bytes, but no line ends.
    is_utf8 = file_range.encoding == UTF8 or not is_line_safe(file_range.encoding)
    blocks = iter(partial(stream.file.read, _BLOCK_BYTES), b"")
    if not is_utf8:
        blocks = utf8_chunks(stream.file, file_range.encoding)

    has_text = False
    try:
        for record in _parsed(blocks, options):
            if record.source == "jsonl":
                record = replace(record, source="json")
            has_text = has_text or isinstance(record, Record)
            if isinstance(record, Rejected):
                has_none = not has_text and (record.reason.startswith(NO_TEXT) or record.reason == NO_OBJECT)
                record = replace(record, reason=WITHOUT_TEXT if has_none else record.reason.replace("line", "value", 1))
            yield record
    except UnclosedError as error:
        raise DataError(
            f"{file_range.display_path} has no end of the value that begins at byte {error.offset:,}: a quote or a "
            "bracket is missing, or the file is cut off. Repair it there, or leave the file out with --exclude."
        ) from error


def _parsed(blocks: Iterable[bytes], options: RecordOptions) -> Iterator[Record | Rejected]:
    key, limit = options.text_key, options.max_document_bytes
    for offset, value in json_values(blocks, limit):
        record = parse_json_line(value, key, offset, limit)
        is_damaged = isinstance(record, Rejected) and record.reason.startswith(NOT_JSON)
        if value is None or not is_damaged:
            yield record
            continue
        for start, end in pairwise([*_beginnings(value), len(value)]):
            yield parse_json_line(value[start:end].rstrip(b", \t\r\n]"), key, offset + start, limit)


def _beginnings(value: bytes) -> list[int]:
    """Return where values may begin in one that is damaged: at 0, and at the least indented lines with an object.

    In a single line these are the objects that follow on another one and have the same first key.
    """
    lines = list(_OBJECT_LINE.finditer(value))
    first_key = _FIRST_KEY.match(value)
    if not lines and first_key:
        following = re.compile(rb"\}\s*,\s*(\{\s*" + re.escape(first_key[1]) + rb"\s*:)")
        return [0, *(found.start(1) for found in following.finditer(value))]
    least = min((len(line[1]) for line in lines), default=0)
    return [0, *(line.start(2) for line in lines if len(line[1]) == least)]


def unknown_keys(heads: Iterable[bytes], text_key: str) -> tuple[list[str], int, list[str]]:
    """Return which keys of --text_key no record has a text under, as after a typing mistake; [] if all are missing.

    heads: the first bytes of files of JSON, as UTF-8. Also returns the number of records in them, and their keys.
    """
    found: set[str] = set()
    records = 0
    for fields in chain.from_iterable(map(objects_of, heads)):
        records += 1
        found.update(key for key, value in fields.items() if is_text(value))

    wanted = wanted_keys(text_key, found)
    missing = [key for key in wanted if key not in found]
    return missing if len(missing) < len(wanted) else [], records, sorted(found)


def objects_of(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects in the first bytes of a file of JSON, as UTF-8."""
    for _, value in json_values([head], len(head)):
        with suppress(ValueError):
            fields = load_json((value or b"").decode(errors="replace"))
            if isinstance(fields, dict):
                yield fields


def json_values(blocks: Iterable[bytes], max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the offset and the bytes of each value: of the elements of an array, and of what is in no array.

    blocks: a file in UTF-8, in parts of any size. The bytes are None above max_bytes. What is no JSON is part of a
    value, or one. Raises UnclosedError.
    """
    ends = _Ends()
    value = bytearray()
    offset = size = position = 0
    for block in blocks:
        start = 0
        for end, next_start in ends.find(block):
            size += end - start
            value += block[start : min(end, start + max_bytes + 1)]
            yield from _stripped(offset, value, size, max_bytes)
            value.clear()
            size, start, offset = 0, next_start, position + next_start
        size += len(block) - start
        value += block[start : start + max(0, max_bytes + 1 - len(value))]
        position += len(block)
    if ends.are_missing and size > max_bytes:
        raise UnclosedError(offset)
    yield from _stripped(offset, value, size, max_bytes)


def _stripped(offset: int, value: bytearray, size: int, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    if offset == 0 and value.startswith(BYTE_ORDER_MARK):
        del value[: len(BYTE_ORDER_MARK)]
        offset = len(BYTE_ORDER_MARK)
    stripped = value.lstrip()
    if stripped:
        yield offset + len(value) - len(stripped), bytes(stripped.rstrip()) if size <= max_bytes else None


class UnclosedError(ValueError):
    """The value that begins at `offset` is longer than a document may be, and does not end before the file does."""

    def __init__(self, offset: int):
        super().__init__(f"no end of the value at byte {offset}")
        self.offset = offset


class _Ends:
    """Finds where values end, in a file that comes in blocks."""

    def __init__(self) -> None:
        self._depth = 0  # open brackets
        self._in_array = 0  # 1 in an array whose elements are the values
        self._in_string = False
        self._is_escaped = False  # the first byte of the next block

    @property
    def are_missing(self) -> bool:
        """Whether a value has begun that has not ended."""
        return self._in_string or self._depth > self._in_array

    def find(self, block: bytes) -> Iterator[tuple[int, int]]:
        """Yield where a value ends, and where the next one begins."""
        position = 0
        while True:
            if self._in_string:
                position = self._after_string(block, position)
            is_between = self._depth <= self._in_array
            mark = None if self._in_string else (_MARK if is_between else _BRACKET).search(block, position)
            if mark is None:
                return

            position = mark.end()
            if mark[0] == b'"':
                self._in_string = True
            elif mark[0] == b"," and self._depth == self._in_array:
                yield mark.start(), position
            elif mark[0] in b"[{":
                if mark[0] == b"[" and self._depth == 0:
                    self._in_array = 1
                    yield mark.start(), position
                self._depth += 1
            elif mark[0] in b"]}":
                self._depth = max(0, self._depth - 1)
                if self._depth == 0:
                    yield mark.start() if self._in_array else position, position
                    self._in_array = 0

    def _after_string(self, block: bytes, position: int) -> int:
        """Return the place after a string's closing quote, or the end of the block."""
        found = _IN_STRING.match(block, position + self._is_escaped)
        end = found.end() if found else len(block)
        self._is_escaped = end < len(block) and block[end : end + 1] == b"\\"  # the last byte of the block
        self._in_string = end >= len(block) or self._is_escaped
        return end + 1
