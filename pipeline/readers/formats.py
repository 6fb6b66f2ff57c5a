"""Detects what kind of file an input is, by its name and its first bytes.

Files that are known not to be text are refused, with advice on what to do, so that markup and archives are never
read as documents by mistake. Anything unrecognized passes as text, source code and notes in Markdown or LaTeX too.
"""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple

from pipeline.readers.csv_rows import begins_table
from pipeline.readers.encodings import AUTO, encoding_error, encoding_of_head, is_line_safe
from pipeline.readers.json_values import is_other_json
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSION_ERRORS, compression_of, long_name, open_plain
from pipeline.readers.ranges import HEAD_BYTES, open_head
from pipeline.readers.record import BYTE_ORDER_MARK, Format
from pipeline.readers.table import READERS
from pipeline.readers.tagged_words import has_tagged_words
from schemas.errors import DataError

_ONE_LINE_BYTES = 64 << 20  # of a .json file; one whose first line is that long is likely lines, which workers share
_BZ2_HEAD_BYTES = 1 << 20  # nothing decompresses before the end of a bzip2 file's first block


class ForeignFileError(DataError):
    """A file is known not to be text, or not text alone. kind: what it is, as messages write it."""

    def __init__(self, message: str, kind: str = "binary data"):
        super().__init__(message)
        self.kind = kind


class Kind(NamedTuple):
    """A kind of files that are not read.

    advice: what to do about it.
    suffixes: of the names that stand for it.
    beginning: a regular expression, without regard to case, for the first bytes of such a file.
    """

    name: str
    advice: str
    suffixes: str = ""
    beginning: bytes = rb"(?!)"


BINARY_KINDS = (
    Kind("PDF", "Extract its text first, for instance with pdftotext", ".pdf", rb"%PDF-"),
    Kind(
        "an office document",
        "Save it first as docx or odt (soffice --convert-to odt FILE), a table as csv, slides as pdf",
        ".doc .docx .xls .xlsx .ppt .pptx .odt .ods .odp .rtf .epub .mobi .pages",
        rb"\{\\rtf|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1|PK\x03\x04(?s:.{26})(?:\[Content_Types\]|_rels/|mimetype)",
    ),
    Kind(
        "an archive",
        "Unpack it first (unzip, tar -xf, 7z x)",
        ".zip .tar .tgz .tbz .tbz2 .txz .tzst .7z .rar .jar",
        rb"PK(?:\x03\x04|\x05\x06)|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|(?s:.{257})ustar[\0 ]",
    ),
    Kind(
        "an image",
        "Leave it out",
        ".png .jpg .jpeg .gif .bmp .tif .tiff .webp",
        rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a",
    ),
    Kind(
        "a file of data",
        "Convert it to JSON lines or Parquet (pyarrow, DuckDB, polars and pandas read most of them)",
        ".orc .avro .npy .npz .pkl .pickle .h5 .hdf5 .sqlite",
        rb"SQLite format 3\0|FEA1|\x89HDF\r\n\x1a\n|\x93NUMPY|\x80[\x02-\x05](?:\x95|\}|\]|c)",
    ),
    Kind(
        "a compressed file",
        "Name it after its compression, with .gz, .bz2, .xz or .zst at the end",
        "",
        rb"\x1f\x8b\x08|(?-i:BZh[1-9]1AY&SY)|\xfd7zXZ\0|\x28\xb5\x2f\xfd",
    ),
    Kind(
        "a Git LFS pointer",
        "Fetch the file that it stands for (git lfs pull)",
        "",
        rb"version https://git-lfs\.github\.com/spec/",
    ),
)
"""Kinds that hold no text, or hold it in a form that must be extracted. Others are known by their control bytes."""

# White space and comments, as they may stand before the first tag. Possessive: with many comments, trying all ways to
# divide them would take minutes.
_COMMENTS = rb"(?:\s|<!--.*?-->)*+"
_FIELD_OF_MAIL = (
    rb"(?:From|To|Cc|Subject|Date|Message-ID|Received|Return-Path|Delivered-To|Reply-To|Sender|MIME-Version|"
    rb"Content-[\w-]+|X-[\w-]+|DKIM-Signature|Newsgroups|Path|Organization|Lines|References|In-Reply-To):.*"
)

