"""What kind of file an input is, by its name and its first bytes; what is not text is refused with what to do."""

from __future__ import annotations

import csv
import io
import os
import re
from typing import Literal

import orjson

from pipeline.shard.decompression import UNREADABLE, compression_of, open_plain, open_text
from pipeline.shard.encodings import UTF8, looks_like_utf8, wide_encoding
from schemas.errors import DataError

Format = Literal["text", "jsonl", "parquet", "wikiextractor"]
_HEAD = 1 << 16  # bytes to look at
_TABLE_ROWS = 5  # equal rows that make a table; prose has no five lines with the same number of commas under a header
_WIKI_BLOCK = re.compile(rb'\s*<doc id="')
_COLUMN_NAME = re.compile(r"\w[\w .:-]{0,40}")
_USUAL_COLUMNS = frozenset({"id", "text", "label", "title", "content", "body", "url", "name", "date", "source", "lang"})
_JSON_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\\n]|\\.)*"\s*:')
_JSON_ARRAY = re.compile(rb'\s*\[\s*\{\s*(?:\}|"(?:[^"\\\n]|\\.)*"\s*:)')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_KINDS = {
    "CSV": ".csv",
    "TSV": ".tsv",
    "HTML": ".html .htm .xhtml",
    "XML": ".xml .rss .svg",
    "PDF": ".pdf",
    "an office document": ".doc .docx .xls .xlsx .ppt .pptx .odt .ods .odp .rtf .epub .mobi",
    "an image": ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .heic .ico",
    "audio or video": ".mp3 .wav .flac .ogg .mp4 .avi .mov .mkv .webm",
    "an archive": ".zip .tar .tgz .tbz2 .txz .7z .rar .jar",
    "binary data": ".arrow .feather .orc .avro .npy .npz .pkl .h5 .hdf5 .sqlite .exe .dll",
}
# Without .so, which ends the names of Somali texts too: libraries are known by their first bytes.
_BY_SUFFIX = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes.split()}

# Those of letters alone may also begin a text, so they count only in a file with control bytes.
_MAGIC = (
    # (offset, bytes, kind)
    (0, b"%PDF-", "PDF"),
    (0, b"{\\rtf", "an office document"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an office document"),
    (0, b"PK\x03\x04", "an archive or office document (zip)"),
    (0, b"PK\x05\x06", "an archive (zip)"),
    (0, b"7z\xbc\xaf\x27\x1c", "an archive (7z)"),
    (0, b"Rar!\x1a\x07", "an archive (rar)"),
    (257, b"ustar", "an archive (tar)"),
    (0, b"\x89PNG\r\n\x1a\n", "an image"),
    (0, b"\xff\xd8\xff", "an image"),
    (0, b"GIF87a", "an image"),
    (0, b"GIF89a", "an image"),
    (8, b"WEBP", "an image"),
    (0, b"II*\x00", "an image"),
    (0, b"MM\x00*", "an image"),
    (4, b"ftyp", "audio or video"),
    (0, b"ID3", "audio or video"),
    (0, b"OggS", "audio or video"),
    (0, b"fLaC", "audio or video"),
    (0, b"\x1f\x8b\x08", "gzip"),
    (0, b"BZh", "bz2"),
    (0, b"\xfd7zXZ\x00", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"ARROW1\x00\x00", "binary data"),
    (0, b"SQLite format 3\x00", "binary data"),
    (0, b"\x89HDF\r\n\x1a\n", "binary data"),
    (0, b"\x93NUMPY", "binary data"),
    (0, b"\x7fELF", "binary data"),
)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_COMMENTS = rb"(?:\s|<!--.*?-->)*"
_MARKUP = {
    "HTML": re.compile(_COMMENTS + rb"<(?:!doctype html|html|head|body)[\s>]", re.DOTALL | re.IGNORECASE),
    "XML": re.compile(_COMMENTS + rb"<(?:\?xml|mediawiki|rss)[\s>]", re.DOTALL | re.IGNORECASE),
}

_REMEDIES = {
    "CSV": "Convert it to JSON lines or Parquet (DuckDB, polars and pandas do) and name the column with --text_key",
    "TSV": "Convert it to JSON lines or Parquet (DuckDB, polars and pandas do) and name the column with --text_key",
    "HTML": "Extract its text first, for instance with trafilatura",
    "XML": "Extract its text first, for instance with WikiExtractor when it is a Wikipedia dump",
    "PDF": "Extract its text first, for instance with pdftotext",
    "a JSON array": "Write one object a line (jq -c '.[]' FILE > FILE.jsonl)",
    "JSON over several lines": "Write one object a line (jq -c . FILE > FILE.jsonl)",
    "an image": "Leave it out",
    "audio or video": "Leave it out",
    "binary data": "Convert it to JSON lines or Parquet",
    "gzip": "Name it with .gz at the end",
    "bz2": "Name it with .bz2 at the end",
    "xz": "Name it with .xz at the end",
    "zstd": "Name it with .zst at the end",
}


def detect_format(path: str, encoding: str = UTF8) -> Format:
    """Return the format by name (.json, .jsonl, .ndjson, .parquet), else by the first bytes.

    Raises DataError for files that are known not to be text: tables, markup, documents, images, archives.
    """
    compression = compression_of(path)
    name = (path.rpartition(".")[0] if compression else path).lower()
    if name.endswith((".jsonl", ".json", ".ndjson")):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"

    by_suffix = _BY_SUFFIX.get(os.path.splitext(name)[1])
    if by_suffix is not None:
        raise _refusal(path, by_suffix)

    head = _first_bytes(path, compression, encoding)
    if compression is None and head.startswith(b"PAR1") and _CONTROL.search(head):
        return "parquet"
    return _detect_by_content(path, head)


def refuse_misread_utf8(path: str, compression: str | None, encoding: str) -> None:
    """Raise DataError when a file begins as UTF-8 although another encoding was named for it."""
    try:
        with open_plain(path, compression) as file:
            head = file.read(_HEAD)
    except UNREADABLE:
        return  # whoever reads it will say what is wrong with it
    if looks_like_utf8(head, encoding):
        raise DataError(
            f"{path} is not {encoding.upper()}: it begins with {len(head):,} bytes of valid UTF-8. "
            "Give --encoding utf-8 to read it."
        )


def _first_bytes(path: str, compression: str | None, encoding: str) -> bytes:
    """Return the head of a file, as UTF-8 where its encoding needs that; nothing when it cannot be read."""
    try:
        with open_plain(path, compression) as file:
            head = file.read(_HEAD)
        if _kind_by_magic(head) or wide_encoding(head) is None:
            return head
        with open_text(path, compression, encoding) as file:
            return file.read(_HEAD)
    except UNREADABLE:
        return b""  # whoever reads it will say what is wrong with it


def _detect_by_content(path: str, head: bytes) -> Format:
    if _WIKI_BLOCK.match(head):
        return "wikiextractor"

    text = head.removeprefix(_BYTE_ORDER_MARK)
    kind = _kind_by_magic(head) or _kind_of_markup(text) or _kind_of_json(text) or _kind_of_table(text)
    if kind == "JSON lines":
        return "jsonl"
    if kind is not None:
        raise _refusal(path, kind)
    return "text"


def _kind_by_magic(head: bytes) -> str | None:
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset):
            return kind if not magic.isalnum() or _CONTROL.search(head) else None
    return None


