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
    "SGML or vertical text": ".sgm .sgml .vert",
    "a WARC file": ".warc .wet .wat",
    "subtitles": ".srt .vtt",
    "CoNLL columns": ".conll .conllu",
    "e-mail": ".mbox",
    "FASTA or FASTQ": ".fasta .fastq",
    "YAML": ".yaml .yml",
    "PDF": ".pdf",
    "an office document": ".doc .docx .xls .xlsx .ppt .pptx .odt .ods .odp .rtf .epub .mobi",
    "an image": ".png .jpg .jpeg .gif .bmp .tif .tiff .webp .heic .ico",
    "audio or video": ".mp3 .wav .flac .ogg .mp4 .avi .mov .mkv .webm",
    "an archive": ".zip .tar .tgz .tbz2 .txz .7z .rar .jar",
    # Not .so, which also ends the names of Somali texts: libraries are recognized by their first bytes. Nor .fa (Farsi)
    # and .eml (Emilian).
    "a file of data": ".arrow .feather .orc .avro .npy .npz .pkl .h5 .hdf5 .sqlite",
    "binary data": ".exe .dll",
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
    (0, b"ARROW1\x00\x00", "a file of data"),
    (0, b"SQLite format 3\x00", "a file of data"),
    (0, b"\x89HDF\r\n\x1a\n", "a file of data"),
    (0, b"\x93NUMPY", "a file of data"),
    (0, b"\x7fELF", "binary data"),
)

# Control bytes that no text contains: all but tab, line ends, vertical tab, form feed, and the shifts and the escape of
# ISO 2022.
_CONTROL = re.compile(rb"[\x00-\x08\x10-\x1a\x1c-\x1f]")

_MANY_CONTROL_BYTES = 0.05
"""Minimum share of control bytes in binary data: 0.09 in compressed data, more elsewhere, and less in damaged text."""

# White space and comments, as they may stand before the first tag.
_COMMENTS = rb"(?:\s|<!--.*?-->)*"
_FIELD_OF_MAIL = (
    rb"(?:From|To|Cc|Subject|Date|Message-ID|Received|Return-Path|Delivered-To|Reply-To|Sender|MIME-Version|"
    rb"Content-[\w-]+|X-[\w-]+|DKIM-Signature|Newsgroups|Path|Organization|Lines|References|In-Reply-To):.*"
)

# (kind, how a text of the kind begins), tried in this order.
_BEGINNINGS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("HTML", rb"(?s:" + _COMMENTS + rb")<(?:!doctype html|html|head|body)[\s>]"),
        ("XML", rb"(?s:" + _COMMENTS + rb")<(?:\?xml|mediawiki|rss|tei|tmx|xliff|tt)[\s>]"),
        ("SGML or vertical text", rb"\s*<(?:!doctype|doc|text|corpus|refset|srcset|tstset)(?:\s.*)?>|\s*<s>\s*\n"),
        ("a WARC file", rb"WARC/\d\.\d\r?\n"),
        ("subtitles", rb"\s*(?:\d+\s*\n)?\d+:\d\d:\d\d[,.]\d+ --> |WEBVTT\s|\[Script Info\]|\{\d+\}\{\d+\}"),
        # CoNLL-U has ten columns. In others, the last column is often a tag of named entities.
        ("CoNLL columns", rb"(?:#.*\n|\s)*\d+(?:-\d+)?\t(?:[^\t\n]+\t){8}[^\t\n]+\n|-DOCSTART-"),
        ("CoNLL columns", rb"(?-i:(?:\S+[ \t]+){1,4}(?:O|[BIES]-[\w-]+)[ \t\r]*\n){3}"),
        ("e-mail", rb"From \S+ +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) .*\d{4}"),
        ("e-mail", rb"(?:" + _FIELD_OF_MAIL + rb"\n(?:[ \t].*\n)*){3}"),
        ("FASTA or FASTQ", rb"(?-i:>\S.*\n(?:[A-Z][A-Z*-]{7,}|[acgtun]{8,})\r?(?:\n|$))"),
        ("FASTA or FASTQ", rb"@.*\n[ACGTUN.]{8,}\r?\n\+"),
        ("YAML", rb"%YAML \d|(?:---\s*\n)?- \w+:.*\n  \w+:.*\n"),
        ("PostScript", rb"%!PS"),
        ("a gettext catalog", rb'(?:#.*\n|\s)*msgid "'),
        ("an SQL dump", rb"(?:--.*\n|/\*.*\n|\s)*(?:CREATE TABLE|INSERT INTO|DROP TABLE|PRAGMA )"),
        ("a Git LFS pointer", rb"version https://git-lfs\.github\.com/spec/"),
    )
)

