"""Reads JSON lines: one object per line, the text under --text_key, the source under "source" if it is there.

A line may also be a string, which is a text, and an object's text a list of strings, its paragraphs. Other JSON is read
by json_values.py, from the beginning of a file to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson

from pipeline.readers.nested_keys import Path, joined_texts, nested_texts, paragraphs_of, text_of, with_nested
from pipeline.readers.open import Stream
from pipeline.readers.ranges import fills_head
from pipeline.readers.record import (
    BLANK_LINE,
    BYTE_ORDER_MARK,
    EXCERPT_CHARACTERS,
    MAX_RECORD,
    Record,
    RecordOptions,
    Rejected,
    decode_utf8,
    excerpt_of,
    too_long_reason,
    wanted_keys,
)
from pipeline.readers.text import lines_of_range

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

MAX_KEYS = 10
NO_OBJECT = "line is not a JSON object"
NO_TEXT = "no text under"
NOT_JSON = "line is not JSON"
ENDS_EARLY = f"{NOT_JSON} (it ends early)"

# Characters that are shown of a line that is not JSON: of its beginning, and before the fault.
_SHOWN_OF_BEGINNING = 20
_SHOWN_BEFORE_FAULT = 20

# An object up to the colon after its first key: a brace, a string with escapes, a colon.
OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')

# Each also matches strings, in which there are none.
_STRING = r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[\]}])", re.DOTALL)


def begins_json_lines(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is JSON lines: an object ends where its first line does."""
    if not OBJECT.match(head):
        return False

    first_line, newline, _ = head.lstrip().partition(b"\n")
    try:
        load_json(first_line.decode(errors="replace"))
    except ValueError:
        return not newline and fills_head(head)  # the first record is longer than the bytes that were read
    return True


def load_json(text: str) -> Any:
    """Return the value of a JSON text. Accepts what Python's json writes: NaN, Infinity and lone surrogates, too.

    Comments, and commas before closing brackets, as settings of programs have them, are no faults either.
    Raises ValueError, and JSONDecodeError with the place of the fault wherever that is known.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass  # orjson is many times as fast, but strict
    try:
        return json.loads(text, strict=False)  # control characters may be in strings
    except RecursionError as error:
        raise ValueError("too many brackets in brackets") from error
    except ValueError:
        bare = _LAST_COMMA.sub(_string_alone, _COMMENT.sub(_string_alone, text))
        if bare != text:
            with suppress(ValueError, RecursionError):
                return json.loads(bare, strict=False)
        raise


def _string_alone(found: re.Match[str]) -> str:
    return found[1] or ""


def json_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the records of the lines that begin in the range."""
    for line in lines_of_range(stream, file_range, options):
        yield parse_json_line(line.data, options.text_key, line.offset, options.max_document_bytes)


def parse_json_line(
    line: bytes | None, text_key: str, offset: int, max_bytes: int = MAX_RECORD, walked: Path = ()
) -> Record | Rejected:
    """Return the record of one line of JSON. `line` is None if it was too long to keep.

    walked: the first keys of a dotted --text_key, if these led to this value.
    """
    if line is None:
        return Rejected(too_long_reason(max_bytes), "jsonl", offset)
    if line.isspace():
        return Rejected(BLANK_LINE, "jsonl", offset, count=max(1, line.count(b"\n")))

    undecodable = None
    try:
        fields = orjson.loads(line.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError:
        # orjson also rejects bytes that are not UTF-8, and much that Python writes.
        decoded, undecodable = decode_utf8(line, offset)
        try:
            fields = load_json(decoded)
        except ValueError as error:
            reason, excerpt = _fault_of_json(decoded, error)
            return Rejected(reason, "jsonl", offset, excerpt, undecodable=undecodable, size=len(line))
    fields = with_nested(fields, text_key, walked)
    if isinstance(fields, str) and not walked:
        return Record(fields, "jsonl", undecodable, position=offset, size=len(line))
    if not isinstance(fields, dict):
        return Rejected(NO_OBJECT, "jsonl", offset, excerpt_of(line), undecodable=undecodable, size=len(line))

    source = fields.get("source")
    if not isinstance(source, str) or not source:
        source = "jsonl"
    source = source.encode(errors="replace").decode()  # without lone surrogates, which Arrow cannot store

    wanted = wanted_keys(text_key, fields)
    text = joined_texts(map(fields.get, wanted))
    if not text and "|" in text_key and text_key not in fields:
        filled = {key for key, value in fields.items() if text_of(value)}
        text = joined_texts(map(fields.get, wanted_keys(text_key, filled))) or text
    if text is None and {fields[key] is None for key in wanted if key in fields} == {True}:
        text = ""
    if text is None:
        reason = f"{NO_TEXT} {text_key!r}"
        keys = _keys_of_strings(fields) if fields.keys().isdisjoint(wanted) else ()
        return Rejected(reason, source, offset, excerpt_of(line), undecodable=undecodable, size=len(line), keys=keys)
    return Record(text, source, undecodable, position=offset, size=len(line))


def _keys_of_strings(fields: dict[str, Any]) -> tuple[str, ...]:
    """Return up to MAX_KEYS keys that lead to texts, the one with the longest text first."""
    plain = {key: found for key, value in fields.items() if (found := paragraphs_of(value)) is not None}
    texts = plain | nested_texts(fields)
    longest_first = sorted(texts, key=lambda key: -sum(map(len, texts[key])))
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
