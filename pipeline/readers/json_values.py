"""Reads JSON that is not JSON lines: arrays, and objects over several lines. A document for each element and object.

Where a dotted key of --text_key leads from an object into a list, each element of that is a document, too.

Where a value begins and ends is seen from its brackets and strings alone, a block of the file at a time, so that memory
is bounded for lists of any length. Each value is then read like a line of JSON lines. Where a bracket or a quote is
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
    load_json,
    parse_json_line,
)
from pipeline.readers.nested_keys import EACH, Path, is_text, paths_of, with_nested
from pipeline.readers.open import Stream
from pipeline.readers.ranges import HEAD_BYTES
from pipeline.readers.record import BYTE_ORDER_MARK, Record, RecordOptions, Rejected, wanted_keys
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

WITHOUT_TEXT = "JSON value without text"
JSON_RULES = (WITHOUT_TEXT,)

_BLOCK_BYTES = 1 << 20
_LONGEST_KEY = 1000
_BEGINS = re.compile(rb"(?:\s*\[(?=\s*\{))?" + OBJECT.pattern)
_MARK = re.compile(rb'["\[\]{},]')
_BRACKET = re.compile(rb'["\[\]{}]')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[\]{},]', re.DOTALL)
_KEY = re.compile(rb'\s*"(?:[^"\\]|\\.)*"\s*:\s*', re.DOTALL)
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
    blocks: Iterator[bytes] = iter(partial(stream.file.read, _BLOCK_BYTES), b"")
    if not is_utf8:
        blocks = utf8_chunks(stream.file, file_range.encoding)

    first = next(blocks, b"")
    paths = _paths_in(first[:HEAD_BYTES], options.text_key)

    has_text = False
    try:
        for record in _parsed(chain([first], blocks), options, paths):
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


def _paths_in(head: bytes, text_key: str) -> tuple[Path, ...]:
    """Return the dotted keys of --text_key that hold for a file: those of the alternative that its first object has."""
    paths = paths_of(text_key)
    first = next(objects_of(head), None) if paths else None
    if first is None:
        return paths
    wanted = wanted_keys(text_key, with_nested(first, text_key))
    return tuple(path for path in paths if ".".join(path) in wanted)


def _parsed(blocks: Iterable[bytes], options: RecordOptions, paths: tuple[Path, ...]) -> Iterator[Record | Rejected]:
    key, limit = options.text_key, options.max_document_bytes
    for offset, value, walked in json_values(blocks, limit, paths):
        record = parse_json_line(value, key, offset, limit, walked)
        is_damaged = isinstance(record, Rejected) and record.reason.startswith(NOT_JSON)
        if value is None or not is_damaged:
            yield record
            continue
        for start, end in pairwise([*_beginnings(value), len(value)]):
            yield parse_json_line(value[start:end].rstrip(b", \t\r\n]"), key, offset + start, limit, walked)


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
        found.update(key for key, value in with_nested(fields, text_key).items() if is_text(value))

    wanted = wanted_keys(text_key, found)
    missing = [key for key in wanted if key not in found]
    return missing if len(missing) < len(wanted) else [], records, sorted(found)


def objects_of(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects in the first bytes of a file of JSON, as UTF-8, and of the first what is there."""
    is_first = True
    for _, value, _ in json_values([head], len(head)):
        for text in (value, _closed(value)) if value and is_first else (value,):
            with suppress(ValueError):
                fields = load_json((text or b"").decode(errors="replace"))
                if isinstance(fields, dict):
                    yield fields
                break
        is_first = False


def _closed(value: bytes) -> bytes:
    """Return a value without its end up to the last element or member that is whole, and closed by brackets there."""
    open_brackets = b""
    end, closing = 0, b""
    for mark in _TOKEN.finditer(value):
        if mark[0] in b"[{":
            open_brackets = (b"]" if mark[0] == b"[" else b"}") + open_brackets
        elif mark[0] in b"]}":
            open_brackets = open_brackets[1:]
        if mark[0] in b"[]{},":
            end = mark.start() if mark[0] == b"," else mark.end()
            closing = open_brackets
    return value[:end] + closing


def json_values(
    blocks: Iterable[bytes], max_bytes: int, paths: tuple[Path, ...] = ()
) -> Iterator[tuple[int, bytes | None, Path]]:
    """Yield the offset and the bytes of each value: of the elements of a list, and of what is in no list.

    blocks: a file in UTF-8, in parts of any size. paths: on which lists in objects are found. The keys that led to one
    are the last value. The bytes are None above max_bytes. What is no JSON is part of a value, or one. Raises
    UnclosedError.
    """
    ends = _Ends(paths)
    value = bytearray()
    offset = size = position = 0
    for block in blocks:
        start = 0
        for end, next_start, walked in ends.find(block):
            size += end - start
            value += block[start : min(end, start + max_bytes + 1)]
            if walked is not None:
                yield from _stripped(offset, value, size, max_bytes, walked)
            value.clear()
            size, start, offset = 0, next_start, position + next_start
        size += len(block) - start
        value += block[start : start + max(0, max_bytes + 1 - len(value))]
        position += len(block)
    if ends.are_missing and size > max_bytes:
        raise UnclosedError(offset)
    yield from _stripped(offset, value, size, max_bytes, ends.walked)


