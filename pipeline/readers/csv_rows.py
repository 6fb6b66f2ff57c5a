"""Reads CSV and TSV: one document per row, text in the columns of --text_key, the source in "source" if it is there.

The first row names the columns. Quoting is that of RFC 4180, read by Python's csv in its strict mode: a field in quotes
may hold line ends and, doubled, quotes. So a line does not say whether a row begins with it, and a file is not cut.
Many programs write TSV without quoting: where text follows closing quotes in the first rows, a quote is a character.

A quote that is never closed would swallow the rows up to the next one. If what follows that one shows it, only the
first line is rejected, and the lines after it are read again as rows; if not, the lines are one row, most likely of
another width, and are rejected together. A row above --max_document_bytes is rejected, and one above MAX_RECORD, too,
is an error, because nearly always its quote is not closed. In TSV, where prose has no delimiters, a first line with as
many fields as the header is a row, and its quotes are characters.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.readers.columnar import check_columns
from pipeline.readers.encodings import UTF8, is_line_safe, to_utf8
from pipeline.readers.open import Stream, long_name
from pipeline.readers.ranges import HEAD_BYTES, fills_head
from pipeline.readers.record import (
    BLANK_LINE,
    BYTE_ORDER_MARK,
    MAX_RECORD,
    Record,
    RecordOptions,
    Rejected,
    Undecodable,
    decode_utf8,
    excerpt_of,
    joined,
    too_long_reason,
)
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

OTHER_WIDTH = "row with another number of fields than the header"
UNCLOSED = "row with a quote that is not closed or not doubled"
LINE_END = "row with a line end (CR) outside of quotes"

DELIMITERS = (",", ";", "\t")
TAB_SUFFIXES = (".tsv", ".tab")
TAB_ALONE = ("\t",)

MAX_REREADS = 8
"""Maximum times that a file's bytes are read again because of quotes that are not closed. Some would need thousands."""

_SOURCE = "csv"

# A name of a column: it begins with a letter, digit or underscore, has at most 41 characters, and is no number.
_COLUMN_NAME = re.compile(r"(?![\d .:-]+$)\w[\w .:-]{0,40}")
_USUAL_COLUMNS = frozenset({"id", "text", "label", "title", "content", "body", "url", "name", "date", "source", "lang"})

NAMED_DELIMITER = re.compile(r'"?sep=([^\w\s"]|\t)"?\r?\n', re.IGNORECASE)

_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_DAMAGED = 0.05  # share of fields in quotes that may be damaged
_FEW = 2  # quotes without an end in their line, which may be of fields over several lines

_TABLE_ROWS = 5
"""Rows of equal length that make a table. Prose does not have five lines with as many commas as the first one."""


def csv_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield one record for each row of the file after the first one.

    Raises DataError if the first row does not name the columns, and if quotes make it unknown where rows begin.
    """
    csv.field_size_limit(sys.maxsize)  # rows are bounded here
    lines = _Lines(stream.file, file_range, max(options.max_document_bytes, MAX_RECORD))
    layout, header = _read_header(lines, file_range)
    if not header:
        return

    schema = pa.schema([pa.field(name, pa.string()) for name in header])
    wanted = [header.index(name) for name in check_columns(file_range.display_path, schema, options.text_key)]
    source = header.index("source") if "source" in header and header.index("source") not in wanted else None

    for row in _rows(lines, layout, len(header), options):
        if isinstance(row, Rejected):
            yield row
        elif len(row) != len(header):
            yield lines.rejected(OTHER_WIDTH)
        else:
            text = joined([row[position] for position in wanted])
            name = row[source] if source is not None else ""
            yield Record(text, name or _SOURCE, lines.undecodable(), position=lines.offset, size=lines.size)


def _read_header(lines: _Lines, file_range: FileRange) -> tuple[dict[str, Any], list[str]]:
    """Read the first row that is not blank. Return the layout of the file, as csv takes it, and the columns' names."""
    name = long_name(file_range.path)
    if file_range.compression is not None:
        name = name.rpartition(".")[0]

    layout: dict[str, Any]
    found: tuple[dict[str, Any], list[str]] = ({}, [])
    named = _named_delimiter(lines)
    for delimiter in named or (TAB_ALONE if name.endswith(TAB_SUFFIXES) else DELIMITERS):
        layout = {"delimiter": delimiter, "strict": True}
        header = _first_row(lines, layout)
        if len(header) > 1 and all(field.startswith(" ") for field in header[1:]):
            layout["skipinitialspace"] = True
            header = _first_row(lines, layout)
        if len(header) > len(found[1]):
            found = layout, header

    layout, header = found
    if layout.get("delimiter") == "\t" and _has_plain_quotes(lines, layout, len(header)):
        layout["quoting"] = csv.QUOTE_NONE
        header = _first_row(lines, layout)
    if header:
        _first_row(lines, layout, keeps=False)
    elif beginning := lines.beginning().strip():
        advice = "Check its quotes and line ends, or give --format text to read it as it is."
        if b"\r" in beginning and b"\n" not in beginning:
            advice = "Its lines end with CR alone, as on old Macs: convert them, as in tr '\\r' '\\n' < FILE > NEW.csv."
        raise DataError(
            f"{file_range.display_path} has no readable row of column names at its beginning, as CSV needs it. {advice}"
        )
    return layout, header