def _kind_of_markup(text: bytes) -> str | None:
    return next((kind for kind, beginning in _MARKUP.items() if beginning.match(text)), None)


def _kind_of_json(text: bytes) -> str | None:
    """Return which kind of JSON a file begins with: JSON lines, or what has to become JSON lines."""
    if _JSON_ARRAY.match(text):
        return "a JSON array"
    if not _JSON_OBJECT.match(text):
        return None

    first_line, newline, _ = text.lstrip().partition(b"\n")
    if not newline and len(text) > _HEAD // 2:
        return "JSON lines"  # the first record is longer than the head
    try:
        orjson.loads(first_line.decode(errors="replace"))
        return "JSON lines"
    except orjson.JSONDecodeError:
        return "JSON over several lines"


def _kind_of_table(text: bytes) -> str | None:
    """Return CSV or TSV when rows of equal length follow a row of column names.

    Tables without a header pass for text, for there is nothing to tell them from lists and poems.
    """
    lines = text.decode(errors="replace")
    for kind, delimiter in (("TSV", "\t"), ("CSV", ","), ("CSV", ";")):
        names = lines.partition("\n")[0].split(delimiter)
        if len(names) < 2 or not _are_column_names(names):
            continue

        try:
            rows = [row for row in csv.reader(io.StringIO(lines), delimiter=delimiter, skipinitialspace=True) if row]
        except csv.Error:
            continue
        whole_rows = rows[:-1] if len(lines) > _HEAD // 2 else rows
        if len(whole_rows) >= _TABLE_ROWS and all(len(row) == len(names) for row in whole_rows):
            return kind
    return None


def _are_column_names(fields: list[str]) -> bool:
    """Return whether the fields of a first line are names.

    Spaces behind the delimiters are those of prose too; then one of the names must be a usual one.
    """
    names = [field.strip(' "\r') for field in fields]
    if not all(map(_COLUMN_NAME.fullmatch, names)):
        return False
    has_spaces = any(field.startswith(" ") for field in fields)
    return not has_spaces or not _USUAL_COLUMNS.isdisjoint(name.lower() for name in names)


def _refusal(path: str, kind: str) -> DataError:
    remedy = _REMEDIES.get(kind, "Take the text out of it first")
    return DataError(
        f"{path} looks like {kind}, not like text, so it would be taken for documents as it stands. {remedy}; or give "
        "--format text to read it line by line all the same."
    )
