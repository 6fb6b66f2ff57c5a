"""Files that are not text: how they are recognized, and what a user can do with each kind.

A kind is recognized by the suffix of its name, by its first bytes ("magic numbers"), or by its first tag.
"""

from __future__ import annotations

import os
import re

from schemas.errors import DataError

_SUFFIXES_OF_KIND = {
    "CSV": ".csv",
    "TSV": ".tsv",
    "HTML": ".html .htm .xhtml",
    "XML": ".xml .rss .svg",
    "PDF": ".pdf",
    "an office document": ".doc .docx .xls .xlsx .ppt .pptx .odt .ods .odp .rtf .epub .mobi",
    "an image": ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .heic .ico",
    "audio or video": ".mp3 .wav .flac .ogg .mp4 .avi .mov .mkv .webm",
    "an archive": ".zip .tar .tgz .tbz2 .txz .7z .rar .jar",
    # Not .so, which also ends the names of Somali texts: libraries are recognized by their first bytes.
    "binary data": ".arrow .feather .orc .avro .npy .npz .pkl .h5 .hdf5 .sqlite .exe .dll",
}
_KIND_OF_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES_OF_KIND.items() for suffix in suffixes.split()}

# (offset, bytes, kind). A text may begin with letters such as "ID3" or "BZh" too, so magic numbers that consist of
# letters and digits count only in a file that contains control bytes.
_MAGIC = (
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

# Control bytes that no text contains: all but tab, line ends, vertical tab, form feed and escape.
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")

# White space and comments, as they may stand before the first tag.
_COMMENTS = rb"(?:\s|<!--.*?-->)*"
_MARKUP = {
    "HTML": re.compile(_COMMENTS + rb"<(?:!doctype html|html|head|body)[\s>]", re.DOTALL | re.IGNORECASE),
    "XML": re.compile(_COMMENTS + rb"<(?:\?xml|mediawiki|rss)[\s>]", re.DOTALL | re.IGNORECASE),
}

_CONVERT_TABLE = (
    "Convert it to JSON lines or Parquet (DuckDB, polars and pandas do) and name the column with --text_key"
)
_REMEDIES = {
    "CSV": _CONVERT_TABLE,
    "TSV": _CONVERT_TABLE,
    "HTML": "Extract its text first, for instance with trafilatura",
    "XML": "Extract its text first, for instance with WikiExtractor if it is a Wikipedia dump",
    "PDF": "Extract its text first, for instance with pdftotext",
    "a JSON array": "Write one object per line (jq -c '.[]' FILE > FILE.jsonl)",
    "JSON over several lines": "Write one object per line (jq -c . FILE > FILE.jsonl)",
    "an image": "Leave it out",
    "audio or video": "Leave it out",
    "binary data": "Convert it to JSON lines or Parquet",
    "gzip": "Name it with .gz at the end",
    "bz2": "Name it with .bz2 at the end",
    "xz": "Name it with .xz at the end",
    "zstd": "Name it with .zst at the end",
}
_DEFAULT_REMEDY = "Extract its text first"


def kind_by_suffix(name: str) -> str | None:
    """Return the kind that a lower-case file name stands for, or None."""
    return _KIND_OF_SUFFIX.get(os.path.splitext(name)[1])


def kind_by_magic(head: bytes) -> str | None:
    """Return the kind whose magic number is among the first bytes of a file, or None."""
    for offset, magic, kind in _MAGIC:
        if head.startswith(magic, offset):
            may_be_text = magic.isalnum() and not has_control_bytes(head)
            return None if may_be_text else kind
    return None


def kind_of_markup(text: bytes) -> str | None:
    """Return "HTML" or "XML" if a text begins with one of their tags, otherwise None."""
    for kind, beginning in _MARKUP.items():
        if beginning.match(text):
            return kind
    return None


def has_control_bytes(head: bytes) -> bool:
    """Return whether there are bytes that no text contains."""
    return _CONTROL.search(head) is not None


def not_text_error(path: str, kind: str) -> DataError:
    """Return the error for a file that is not text, with what to do about it."""
    remedy = _REMEDIES.get(kind, _DEFAULT_REMEDY)
    return DataError(
        f"{path} looks like {kind}, not like text, and would be read as if it were documents. {remedy}; or give "
        "--format text to read it line by line anyway."
    )