# CoNLL-U has ten columns. Others are known by their tags: `_refuse_tagged_words`.
CONLL = Kind(
    "CoNLL columns",
    "Write its sentences as text first (in CoNLL-U: sed -n 's/^# text = //p' FILE > FILE.txt)",
    ".conll .conllu",
    rb"(?:#.*\n|\s)*\d+(?:-\d+)?\t(?:[^\t\n]+\t){8}[^\t\n]+\n|-DOCSTART-",
)

E_MAIL = Kind(
    "e-mail",
    "Write its messages as JSON lines first (Python's modules mailbox and email read them)",
    ".mbox",
    rb"From \S+ +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) .*\d{4}|(?:" + _FIELD_OF_MAIL + rb"\n(?:[ \t].*\n)*){3}",
)

TEXT_KINDS = (
    Kind(
        "XML",
        "Write its text as JSON lines first (docs/input.md has the lines of Python)",
        ".xml .rss .svg",
        rb"(?s:" + _COMMENTS + rb")<(?:\?xml|rss|tei|tmx|xliff|tt)[\s>]",
    ),
    Kind(
        "the index of a MediaWiki dump",
        "Leave it out, and read the dump itself",
        "",
        rb"(?:\d+:\d+:.+\n){3}",
    ),
    Kind(
        "SGML or vertical text",
        "Extract its text first, for instance with the Python package beautifulsoup4",
        ".sgm .sgml .vert",
        rb"\s*<(?:!doctype|doc|text|corpus|refset|srcset|tstset)(?:\s.*)?>|\s*<s>\s*\n",
    ),
    Kind(
        "a WAT file",
        "It describes pages and holds no text: read the WARC or WET file of the same name",
        ".wat",
    ),
    Kind(
        "subtitles",
        "Extract its lines first, for instance with the Python package pysubs2",
        ".srt .vtt",
        rb"\s*(?:\d+\s*\n)?\d+:\d\d:\d\d[,.]\d+ --> |WEBVTT\s|\[Script Info\]|\{\d+\}\{\d+\}",
    ),
    CONLL,
    Kind(
        "a man page",
        "Extract its text first, for instance with mandoc -T utf8 FILE | col -bx > FILE.txt",
        "",
        rb"(?-i:\s*(?:[.']?\\\"|\.(?:TH|Dd|SH|Sh)\s|\.so man\w+/))",
    ),
    E_MAIL,
    Kind(
        "FASTA or FASTQ",
        "Write one sequence per line first, for instance with seqkit seq -s -w 0 FILE > FILE.txt",
        ".fasta .fastq",
        rb"(?-i:>\S.*\n(?:[A-Z][A-Z*-]{7,}|[acgtun]{8,})\r?(?:\n|$))|@.*\n[ACGTUN.]{8,}\r?\n\+",
    ),
    Kind(
        "YAML",
        "Write one object per line first, for instance with yq -o json -I 0 '.[]' FILE > FILE.jsonl",
        ".yaml .yml",
        rb"%YAML \d|(?:---\s*\n)?- \w+:.*\n  \w+:.*\n",
    ),
    Kind("PostScript", "Extract its text first, for instance with ps2ascii", "", rb"%!PS"),
    Kind(
        "a gettext catalog",
        "Extract its text first, for instance with po2txt of the Translate Toolkit",
        "",
        rb'(?:#.*\n|\s)*msgid "',
    ),
    Kind(
        "an SQL dump",
        "Load it into a database and write the column of text as JSON lines",
        ".sql",
        rb"(?:--.*\n|/\*.*\n|\s)*(?:CREATE TABLE|INSERT INTO|DROP TABLE|PRAGMA )",
    ),
    Kind("a notebook", "Extract its text first (jupyter nbconvert --to markdown FILE)", ".ipynb"),
)
"""Kinds of characters, which can be read as plain text too."""

KINDS = (*BINARY_KINDS, *TEXT_KINDS)
_ADVICE = {kind.name: kind.advice for kind in KINDS if not kind.advice.startswith("Leave it out")}

