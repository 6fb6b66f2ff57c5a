"""Detects what kind of file an input is, by its name and its first bytes.

Files that are known not to be text are refused, with advice on what to do, so that markup, tables and archives are
never read as documents by mistake. Anything unrecognized passes as text, source code and notes in Markdown or LaTeX
too. The kinds themselves are in file_kinds.py.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import IO, Literal

import pyarrow.parquet as pq

from pipeline.shard.decompression import DECOMPRESSION_ERRORS, compression_of, open_plain, open_text
from pipeline.shard.encoding_guess import ISO_2022, seven_bit_encoding
from pipeline.shard.encodings import UTF8, is_line_safe, looks_like_utf8, wide_encoding
from pipeline.shard.file_kinds import (
    has_control_bytes,
    is_binary,
    kind_by_magic,
    kind_by_suffix,
    kind_of_text,
    not_text_error,
)
from pipeline.shard.listing import InputFile
from pipeline.shard.ranges import HEAD_BYTES, open_head, open_range
from pipeline.shard.record import load_json
from schemas import storage
from schemas.errors import DataError

Format = Literal["text", "jsonl", "parquet", "wikiextractor"]
OpenFile = Callable[[], IO[bytes]]

_HEAD_BYTES = 1 << 16
_BZ2_HEAD_BYTES = 1 << 20  # nothing decompresses before the end of a bzip2 file's first block
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"
_JSON_LINES = "JSON lines"

# The start tag that WikiExtractor writes before every article. Corpora of other tools have <doc> without a URL.
_WIKI_BLOCK = re.compile(rb'\s*<doc id="[^">\n]*"[^>\n]* url="')

# An object up to the colon after its first key: a brace, a string with escapes, a colon.
_JSON_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')

# An array whose first item is an object: an empty one, or one up to the colon after its first key.
_JSON_ARRAY = re.compile(rb'\s*\[\s*\{\s*(?:\}|"(?:[^"\\\n]|\\.)*"\s*:)')

# A name of a column: it begins with a letter, digit or underscore and has at most 41 characters.
_COLUMN_NAME = re.compile(r"\w[\w .:-]{0,40}")
_USUAL_COLUMNS = frozenset({"id", "text", "label", "title", "content", "body", "url", "name", "date", "source", "lang"})

_TABLE_ROWS = 5
"""Rows of equal length that make a table. Prose does not have five lines with as many commas as the first one."""


def find_format(file: InputFile, wanted: Format | Literal["auto"], encoding: str, shown: str = "") -> Format:
    """Return `wanted`, or the format that `detect_format` finds if it is "auto".

    shown: the file's name in errors, if it is not its path.

    Raises DataError if the file is known not to be text, is UTF-8 although another encoding was named, or hides its
    letters in ASCII, as ISO-2022-JP and UTF-7 do, although no encoding was named.
    """
    shown = shown or file.path
    compression = compression_of(file.path)
    head_bytes = _BZ2_HEAD_BYTES if compression == "bz2" else HEAD_BYTES

    def open_file() -> IO[bytes]:
        return open_head(file, head_bytes)

    found = detect_format(file.path, encoding, open_file, shown) if wanted == "auto" else wanted
    if found != "parquet":
        _check_encoding(shown, compression, encoding, open_file)
    return found


def check_file(file: InputFile, wanted: Format | Literal["auto"], encoding: str) -> Format:
    """Return the format of a file as `find_format` does. Also raises DataError if it is not readable as Parquet."""
    found = find_format(file, wanted, encoding)
    if found == "parquet" and compression_of(file.path) is not None:
        raise DataError(f"{file.path} is a compressed Parquet file, which cannot be read. Decompress it first.")
    if found == "parquet":
        with open_range(file) as opened:
            open_parquet(opened, file.path)
    return found


def open_parquet(opened: IO[bytes], shown: str) -> pq.ParquetFile:
    """Read the footer of a Parquet file. Raises DataError if it has no readable footer."""
    try:
        return pq.ParquetFile(opened)
    except (OSError, ValueError) as error:
        raise DataError(f"{shown} is not a readable Parquet file ({error}). Copy it again, or leave it out.") from error


def detect_format(path: str, encoding: str = UTF8, open_file: OpenFile | None = None, shown: str = "") -> Format:
    """Return the format by name (.json, .jsonl, .ndjson, .parquet, .pq), else by the first bytes.

    open_file: opens the compressed bytes, instead of opening `path`. Called only if the name does not tell the format.
    shown: the file's name in errors, if it is not its path.

    Raises DataError for files that are known not to be text: tables, markup, mail, documents, images, archives.
    """
    named = named_format(path)
    if named is not None:
        return named

    shown = shown or path
    kind = kind_by_suffix(_plain_name(path))
    if kind is not None:
        raise not_text_error(shown, kind)

    compression = compression_of(path)
    head = _first_bytes(shown, compression, encoding, open_file or (lambda: storage.open_input(path)))
    if compression is None and head.startswith(_PARQUET_MAGIC) and has_control_bytes(head):
        return "parquet"
    return _detect_by_content(shown, head)


def named_format(path: str) -> Format | None:
    """Return the format that the name of a file stands for, or None."""
    name = _plain_name(path)
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    return None


def _plain_name(path: str) -> str:
    """Return a path in lower case, without a compression suffix."""
    name = path.rpartition(".")[0] if compression_of(path) else path
    return name.lower()


def _check_encoding(path: str, compression: str | None, encoding: str, open_file: OpenFile) -> None:
    """Raise DataError if the beginning of a file shows that it is in another encoding than `encoding`."""
    try:
        with open_plain(path, compression, file=open_file()) as file:
            head = file.read(_HEAD_BYTES)
    except (DataError, *DECOMPRESSION_ERRORS):
        return  # the worker that reads it reports what is wrong with it

    if encoding == UTF8:
        found = seven_bit_encoding(head)
        if found == ISO_2022:
            raise DataError(
                f"{path} is in an ISO 2022 encoding, but UTF-8 was expected. Convert it, as in "
                f"iconv -f ISO-2022-CN -t UTF-8 {path}."
            )
        if found is not None:
            raise DataError(f"{path} is {found.upper()}, but UTF-8 was expected. Read it with --encoding {found}.")
    elif looks_like_utf8(head, encoding):
        raise DataError(
            f"{path} is not {encoding.upper()}: it begins with {len(head):,} bytes of valid UTF-8. "
            "Give --encoding utf-8 to read it."
        )


def _first_bytes(path: str, compression: str | None, encoding: str, open_file: OpenFile) -> bytes:
    """Return the beginning of a file, in UTF-8 if its encoding is not line-safe; empty if it cannot be read."""
    try:
        with open_plain(path, compression, file=open_file()) as file:
            head = file.read(_HEAD_BYTES)
        if kind_by_magic(head) or is_line_safe(encoding):
            return head

        with open_text(path, compression, encoding, file=open_file()) as file:
            return file.read(_HEAD_BYTES)
    except DECOMPRESSION_ERRORS:
        return b""  # the worker that reads it reports what is wrong with it


def _detect_by_content(path: str, head: bytes) -> Format:
    kind = kind_by_magic(head)
    if kind is None and wide_encoding(head) is None and is_binary(head):
        kind = "binary data"
    if kind is not None:
        raise not_text_error(path, kind)

    text = head.removeprefix(_BYTE_ORDER_MARK)
    if _WIKI_BLOCK.match(text):
        return "wikiextractor"
    kind = kind_of_text(text) or _kind_of_json(text) or _kind_of_table(text)
    if kind == _JSON_LINES:
        return "jsonl"
    if kind is not None:
        raise not_text_error(path, kind)
    return "text"


def _kind_of_json(text: bytes) -> str | None:
    """Return which kind of JSON a text begins with: JSON lines, or one that must be converted to JSON lines."""
    if _JSON_ARRAY.match(text):
        return "a JSON array"
    if not _JSON_OBJECT.match(text):
        return None

    first_line, newline, _ = text.lstrip().partition(b"\n")
    if not newline and _is_truncated(text):
        return _JSON_LINES  # the first record is longer than the bytes that were read

    try:
        load_json(first_line.decode(errors="replace"))
    except ValueError:
        return "JSON over several lines"
    return _JSON_LINES


def _kind_of_table(text: bytes) -> str | None:
    """Return CSV or TSV if rows of equal length follow a row of column names.

    Tables without a header pass as text, because nothing distinguishes them from lists and poems.
    """
    lines = text.decode(errors="replace")
    header = lines.partition("\n")[0]

    for kind, delimiter in (("TSV", "\t"), ("CSV", ","), ("CSV", ";")):
        names = header.split(delimiter)
        if len(names) < 2 or not _are_column_names(names):
            continue

        reader = csv.reader(io.StringIO(lines), delimiter=delimiter, skipinitialspace=True)
        try:
            rows = [row for row in reader if row]
        except csv.Error:
            continue

        # The last row of a longer file may be cut off.
        whole_rows = rows[:-1] if _is_truncated(lines) else rows
        if len(whole_rows) >= _TABLE_ROWS and all(len(row) == len(names) for row in whole_rows):
            return kind
    return None


def _is_truncated(text: bytes | str) -> bool:
    """Return whether the file may continue after `text`. Half of the read bytes suffice: decoding shortens text."""
    return len(text) > _HEAD_BYTES // 2


def _are_column_names(fields: list[str]) -> bool:
    """Return whether the fields of the first line are names of columns.

    Prose too has spaces after commas. If fields begin with a space, at least one name must be a usual one.
    """
    names = [field.strip(' "\r') for field in fields]
    if not all(map(_COLUMN_NAME.fullmatch, names)):
        return False

    has_spaces = any(field.startswith(" ") for field in fields)
    return not has_spaces or not _USUAL_COLUMNS.isdisjoint(name.lower() for name in names)