_CONVERT_TABLE = (
    "Convert it to JSON lines or Parquet (DuckDB, polars and pandas do) and name the column with --text_key"
)
_REMEDIES = {
    "CSV": _CONVERT_TABLE,
    "TSV": _CONVERT_TABLE,
    "HTML": "Extract its text first, for instance with trafilatura",
    "XML": "Extract its text first, for instance with WikiExtractor if it is a Wikipedia dump",
    "SGML or vertical text": "Extract its text first, for instance with the Python package beautifulsoup4",
    "a WARC file": "Write its texts as JSON lines first (the Python package warcio reads records, trafilatura HTML)",
    "subtitles": "Extract its lines first, for instance with the Python package pysubs2",
    "CoNLL columns": "Write its sentences as text first (in CoNLL-U: sed -n 's/^# text = //p' FILE > FILE.txt)",
    "e-mail": "Write its messages as JSON lines first (Python's modules mailbox and email read them)",
    "FASTA or FASTQ": "Write one sequence per line first, for instance with seqkit seq -s -w 0 FILE > FILE.txt",
    "YAML": "Write one object per line first, for instance with yq -o json -I 0 '.[]' FILE > FILE.jsonl",
    "PostScript": "Extract its text first, for instance with ps2ascii",
    "a gettext catalog": "Extract its text first, for instance with po2txt of the Translate Toolkit",
    "an SQL dump": "Load it into a database and write the column of text as JSON lines",
    "a JSON array": "Write one object per line (jq -c '.[]' FILE > FILE.jsonl)",
    "JSON over several lines": "Write one object per line (jq -c . FILE > FILE.jsonl)",
}
"""Kinds of characters, which can be read as plain text too, and how to get the text alone."""

_REMEDIES_OF_BINARY = {
    "PDF": "Extract its text first, for instance with pdftotext",
    "an office document": "Extract its text first, for instance with pandoc (docx, odt, epub, rtf), or with "
    "soffice --convert-to txt FILE",
    "an archive or office document (zip)": "Unpack it with unzip; if it is a docx, odt or epub, extract its text with "
    "pandoc",
    "an archive": "Unpack it first (unzip, tar -xf, 7z x)",
    "an archive (zip)": "Unpack it first (unzip)",
    "an archive (tar)": "Unpack it first (tar -xf)",
    "an archive (7z)": "Unpack it first (7z x)",
    "an archive (rar)": "Unpack it first (7z x)",
    "a file of data": "Convert it to JSON lines or Parquet (pyarrow, DuckDB, polars and pandas read most of them)",
    "an image": "Leave it out",
    "audio or video": "Leave it out",
    "binary data": "Leave it out, or name its encoding with --encoding if it is text in UTF-16",
    "a Git LFS pointer": "Fetch the file that it stands for (git lfs pull)",
    "gzip": "Name it with .gz at the end",
    "bz2": "Name it with .bz2 at the end",
    "xz": "Name it with .xz at the end",
    "zstd": "Name it with .zst at the end",
}


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


def kind_of_text(text: bytes) -> str | None:
    """Return the kind of markup, columns or records that a text begins with, or None."""
    for kind, beginning in _BEGINNINGS:
        if beginning.match(text):
            return kind
    return None


def is_binary(head: bytes) -> bool:
    """Return whether so many bytes are none of text that a file is binary data. Such bytes abound in UTF-16, too."""
    return len(_CONTROL.findall(head)) > _MANY_CONTROL_BYTES * len(head)


def has_control_bytes(head: bytes) -> bool:
    """Return whether there are bytes that no text contains."""
    return _CONTROL.search(head) is not None


def not_text_error(path: str, kind: str) -> DataError:
    """Return the error for a file that is not text, with what to do about it."""
    found = f"{path} looks like {kind}, not like text."
    if kind in _REMEDIES_OF_BINARY:
        return DataError(f"{found} {_REMEDIES_OF_BINARY[kind]}.")
    return DataError(f"{found} {_REMEDIES[kind]}; or give --format text to read it as it is.")
