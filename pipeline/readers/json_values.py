"""Reads JSON that is not JSON lines: arrays, and objects over several lines. A document for each element and object.

Where a key of --text_key leads from an object into a list with `[]`, each element of that is a document, too.

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
from pipeline.readers.nested_keys import (
    EACH,
    ELEMENTS,
    Path,
    nested_texts,
    paths_of,
    text_of,
    to_documents,
    with_nested,
)
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
BEGINS_JSON = re.compile(rb"(?:\s*\[(?=\s*\{))?" + OBJECT.pattern)
_MARK = re.compile(rb'["\[\]{},]')
_BRACKET = re.compile(rb'["\[\]{}]')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_KEY = re.compile(rb'\s*"(?:[^"\\]|\\.)*"\s*:\s*', re.DOTALL)
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:')
_FIRST_COMMENTS = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n|/\*.*?\*/)*+", re.DOTALL)
_COMMENTS = re.compile(rb"(?:\s|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_OBJECT_LINE = re.compile(rb"\n([ \t]*)(\{)")
_MEMBER_LINE = re.compile(rb'\n([ \t]*)"(?:[^"\\]|\\.)*"\s*:\s*(\{)')
_NEXT_KEY = re.compile(rb',\s*"(?:[^"\\]|\\.)*"\s*:\s*\Z')
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def is_other_json(head: bytes, may_be_one_line: bool) -> bool:
    """Return whether a file of JSON with these first bytes is not JSON lines, of which the first may be damaged.

    may_be_one_line: whether it is one value in one line, if no line ends in these bytes.
    """
    head = _FIRST_COMMENTS.sub(b"", head, count=1).strip()
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
    names, walked = _streamed(first[:HEAD_BYTES], options.text_key)

    has_text = False
    try:
        for record, is_element in _parsed(chain([first], blocks), options, names, walked):
            if record.source == "jsonl":
                record = replace(record, source="json")
            has_text = has_text or (isinstance(record, Record) and record.text != "")
            if isinstance(record, Rejected):
                may_have_none = is_element or not has_text
                has_none = may_have_none and (record.reason.startswith(NO_TEXT) or record.reason == NO_OBJECT)
                record = replace(record, reason=WITHOUT_TEXT if has_none else record.reason.replace("line", "value", 1))
            yield record
    except UnclosedError as error:
        raise DataError(
            f"{file_range.display_path} has no end of the value that begins at byte {error.offset:,}: a quote or a "
            "bracket is missing, or the file is cut off. Repair it there, or leave the file out with --exclude."
        ) from error


def _streamed(head: bytes, text_key: str) -> tuple[list[str], Path]:
    """Return the names of --text_key whose texts are in the elements of one list of a file, and the path to that list.

    They are all names of the alternative that holds for the file's first object; if that begins with none of them,
    those whose lists are the same one. Otherwise both are empty, and an object is read as a whole.
    """
    paths = paths_of(text_key)
    first = next(objects_of(head), None) if paths else None
    if first is None:
        return [], ()
    fields = with_nested(first, text_key)
    names = [*wanted_keys(text_key, fields)]
    if fields.keys().isdisjoint(names):
        names = [name for name, path in paths.items() if to_documents(path)]
    lists = {to_documents(paths.get(name, ())) for name in names}
    return (names, lists.pop()) if len(lists) == 1 else ([], ())


def _parsed(
    blocks: Iterable[bytes], options: RecordOptions, names: list[str], walked: Path
) -> Iterator[tuple[Record | Rejected, bool]]:
    """Yield records, and whether each is of an element of the list at `walked`, which has only these names."""
    limit = options.max_document_bytes
    for offset, value, is_element in json_values(blocks, limit, walked):
        key, path = (",".join(names), walked) if is_element else (options.text_key, ())
        record = parse_json_line(value, key, offset, limit, path)
        is_damaged = isinstance(record, Rejected) and record.reason.startswith(NOT_JSON)
        if value is None or not is_damaged:
            yield record, is_element
            continue
        is_member = path[-1:] == (EACH,)
        for start, end in pairwise([*_beginnings(value, is_member), len(value)]):
            piece = _NEXT_KEY.sub(b"", value[start:end]) if is_member else value[start:end]
            yield parse_json_line(piece.rstrip(b", \t\r\n]"), key, offset + start, limit, path), is_element


def _beginnings(value: bytes, is_member: bool) -> list[int]:
    """Return where values may begin in one that is damaged: at 0, and at the least indented lines with an object.

    In a single line these are the objects that follow on another one and have the same first key. is_member: the
    objects have keys before them.
    """
    lines = list((_MEMBER_LINE if is_member else _OBJECT_LINE).finditer(value))
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
        found.update(key for key, value in with_nested(fields, text_key).items() if text_of(value) is not None)
        found.update(nested_texts(fields))

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
    closing = bytearray()  # the last one first
    end, closed = 0, b""
    for mark in _TOKEN.finditer(value):
        if mark[0] in b"[{":
            closing += b"]" if mark[0] == b"[" else b"}"
        elif mark[0] in b"]}":
            del closing[-1:]
        if mark[0] in b"[]{},":
            end = mark.start() if mark[0] == b"," else mark.end()
            closed = bytes(closing)
    return value[:end] + closed[::-1]


def json_values(blocks: Iterable[bytes], max_bytes: int, walked: Path = ()) -> Iterator[tuple[int, bytes | None, bool]]:
    """Yield the offset and the bytes of each value: of the elements of an array, and of what is in no array.

    blocks: a file in UTF-8, in parts of any size. walked: a path to a list or an object; in place of the object around
    it, its values are yielded, each with True, or {} if there are none. The bytes are None above max_bytes.
    What is no JSON is part of a value, or one. Raises UnclosedError.
    """
    ends = _Ends(walked)
    value = bytearray()
    offset = size = position = elements = 0
    for block in blocks:
        if position == 0:
            block = _FIRST_COMMENTS.sub(lambda found: b" " * len(found[0]), block, count=1)
        start = 0
        for end, next_start, kind in ends.find(block):
            size += end - start
            value += block[start : min(end, start + max_bytes + 1)]
            if kind == "element" and walked[-1] == EACH and (key := _KEY.match(value)):
                del value[: key.end()]
                offset, size = offset + key.end(), size - key.end()
            if kind in ("value", "element"):
                for one in _stripped(offset, value, size, max_bytes):
                    yield *one, kind == "element"
                    elements += kind == "element"
            elif kind == "end":
                if not elements:
                    yield position + next_start, b"{}", True
                elements = 0
            value.clear()
            size, start, offset = 0, next_start, position + next_start
        size += len(block) - start
        value += block[start : start + max(0, max_bytes + 1 - len(value))]
        position += len(block)
    if ends.are_missing and size > max_bytes:
        raise UnclosedError(offset)
    if not _COMMENTS.fullmatch(value):
        for one in _stripped(offset, value, size, max_bytes):
            yield *one, ends.is_in_elements


def _stripped(offset: int, value: bytearray, size: int, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    if offset == 0 and value.startswith(BYTE_ORDER_MARK):
        del value[: len(BYTE_ORDER_MARK)]
        offset = len(BYTE_ORDER_MARK)
    stripped = value.lstrip()
    if stripped:
        yield offset + len(value) - len(stripped), bytes(stripped.rstrip()) if size <= max_bytes else None


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

    path: to a list or an object whose values are meant, in place of the object around it; () if there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._walked = 0  # steps of the path that led to the brackets that are open
        self._depth = 0  # open brackets
        self._in_list = 0  # how many of these are open between the values of a list
        self._in_string = False
        self._is_escaped = False  # the first byte of the next block
        self._key = bytearray()  # the last string in an object on the path
        self._has_list = False  # in the outermost object

    @property
    def are_missing(self) -> bool:
        """Whether a value has begun that has not ended."""
        return self._in_string or self._depth > self._in_list

    @property
    def is_in_elements(self) -> bool:
        """Whether the values are now those of the list at the end of the path."""
        return self._has_list and self._in_list > 0

    @property
    def _is_on_path(self) -> bool:
        return bool(self._path) and self._depth == self._walked + 1

    def find(self, block: bytes) -> Iterator[tuple[int, int, str]]:
        """Yield where a value ends, where the next one begins, and the kind of what has ended.

        It is "value", "element" of the list at the end of the path, "end" of the object around that list, or "skipped",
        what stands before it.
        """
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
                yield mark.start(), position, "element" if self._has_list else "value"
            elif mark[0] in b"[{":
                if not self._in_list and self._begins_list(mark[0]):
                    yield mark.start(), position, "skipped" if self._has_list else "value"
                self._depth += 1
            elif mark[0] in b"]}":
                yield from self._close(mark.start(), position)

    def _close(self, start: int, position: int) -> Iterator[tuple[int, int, str]]:
        self._depth = max(0, self._depth - 1)
        if self._depth < self._in_list:
            yield start, position, "element" if self._has_list else "value"
            self._in_list = 0
            if self._depth == 0 and self._has_list:
                yield position, position, "end"
        elif self._depth == 0:
            yield position, position, "end" if self._has_list else "value"
        if not self._in_list:
            self._walked = min(self._walked, max(0, self._depth - 1))
        self._has_list = self._has_list and self._depth > 0

    def _begins_list(self, bracket: bytes) -> bool:
        """Follow the path to a bracket that opens. Return whether the values of a list begin behind it."""
        if self._depth == 0 and bracket == b"[":
            self._in_list = 1
            return True
        if not self._path or (self._depth and not self._is_on_path):
            return False

        if self._depth:
            if self._walked == len(self._path) - 1 or _string(self._key) != self._path[self._walked]:
                return False
            self._walked += 1
        opens = b"[" if self._path[-1] == ELEMENTS else b"{"
        if self._walked < len(self._path) - 1 or bracket != opens:
            return False
        self._in_list = self._depth + 1
        self._has_list = True
        return True

    def _after_string(self, block: bytes, position: int) -> int:
        """Return the place after a string's closing quote, or the end of the block."""
        found = _IN_STRING.match(block, position + self._is_escaped)
        end = found.end() if found else len(block)
        self._is_escaped = end < len(block) and block[end : end + 1] == b"\\"  # the last byte of the block
        if not self._in_list and self._is_on_path and len(self._key) < _LONGEST_KEY:
            self._key += block[position : end + self._is_escaped]
        self._in_string = end >= len(block) or self._is_escaped
        return end + 1
