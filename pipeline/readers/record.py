"""What readers get and make: options, and a `Record` for each document or a `Rejected` in place of an unusable one.

The command line takes its defaults from here, so this module imports no package.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

Format = Literal[
    "text",
    "jsonl",
    "json",
    "csv",
    "parquet",
    "arrow",
    "mediawiki",
    "wikiextractor",
    "warc",
    "html",
    "docx",
    "odt",
    "epub",
    "pdf",
    "zip",
    "tar",
]
"""The names of input formats; pipeline/readers/table.py has their readers."""

TextLayout = Literal["blank_line", "line", "file"]

MAX_RECORD = 16 << 20
"""Maximum bytes of a document that is kept (--max_document_bytes). The longest books have about 5 MB."""

MAX_RATIO = 200
"""How many times its compressed size a file may grow to (--max_decompression_ratio).

Text grows 3 to 10 times and logs up to 100 times, so a file that grows more is most likely a decompression bomb.
"""

MAX_UNDECODABLE_RATIO = 0.001
"""Share of a file's bytes that may be undecodable (--max_undecodable_ratio).

Damage is rare. In a text with a different encoding, a few percent of the bytes are undecodable.
"""

MIN_PLACES = 10
"""Minimum undecodable places for a file to be refused. A single bad byte in a small file does not fail a job."""

MIN_LETTERS = 4
"""The same if all of them are letters or signs of cp1252, and nothing else in the file is outside of ASCII."""

EXCERPT_CHARACTERS = 500  # of a rejected record, kept for a person to look at
BLANK_LINE = "blank line"  # reason of the ledger
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_UTF8_BYTES = 4  # of one character
_MAX_HOST = 253  # characters of a name, by RFC 1035

PARAGRAPH_BREAK = "\n\n"
"""What joins the texts of several keys."""

# Bytes around the first undecodable one that are kept to guess the encoding.
_SAMPLE_BEFORE = 256
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class RecordOptions:
    """How readers find the documents in a file, and the limits that they apply.

    text_key: the key or column of the text, or several; see `wanted_keys`.
    """

    text_key: str
    text_layout: TextLayout
    _: KW_ONLY
    max_document_bytes: int = MAX_RECORD
    max_decompression_ratio: int = MAX_RATIO


@dataclass(frozen=True)
class Undecodable:
    """The bytes of a record that are invalid in its encoding.

    count: number of places that could not be decoded.
    first_offset: offset of the first one in the file's plain bytes.
    sample: bytes around the first one.
    """

    count: int
    first_offset: int
    sample: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True)
class Record:
    """One document as it is in the input.

    source: what the record itself names as its source, else the kind of its origin ("web", "jsonl"); never a path,
        because paths change.
    position: byte offset at which the record begins; in Parquet and Arrow, the row number. See `FileRange.place`.
    size: bytes of the record.
    line_count: number of lines; set for plain text only.
    host: that of the record's URL; empty in formats without URLs (see `Reader.has_urls`).
    """

    text: str
    source: str
    undecodable: Undecodable | None = None
    position: int = field(default=0, compare=False)
    size: int = field(default=0, compare=False)
    line_count: int = field(default=0, compare=False)
    host: str = field(default="", compare=False)


@dataclass(frozen=True)
class Rejected:
    """A record without a usable document. The other fields are those of `Record`.

    reason: the reason in the ledger.
    excerpt: the first characters of the record.
    count: number of records; above 1 only for consecutive blank lines.
    keys: keys of the record that hold strings, if --text_key is not among its keys.
    """

    reason: str
    source: str
    position: int
    excerpt: str = ""
    count: int = 1
    undecodable: Undecodable | None = field(default=None, compare=False)
    size: int = field(default=0, compare=False)
    keys: tuple[str, ...] = field(default=(), compare=False)


class RejectedError(Exception):
    """Raised in place of the text of a document or a page. `reason` is that of the ledger."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