def _has_plain_quotes(lines: _Lines, layout: dict[str, Any], width: int) -> bool:
    """Return whether quotes in the first lines enclose nothing: lines are rows, and fields do not end with a quote.

    layout: as it is if quotes enclose fields. Damage in a few fields of a file with quotes does not count.
    """
    lines.begin_row()
    first: list[str] = []
    while lines.size < HEAD_BYTES and (line := next(lines, "")):
        first.append(line)
    is_cut = lines.size >= HEAD_BYTES
    lines.give_back()

    try:
        rows = [row for row in csv.reader(first, **layout, quoting=csv.QUOTE_NONE) if row]
    except csv.Error:
        return False
    closed = goes_on = opened = 0
    for row in rows:
        for column, field in enumerate(row):
            match = _QUOTED.match(field)
            closed += match is not None and match.end() == len(field)
            goes_on += match is not None and match.end() < len(field)
            # In the first column it may be the end of a field from the line before.
            opened += match is None and column > 0 and field.startswith('"')

    if goes_on and _is_sound(first, layout, is_cut):  # these are the ends of fields over several lines
        goes_on = 0
    wrong = goes_on + (opened if opened > _FEW else 0)
    return all(len(row) == width for row in rows) and wrong > _DAMAGED * (closed + goes_on + opened)


def _is_sound(lines: list[str], layout: dict[str, Any], is_cut: bool) -> bool:
    """Return whether lines are rows with quotes. is_cut: the last one may end within a field."""
    try:
        deque(csv.reader(lines, **layout), maxlen=0)
    except csv.Error as error:
        return is_cut and str(error) == "unexpected end of data"
    return True


def _named_delimiter(lines: _Lines) -> tuple[str, ...]:
    """Skip a first line like `sep=;`, as spreadsheets write it, and return its delimiter; () if there is none."""
    lines.begin_row()
    named = NAMED_DELIMITER.fullmatch(next(lines, ""))
    if named is None:
        lines.give_back()
    return (named[1],) if named else ()


def _first_row(lines: _Lines, layout: dict[str, Any], keeps: bool = True) -> list[str]:
    """Return the first row that is not blank; [] if there is none that can be read. keeps: it can be read again."""
    lines.begin_row()
    try:
        return next(filter(None, csv.reader(lines, **layout)), [])
    except (csv.Error, DataError):
        return []
    finally:
        if keeps:
            lines.give_back()


def _rows(lines: _Lines, layout: dict[str, Any], width: int, options: RecordOptions) -> Iterator[list[str] | Rejected]:
    """Yield the fields of each row, or its rejection. `lines` has the bytes of the row until the next one is read.

    width: fields of the header.
    """
    reader = csv.reader(lines, **layout)
    while True:
        lines.begin_row()
        try:
            row = next(reader)
        except StopIteration:
            return
        except (csv.Error, _UnclosedError) as error:
            lines.give_back(of_first_line=True)
            row = _plain_row(lines, layout) if layout["delimiter"] == "\t" else []
            if len(row) != width or width == 1:
                if isinstance(error, DataError):
                    raise
                yield lines.rejected(LINE_END if str(error).startswith("new-line") else UNCLOSED)
                continue
        if lines.size > options.max_document_bytes:
            yield Rejected(too_long_reason(options.max_document_bytes), _SOURCE, lines.offset)
        else:
            yield row or Rejected(BLANK_LINE, _SOURCE, lines.offset)


def _plain_row(lines: _Lines, layout: dict[str, Any]) -> list[str]:
    """Return the fields of the line that `lines` has, with quotes as characters; [] if it is no row."""
    lines.give_back()
    try:
        return next(csv.reader(lines, **layout | {"quoting": csv.QUOTE_NONE}), [])
    except csv.Error:
        return []