def _stripped(
    offset: int, value: bytearray, size: int, max_bytes: int, walked: Path
) -> Iterator[tuple[int, bytes | None, Path]]:
    if offset == 0 and value.startswith(BYTE_ORDER_MARK):
        del value[: len(BYTE_ORDER_MARK)]
        offset = len(BYTE_ORDER_MARK)
    if walked[-1:] == (EACH,) and (key := _KEY.match(value)):
        del value[: key.end()]
        offset += key.end()
    stripped = value.lstrip()
    if stripped:
        yield offset + len(value) - len(stripped), bytes(stripped.rstrip()) if size <= max_bytes else None, walked


def _string(inside: bytes | bytearray) -> str:
    """Return the string of JSON with these bytes between its quotes; empty if it is none."""
    with suppress(ValueError):
        return str(load_json(f'"{inside.decode(errors="replace")}"'))
    return ""


class UnclosedError(ValueError):
    """The value that begins at `offset` is longer than a document may be, and does not end before the file does."""

    def __init__(self, offset: int):
        super().__init__(f"no end of the value at byte {offset}")
        self.offset = offset


class _Ends:
    """Finds where values end, in a file that comes in blocks.

    paths: on which lists are found whose elements are values, in place of the object around them.
    """

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._paths = paths
        self._depth = 0  # open brackets
        self._in_list = 0  # how many of these are open between the values of a list
        self._in_string = False
        self._is_escaped = False  # the first byte of the next block
        self._key = bytearray()  # the last string in an object on a path
        self._has_list = False  # in the outermost object
        self.walked: Path = ()
        """The keys on a path that lead to the brackets that are open."""

    @property
    def are_missing(self) -> bool:
        """Whether a value has begun that has not ended."""
        return self._in_string or self._depth > self._in_list

    @property
    def _is_on_path(self) -> bool:
        return bool(self._paths) and self._depth == len(self.walked) + 1

    def find(self, block: bytes) -> Iterator[tuple[int, int, Path | None]]:
        """Yield where a value ends, where the next one begins, and the keys to the list; None if it is no value."""
        position = 0
        while True:
            if self._in_string:
                position = self._after_string(block, position)
            is_between = self._depth <= self._in_list
            mark = None if self._in_string else (_MARK if is_between else _BRACKET).search(block, position)
            if mark is None:
                return

            position = mark.end()
            if mark[0] == b'"':
                self._in_string = True
                if not self._in_list:
                    self._key.clear()
            elif mark[0] == b"," and self._depth == self._in_list:
                yield mark.start(), position, self.walked
            elif mark[0] in b"[{":
                if not self._in_list and self._begins_list(mark[0]):
                    yield mark.start(), position, None if self.walked else ()
                self._depth += 1
            elif mark[0] in b"]}":
                self._depth = max(0, self._depth - 1)
                if self._depth < self._in_list:
                    yield mark.start(), position, self.walked
                    self._in_list = 0
                elif self._depth == 0:
                    yield position, position, None if self._has_list else ()
                if not self._in_list:
                    self.walked = self.walked[: max(0, self._depth - 1)]
                self._has_list = self._has_list and self._depth > 0

    def _begins_list(self, bracket: bytes) -> bool:
        """Follow the paths to a bracket that opens. Return whether the values of a list begin behind it."""
        if self._depth:
            if not self._is_on_path:
                return False
            key = _string(self._key)
            if not self._leads_to(key):
                return False
            self.walked += (key,)
        is_list = bracket == b"["
        if (self._depth or not is_list) and self._leads_to(EACH):
            self.walked += (EACH,)
            is_list = True
        if is_list:
            self._in_list = self._depth + 1
            self._has_list = True
        return is_list

    def _leads_to(self, key: str) -> bool:
        """Return whether a key is the next one of a path that goes on behind it, or a list is to be entered."""
        size = len(self.walked) + 1
        return any(path[:size] == (*self.walked, key) and (key == EACH or path[size:]) for path in self._paths)

    def _after_string(self, block: bytes, position: int) -> int:
        """Return the place after a string's closing quote, or the end of the block."""
        found = _IN_STRING.match(block, position + self._is_escaped)
        end = found.end() if found else len(block)
        if not self._in_list and self._is_on_path and len(self._key) < _LONGEST_KEY:
            self._key += block[position:end]
        self._is_escaped = end < len(block) and block[end : end + 1] == b"\\"  # the last byte of the block
        self._in_string = end >= len(block) or self._is_escaped
        return end + 1
