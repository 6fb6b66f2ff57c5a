"""From one piece of input to its records: the text of each document and where it came from, or why there is none.

    jsonl          one object a line; the text under --text_key, the source under "source" when it is there
    parquet        one document a row; the text in the column --text_key, the source in "source" if there is one
    text           a blank line ends a document (blank_line), or every line is one (line), or the file is (file)
    wikiextractor  <doc id= url= title=> ... </doc>; the title line is not part of the text

A record belongs to the piece in which it begins, so pieces can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shard.decompression import MAX_RECORD, UNREADABLE, plain_lines
from pipeline.shard.inputs import Piece, version_of
from schemas import storage
from schemas.errors import DataError

TextLayout = Literal["blank_line", "line", "file"]
Lines = Iterable[tuple[int, bytes | None]]
TOO_LONG = f"record above {MAX_RECORD >> 20} MB"
SHOWN = 500  # characters of a rejected record that are kept to look at


@dataclass(frozen=True)
class Record:
    """One document as it stood in the input. `source` names its kind of origin, never a path: paths change."""

    text: str
    source: str


@dataclass(frozen=True)
class Rejected:
    """A record without a document in it: why, where it begins, and how it looks."""

    reason: str
    source: str
    place: int
    shown: str = ""


def read_records(piece: Piece, text_key: str, layout: TextLayout) -> Iterator[Record | Rejected]:
    """The records that begin in the piece.

    Raises DataError when the file cannot be read or decompressed to its end, or has changed since the job began.
    """
    try:
        if piece.format == "parquet":
            yield from parquet_records(piece, text_key)
        else:
            lines = plain_lines(piece.path, piece.start, piece.size, piece.compression)
            end = 1 << 62 if piece.compression else piece.end  # a compressed file is read whole
            yield from records_of(lines, piece, end, text_key, layout)
    except UNREADABLE as error:
        raise DataError(
            f"{piece.path} cannot be read to its end ({error}). "
            "It may be cut or damaged: copy it again, or leave it out."
        ) from error
    if version_of(piece.path) != piece.version:
        raise DataError(f"{piece.path} changed while it was read. Run the job again once nothing writes to its inputs.")


def records_of(lines: Lines, piece: Piece, end: int, text_key: str, layout: TextLayout) -> Iterator[Record | Rejected]:
    """The records of a format made of lines."""
    if piece.format == "jsonl":
        yield from (parse_json_line(line, text_key, place) for place, line in until(lines, end))
    elif piece.format == "wikiextractor":
        yield from wikiextractor_records(lines, end)
    elif layout == "line":
        yield from line_records(until(lines, end))
    elif layout == "file":
        yield from whole_file(lines) if piece.start == 0 else ()
    else:
        yield from text_documents(lines, end, begun=piece.start == 0)


def until(lines: Lines, end: int) -> Lines:
    """The lines that begin before `end`."""
    for place, line in lines:
        if place >= end:
            return
        yield place, line


def parse_json_line(line: bytes | None, text_key: str, place: int) -> Record | Rejected:
    """One JSONL line. Blank lines are rejected as such, for they hide no document."""
    if line is None:
        return Rejected(TOO_LONG, "jsonl", place)
    if not line.strip():
        return Rejected("blank line", "jsonl", place)
    try:
        fields = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return Rejected("line is not JSON", "jsonl", place, _shown(line))
    if not isinstance(fields, dict):
        return Rejected("line is not a JSON object", "jsonl", place, _shown(line))
    source = fields.get("source")
    source = source if isinstance(source, str) and source else "jsonl"
    text = fields.get(text_key)
    if not isinstance(text, str):
        return Rejected(f"no text under {text_key!r}", source, place, _shown(line))
    return Record(text, source)


def line_records(lines: Lines) -> Iterator[Record | Rejected]:
    """Every line that is not blank is a document."""
    for place, line in lines:
        if line is None:
            yield Rejected(TOO_LONG, "text", place)
        elif line.strip():
            yield Record(_decoded(line), "text")


def text_documents(lines: Lines, end: int, begun: bool) -> Iterator[Record | Rejected]:
    """Runs of lines between blank ones.

    A document belongs to the piece that holds the last blank line before it, or the start of the file (`begun`), so
    that a reader knows it without looking back.
    """
    document = Collected(0) if begun else None
    for place, line in lines:
        if line is not None and not line.strip():
            if document:
                yield document.finished("text")
            if place >= end:
                return
            document = Collected(place + len(line))
        elif document is not None:
            document.add(line)
    if document:
        yield document.finished("text")


def whole_file(lines: Lines) -> Iterator[Record | Rejected]:
    """The file is one document."""
    document = Collected(0)
    for _, line in lines:
        document.add(line)
    if document:
        yield document.finished("text")


def wikiextractor_records(lines: Lines, end: int) -> Iterator[Record | Rejected]:
    """The <doc> blocks that begin before `end`. A block that never closes is rejected, not guessed at."""
    document: Collected | None = None
    for place, line in lines:
        if line is not None and line.startswith(b"<doc "):
            if document is not None:
                yield document.unclosed()
            if place >= end:
                return
            document = Collected(place)
        elif line is not None and line.startswith(b"</doc>") and document is not None:
            yield document.finished("wikiextractor", skip=1)  # the first line repeats the title
            document = None
        elif document is not None:
            document.add(line)
    if document is not None:
        yield document.unclosed()


class Collected:
    """The lines of a document that began at `place`; past MAX_RECORD bytes they are counted and not kept."""

    def __init__(self, place: int):
        self._lines: list[bytes] = []
        self._place, self._length = place, 0

    def __bool__(self) -> bool:
        return self._length > 0

    def add(self, line: bytes | None) -> None:
        self._length += MAX_RECORD + 1 if line is None else len(line)
        if line is not None and self._length <= MAX_RECORD:
            self._lines.append(line)

    def finished(self, source: str, skip: int = 0) -> Record | Rejected:
        if self._length > MAX_RECORD:
            return Rejected(TOO_LONG, source, self._place, _shown(b"".join(self._lines[:3])))
        return Record(_decoded(b"".join(self._lines[skip:])), source)

    def unclosed(self) -> Rejected:
        return Rejected("<doc> without </doc>", "wikiextractor", self._place, _shown(b"".join(self._lines[:3])))


def parquet_records(piece: Piece, text_key: str) -> Iterator[Record | Rejected]:
    """The rows of row groups [start, end). Raises DataError when there is no such column of strings."""
    with storage.open_input(piece.path) as file:
        table = pq.ParquetFile(file)
        schema = table.schema_arrow
        if text_key not in schema.names or not _is_text(schema.field(text_key).type):
            strings = [name for name in schema.names if _is_text(schema.field(name).type)]
            raise DataError(
                f"{piece.path} has no text column {text_key!r}; give --text_key one of {', '.join(strings)}."
            )
        columns = [text_key, *(["source"] if "source" in schema.names and text_key != "source" else [])]
        groups = list(range(piece.start, piece.end))
        place = 0
        for batch in table.iter_batches(batch_size=256, row_groups=groups, columns=columns):
            for row in batch.to_pylist():
                source = row.get("source")
                source = source if isinstance(source, str) and source else "parquet"
                text = row[text_key]
                yield (
                    Record(text, source) if text is not None else Rejected(f"no text under {text_key!r}", source, place)
                )
                place += 1


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _decoded(data: bytes) -> str:
    """As text; bytes that are not UTF-8 become U+FFFD, which `cleaning` counts and removes."""
    return data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")


def _shown(line: bytes) -> str:
    return line[: 4 * SHOWN].decode(errors="replace")[:SHOWN].rstrip("\n")