# Control bytes that no text contains: all but tab, line ends, vertical tab, form feed, and the shifts and the escape of
# ISO 2022.
_CONTROL = re.compile(rb"[\x00-\x08\x10-\x1a\x1c-\x1f]")

_MANY_CONTROL_BYTES = 0.05
"""Minimum share of control bytes in binary data: 0.09 in compressed data, more elsewhere, and less in damaged text."""


def check_file(file: InputFile, wanted: Format | Literal["auto"], encoding: str) -> Format:
    """Return the format of a file as `find_format` does. Also raises DataError if its reader could not open it."""
    found = find_format(file, wanted, encoding)
    reader = READERS[found]
    if reader.gets == "stored" and compression_of(file.path) is not None:
        raise DataError(
            f"{file.path} is a compressed {found.capitalize()} file, which cannot be read. Decompress it first."
        )
    reader.check_file(file, file.path)
    return found


def find_format(file: InputFile, wanted: Format | Literal["auto"], encoding: str, shown: str = "") -> Format:
    """Return `wanted`; if it is "auto", the format that the file's name stands for, else that of its first bytes.

    Of JSON, the first bytes say of which kind it is. shown: the file's name in errors, if it is not its path.

    Raises ForeignFileError if the file is known not to be text, and DataError if its first bytes show another encoding
    than `encoding`, unless that is AUTO, or if they are needed and not compressed as the file's name says. Other damage
    is left to the worker that reads it.
    """
    shown = shown or file.path
    found = named_format(file.path) if wanted == "auto" else wanted
    if found is not None and READERS[found].gets == "stored":
        return found
    if found is None and not _may_be_dump(file.path):
        _refuse_suffix(shown, file.path, KINDS)

    try:
        head = first_bytes(file, shown)
    except DataError:
        if found is None:
            raise  # what the file is can only be found by its content
        head = b""
    if encoding == AUTO:
        encoding = encoding_of_head(head)
    text = _as_utf8(head, encoding)
    if found is None:
        if not head and _may_be_dump(file.path) and compression_of(file.path) is not None:
            return "mediawiki"  # whose reader says what is wrong with the file
        found = _format_that_begins(head, text)
        if found is None:
            _refuse_beginning(shown, head, BINARY_KINDS)
            _refuse_suffix(shown, file.path, KINDS)

    if wanted == "auto" and found == "jsonl":
        may_be_one_line = plain_name(file.path).endswith(".json") and file.size <= _ONE_LINE_BYTES
        found = "json" if is_other_json(text, may_be_one_line) else found
    is_text = found is None or READERS[found].gets == "text"
    if is_text and (error := encoding_error(shown, head, encoding)) is not None:
        raise error
    if found == "csv" and wanted == "auto":
        _refuse_tagged_words(shown, text, found)
    return found or _format_of_prose(shown, text)


def _as_utf8(head: bytes, encoding: str) -> bytes:
    """Return the first bytes of a file without a byte order mark, and as UTF-8 unless their encoding is line-safe."""
    text = head if is_line_safe(encoding) else head.decode(encoding, errors="replace").encode()
    return text.removeprefix(BYTE_ORDER_MARK)


def refuse_binary(file: InputFile, shown: str = "", wanted: Format | Literal["auto"] = "auto") -> None:
    """Raise ForeignFileError if the file is of BINARY_KINDS, and not read with this --format."""
    shown = shown or file.path
    if not _is_read(named_format(file.path), wanted):
        _refuse_suffix(shown, file.path, BINARY_KINDS)
    head = first_bytes(file, shown)
    if not _is_read(_format_that_begins(head, head), wanted):
        _refuse_beginning(shown, head, BINARY_KINDS)


def binary_kind(head: bytes) -> str | None:
    """Return what a file with these first bytes is, as messages write it, if it is of BINARY_KINDS or no text."""
    kinds = (kind.name for kind in BINARY_KINDS if re.match(kind.beginning, head, re.IGNORECASE))
    return next(kinds, "binary data" if _has_control_bytes(head) else None)