def wanted_keys(text_key: str, present: Container[str]) -> tuple[str, ...]:
    """Return the keys that --text_key names in a record or a table that has the keys `present`.

    It is a key, or a list with commas between, whose texts are joined, or alternatives of these with | between. Of
    alternatives it is the first that is there, or else the first of which a part is. A key that is exactly the whole of
    --text_key comes before all of these.
    """
    if text_key in present:
        return (text_key,)
    alternatives = _alternatives(text_key)
    if len(alternatives) == 1:
        return alternatives[0]

    there = [sum(key in present for key in keys) for keys in alternatives]
    whole = [keys for keys, count in zip(alternatives, there, strict=True) if count == len(keys)]
    parts = [keys for keys, count in zip(alternatives, there, strict=True) if count]
    return (whole or parts or alternatives)[0]


def names_in(text_key: str) -> list[str]:
    """Return the keys of all alternatives of --text_key."""
    return [name for names in _alternatives(text_key) for name in names]


@lru_cache
def _alternatives(text_key: str) -> list[tuple[str, ...]]:
    lists = (tuple(dict.fromkeys(filter(None, map(str.strip, one.split(","))))) for one in text_key.split("|"))
    return list(filter(None, lists)) or [(text_key,)]


def too_long_reason(max_document_bytes: int) -> str:
    """Return the ledger's reason for records larger than --max_document_bytes."""
    megabytes, remaining_bytes = divmod(max_document_bytes, 1 << 20)
    if remaining_bytes:
        return f"record above {max_document_bytes:,} bytes"
    return f"record above {megabytes} MB"


def decode_utf8(data: bytes, offset: int) -> tuple[str, Undecodable | None]:
    """Decode the bytes of a record that begins at `offset` of its file, without a byte order mark.

    Returns the text and, if some bytes are not UTF-8, where the first one is and how many there are. In the text those
    bytes become U+FFFD, which cleaning counts and removes.
    """
    encoded = data.removeprefix(BYTE_ORDER_MARK)
    try:
        return encoded.decode(), None
    except UnicodeDecodeError as error:
        text = encoded.decode(errors="replace")

        # The input may contain U+FFFD itself, correctly encoded.
        count = text.count("\ufffd") - data.count("\ufffd".encode())
        first_offset = offset + len(data) - len(encoded) + error.start
        sample_start = max(0, error.start - _SAMPLE_BEFORE)
        return text, Undecodable(count, first_offset, encoded[sample_start : sample_start + _SAMPLE_BYTES])


def place_in_words(offset: int, entry: dict[str, Any]) -> str:
    """Return an offset as messages write it. `entry` is a report on the record, made from `FileRange.place`."""
    if entry.get("unit") == "row":
        return f"row {offset:,}"
    if entry.get("unit") == "utf-8 byte":
        return f"byte {offset:,} of the UTF-8 form"
    if "compressed_start" not in entry:
        return f"byte {offset:,}"
    return f"byte {offset:,} of the text after compressed byte {entry['compressed_start']:,}"


def excerpt_of(line: bytes) -> str:
    """Return the first characters of a record, for a person to look at."""
    first_bytes = line[: _MAX_UTF8_BYTES * EXCERPT_CHARACTERS]
    return first_bytes.decode(errors="replace")[:EXCERPT_CHARACTERS].rstrip("\n")


def host_of(url: str) -> str:
    """Return the host of a URL: lower case, without user, port, final dot and a leading "www."; "" if it has none.

    Example: `"https://www.Example.org:8080/a"` -> `"example.org"`.
    """
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
    except ValueError:  # such as brackets around what is no address
        return ""
    if len(host) > _MAX_HOST or not host.isprintable() or " " in host:
        return ""

    bare = host.removeprefix("www.")
    return bare if "." in bare else host  # www.com is a name


def joined(texts: list[str]) -> str:
    """Return the texts of several keys as paragraphs, without empty ones and nulls. A single text stays as it is."""
    return texts[0] if len(texts) == 1 and texts[0] else PARAGRAPH_BREAK.join(filter(None, texts))