class _UnclosedError(DataError):
    """A quote hides more than a row may have, or lines were given back too often."""


class _Lines:
    """The lines of a file for csv, with the bytes of the row that is being read. They can be given back.

    offset: where the row begins. size: its bytes so far. max_bytes: that a row may have.
    """

    def __init__(self, file: IO[bytes], file_range: FileRange, max_bytes: int):
        self.offset = 0
        self.size = 0
        self._file = file
        self._path = file_range.display_path
        self._encoding = file_range.encoding if is_line_safe(file_range.encoding) else UTF8  # of what `file` has
        self._max_bytes = max_bytes
        self._row: list[bytes] = []  # its lines, in the encoding of the file
        self._again: deque[bytes] = deque()
        self._is_damaged = False
        self._read_bytes = 0
        self._given_back = 0

    def begin_row(self) -> None:
        self.offset += self.size
        self.size = 0
        self._row.clear()
        self._is_damaged = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._again:
            line = self._again.popleft()
        else:
            line = self._file.readline(self._max_bytes + 1)
            self._read_bytes += len(line)
        if not line:
            raise StopIteration

        is_beginning = self.offset == self.size == 0
        self._row.append(line)
        self.size += len(line)
        if self.size > self._max_bytes:
            raise self._unclosed()

        encoded = to_utf8(line, self._encoding)
        if is_beginning:
            encoded = encoded.removeprefix(BYTE_ORDER_MARK)
        try:
            return encoded.decode()
        except UnicodeDecodeError:
            self._is_damaged = True
            return encoded.decode(errors="replace")

    def give_back(self, of_first_line: bool = False) -> None:
        """Let the lines of the row be read again; with `of_first_line`, all lines but the first.

        Raises DataError if that has happened too often.
        """
        kept = int(of_first_line)
        lines = self._row[kept:]
        del self._row[kept:]
        self._again.extendleft(reversed(lines))

        given_back = sum(map(len, lines))
        self.size -= given_back
        self._given_back += given_back if of_first_line else 0
        if self._given_back > MAX_REREADS * self._read_bytes:
            raise self._unclosed()

    def _unclosed(self) -> _UnclosedError:
        return _UnclosedError(
            f"{self._path} has a quote in the row at byte {self.offset:,} that is not closed, or a row of more than "
            f"{self._max_bytes >> 20} MB there, so it is unknown where the next rows begin. Double the quotes within "
            "fields, as RFC 4180 has them, write the table as JSON lines or Parquet, or raise --max_document_bytes."
        )

    def rejected(self, reason: str) -> Rejected:
        shown = excerpt_of(to_utf8(b"".join(self._row), self._encoding))
        return Rejected(reason, _SOURCE, self.offset, shown, undecodable=self.undecodable(), size=self.size)

    def undecodable(self) -> Undecodable | None:
        """Return what of the row is not in the file's encoding."""
        if not self._is_damaged:
            return None
        return decode_utf8(to_utf8(b"".join(self._row), self._encoding), self.offset)[1]

    def beginning(self) -> bytes:
        """Return the first bytes of what was given back."""
        return b"".join(self._again)


def begins_table(text: bytes) -> bool:
    """Return whether rows of equal length follow a row of column names.

    Tables without a header pass as text, because nothing distinguishes them from lists and poems.
    """
    lines = text.decode(errors="replace")
    header = lines.partition("\n")[0]

    for delimiter in ("\t", ",", ";"):
        names = header.split(delimiter)
        if len(names) < 2 or not _are_column_names(names):
            continue

        reader = csv.reader(io.StringIO(lines), delimiter=delimiter, skipinitialspace=True)
        try:
            rows = [row for row in reader if row]
        except csv.Error:
            continue

        # The last row of a longer file may be cut off.
        whole_rows = rows[:-1] if fills_head(lines) else rows
        if len(whole_rows) >= _TABLE_ROWS and all(len(row) == len(names) for row in whole_rows):
            return True
    return False


def _are_column_names(fields: list[str]) -> bool:
    """Return whether the fields of the first line are names of columns.

    Prose too has spaces after commas. If fields begin with a space, at least one name must be a usual one.
    """
    names = [field.strip(' "\r') for field in fields]
    if not all(map(_COLUMN_NAME.fullmatch, names)):
        return False

    has_spaces = any(field.startswith(" ") for field in fields)
    return not has_spaces or not _USUAL_COLUMNS.isdisjoint(name.lower() for name in names)