def advice_on(reason: str, source: str = "") -> str:
    """Return what to do about files after a colon, or nothing. reason: ends with the name of their kind."""
    if source == "pdf" and reason.endswith("without text"):
        return ": its pages may be pictures, of which a program such as ocrmypdf makes text"
    if source == "json" and reason.endswith("without text"):
        return ": no text under its key (--text_key of `shard`, which may lead into others, as in data[].text)"
    if source in ("jsonl", "csv", "parquet", "arrow") and reason.endswith("without text"):
        return ": no text under its key (--text_key of `shard`); words with labels are for `clozeline finetune`"
    return next((f": {advice[0].lower()}{advice[1:]}" for name, advice in _ADVICE.items() if reason.endswith(name)), "")


def _is_read(found: Format | None, wanted: Format | Literal["auto"]) -> bool:
    return found is not None and wanted in ("auto", found)


def _format_that_begins(head: bytes, text: bytes) -> Format | None:
    """Return the format of a file with these first bytes, which are `text` as UTF-8, unless it is plain text."""
    for name, reader in READERS.items():
        if reader.begins is not None and reader.begins(text if reader.gets == "text" else head):
            return name
    return None


def named_format(path: str) -> Format | None:
    """Return the format that the name of a file stands for, or None."""
    name = plain_name(path)
    return next((found for found, reader in READERS.items() if name.endswith(reader.suffixes)), None)


def plain_name(path: str) -> str:
    """Return a path in lower case, without a compression suffix."""
    name = long_name(path)
    return name.rpartition(".")[0] if compression_of(path) else name


def _may_be_dump(path: str) -> bool:
    """Return whether a file has the name of XML, of which only dumps of MediaWiki are read, known by their content."""
    return plain_name(path).endswith(".xml")


def _refuse_suffix(shown: str, path: str, kinds: tuple[Kind, ...]) -> None:
    # Not .so, .fa and .eml, which also end the names of Somali, Farsi and Emilian texts.
    suffix = os.path.splitext(plain_name(path))[1]
    for kind in kinds:
        if suffix in kind.suffixes.split():
            raise _refusal(shown, kind)


def _refusal(shown: str, kind: Kind, as_it_is: Format = "text") -> ForeignFileError:
    as_text = f"; or give --format {as_it_is} to read it as it is" if kind in TEXT_KINDS else ""
    return ForeignFileError(f"{shown} looks like {kind.name}, not like text. {kind.advice}{as_text}.", kind.name)


def first_bytes(file: InputFile, shown: str) -> bytes:
    """Return the beginning of a file, decompressed; empty if the worker that reads it must report what is wrong."""
    compression = compression_of(file.path)
    head_bytes = _BZ2_HEAD_BYTES if compression == "bz2" else HEAD_BYTES
    try:
        with open_plain(open_head(file, head_bytes), shown, compression) as opened:
            return opened.read(HEAD_BYTES)
    except DECOMPRESSION_ERRORS:
        return b""


def _format_of_prose(shown: str, text: bytes) -> Format:
    """Return the format of a file that begins with this text. Raises DataError for binary data, markup and columns."""
    if _has_control_bytes(text):
        raise ForeignFileError(
            f"{shown} holds control bytes, so it is not text. Leave it out, or name its encoding with --encoding if it "
            "is text in UTF-16."
        )
    _refuse_beginning(shown, text, TEXT_KINDS)
    _refuse_tagged_words(shown, text, "text")
    return "csv" if begins_table(text) else "text"


def _has_control_bytes(text: bytes) -> bool:
    return len(_CONTROL.findall(text)) > _MANY_CONTROL_BYTES * len(text)


def _refuse_beginning(shown: str, head: bytes, kinds: tuple[Kind, ...]) -> None:
    for kind in kinds:
        if re.match(kind.beginning, head, re.IGNORECASE):
            raise _refusal(shown, kind)


def _refuse_tagged_words(shown: str, text: bytes, as_it_is: Format) -> None:
    if re.match(CONLL.beginning, text, re.IGNORECASE) or has_tagged_words(text.decode(errors="replace")):
        raise _refusal(shown, CONLL, as_it_is)
