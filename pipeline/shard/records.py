"""From one split to its records: the text of each document and where it came from, or why there is none.

jsonl          one object a line; the text under --text_key, the source under "source" when it is there
text           a blank line ends a document (blank_line), or every line is one (line), or the file is (file)
wikiextractor  <doc id= url= title=> ... </doc>; the title line is not part of the text
"""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Literal

import orjson

from pipeline.shard.inputs import Split, open_plain
from schemas.errors import DataError

UNREADABLE = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
TextLayout = Literal["blank_line", "line", "file"]


@dataclass(frozen=True)
class Record:
    """One document as it stood in the input. `source` names its kind of origin, never a path: paths change."""

    text: str
    source: str


@dataclass(frozen=True)
class Rejected:
    """A record without a document in it, and why."""

    reason: str
    source: str


def read_records(split: Split, text_key: str, layout: TextLayout) -> Iterator[Record | Rejected]:
    """The records that begin in the split. Raises DataError when the file cannot be read or decompressed."""
    try:
        with open_plain(split.path, split.compression) as file:
            if split.format == "jsonl":
                for line in _lines_between(file, split):
                    yield parse_json_line(line, text_key)
            elif split.format == "wikiextractor":
                yield from wikiextractor_records(decoded_lines(file))
            else:
                yield from text_records(decoded_lines(file), layout)
    except UNREADABLE as error:
        raise DataError(
            f"{split.path} cannot be read to its end ({error}). "
            "It may be cut or damaged: copy it again, or leave it out."
        ) from error


def _lines_between(file: IO[bytes], split: Split) -> Iterator[bytes]:
    """The lines that begin in [start, end); all of them when the file is compressed, for it is then one split."""
    if split.compression is not None:
        yield from file
        return
    place = split.start
    if place > 0:
        file.seek(place - 1)
        place += len(file.readline()) - 1  # the line across the cut belongs to the split before
    while place < split.end and (line := file.readline()):
        yield line
        place += len(line)


def parse_json_line(line: bytes, text_key: str) -> Record | Rejected:
    """One JSONL line. Blank lines are rejected as such, for they hide no document."""
    if not line.strip():
        return Rejected("blank line", "jsonl")
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return Rejected("line is not JSON", "jsonl")
    if not isinstance(fields, dict):
        return Rejected("line is not a JSON object", "jsonl")
    source = fields.get("source")
    source = source if isinstance(source, str) and source else "jsonl"
    text = fields.get(text_key)
    if not isinstance(text, str):
        return Rejected(f"object has no text under {text_key!r}", source)
    return Record(text, source)


def decoded_lines(file: IO[bytes]) -> Iterator[str]:
    """Lines as text; bytes that are not UTF-8 become U+FFFD, which `cleaning` counts and removes."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="\n")


def text_records(lines: Iterator[str], layout: TextLayout) -> Iterator[Record]:
    """Plain text in one of its three layouts."""
    if layout == "file":
        yield Record("".join(lines), "text")
        return
    document: list[str] = []
    for line in lines:
        if layout == "line" and line.strip():
            yield Record(line, "text")
        elif line.strip():
            document.append(line)
        elif document:
            yield Record("".join(document), "text")
            document = []
    if document:
        yield Record("".join(document), "text")


def wikiextractor_records(lines: Iterator[str]) -> Iterator[Record | Rejected]:
    """The <doc> blocks of WikiExtractor's output. A block that never closes is rejected, not guessed at."""
    document: list[str] | None = None
    for line in lines:
        if line.startswith("<doc "):
            if document is not None:
                yield Rejected("<doc> without </doc>", "wikiextractor")
            document = []
        elif line.startswith("</doc>") and document is not None:
            yield Record("".join(document[1:]), "wikiextractor")  # the first line repeats the title
            document = None
        elif document is not None:
            document.append(line)
    if document is not None:
        yield Rejected("<doc> without </doc>", "wikiextractor")
