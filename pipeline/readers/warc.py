"""Reads WARC files (ISO 28500, versions 1.0 and 1.1) as web crawlers write them, and WET files, their texts.

A record is a line `WARC/1.x`, named fields, an empty line, a block of Content-Length bytes, and two line ends:

    conversion    text that was extracted from a page, as in WET files: a document
    response      a page as the server sent it: the main text of its HTML is a document, if its status is 200
    resource      a file without a server's header: a document if it is HTML, and plain text as it is
    others        what was requested and with which program; they hold no page, and are not counted

Crawlers compress each record by itself, so a large file is cut at gzip members. A file with other frames, such as one
that was compressed as a whole, is read by its first range. The records are parsed here and not by a package (warcio,
FastWARC), because their readers decompress by themselves: ranges, limits and messages are those of all other formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import IO, TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pipeline.readers.frames import CompressedBytes
from pipeline.readers.html_pages import HTML_RULES, SOURCE, as_paragraphs, check_extractor, page_record, page_text
from pipeline.readers.http_responses import (
    END_OF_HEADER,
    MAX_HEADER_BYTES,
    decoded_body,
    media_type,
    parse_fields,
    parse_response,
)
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSORS, Stream, compression_of, open_plain
from pipeline.readers.page_encodings import decode_page
from pipeline.readers.ranges import HEAD_BYTES, open_range
from pipeline.readers.record import (
    Record,
    RecordOptions,
    Rejected,
    RejectedError,
    decode_utf8,
    excerpt_of,
    place_in_words,
    too_long_reason,
)
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

OTHER_STATUS = "HTTP status other than 200"
OTHER_TYPE = "content that is neither HTML nor text"
PLAIN_RESPONSE = "response of plain text, not HTML"  # such as robots.txt and source code
REVISIT = "page that was found unchanged (revisit)"
IN_SEGMENTS = "record in segments"

WEB_RULES = (OTHER_STATUS, OTHER_TYPE, PLAIN_RESPONSE, REVISIT, *HTML_RULES)
"""Reasons that say what a record of a crawl is, not that it is damaged. Most records of a crawl have one."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")
_VERSION_LINE = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n")
_LINE_ENDS = (b"\r\n", b"\n", b"\r")  # the last one only where the file ends

_MAX_HOST = 253  # characters of a name, by RFC 1035

_READ_BYTES = 1 << 20  # read at once from a block that is not kept
_AFTER_BLOCK_BYTES = 8  # at most; the standard asks for four


class Entry(NamedTuple):
    """One record of a WARC file.

    offset: where it begins; see `Stream`. size: bytes of its block.
    block: the block, without what is above --max_document_bytes and the size of a header.
    """

    offset: int
    fields: dict[str, str]
    block: bytes
    size: int

    @property
    def url(self) -> str:
        return self.fields.get("warc-target-uri", "").strip("<>")


def begins_warc(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a WARC file."""
    return _VERSION_LINE.match(head) is not None


def check_warc(opened: IO[bytes], shown: str) -> None:
    """Raise ModuleNotFoundError if a file has pages, not texts alone, and trafilatura is not installed."""
    try:
        head = open_plain(opened, shown, compression_of(shown)).read(HEAD_BYTES)
    except Exception:  # damage is reported where the file is read
        return
    if not re.search(rb"^WARC-Type:\s*conversion\b", head, re.IGNORECASE | re.MULTILINE):
        check_extractor(opened, shown)


def warc_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the pages and texts among the records that begin in the range.

    Raises DataError where no record begins although one should, and EOFError for a record that the file's end cuts off.
    """
    for entry in _entries(stream, file_range, options):
        try:
            record = _document(entry, options)
        except RejectedError as error:
            excerpt = excerpt_of(entry.url.encode(errors="replace"))
            record = Rejected(error.reason, SOURCE, entry.offset, excerpt, size=entry.size)
        if isinstance(record, Record):
            record = replace(record, host=host_of(entry.url))
        if record is not None:
            yield record


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


# ---- Documents ----


def _document(entry: Entry, options: RecordOptions) -> Record | None:
    """Return the document of a record; None for one that holds no page. Raises RejectedError for an unusable page."""
    kind = entry.fields.get("warc-type", "").lower()
    if kind == "revisit":
        raise RejectedError(REVISIT)
    if kind not in ("conversion", "response", "resource", "continuation"):
        return None
    if kind == "continuation" or "warc-segment-number" in entry.fields:
        raise RejectedError(IN_SEGMENTS)
    if kind == "response":
        return _page_of_response(entry, options)

    name, charset = media_type(entry.fields.get("content-type", ""))
    if name not in ("text/plain", *_HTML_TYPES):
        raise RejectedError(OTHER_TYPE)
    if entry.size > options.max_document_bytes:
        raise RejectedError(too_long_reason(options.max_document_bytes))

    if name != "text/plain":
        return page_record(*page_text(entry.block, charset), entry.offset, entry.size)
    if kind == "resource":
        return page_record(*decode_page(entry.block, charset), entry.offset, entry.size)
    text, undecodable = decode_utf8(entry.block, entry.offset)
    return Record(as_paragraphs(text), SOURCE, undecodable, position=entry.offset, size=entry.size)


def _page_of_response(entry: Entry, options: RecordOptions) -> Record:
    if media_type(entry.fields.get("content-type", "")).name != "application/http":
        raise RejectedError(OTHER_TYPE)  # as of DNS

    response = parse_response(entry.block)
    if response.status != 200:
        raise RejectedError(OTHER_STATUS)
    name, charset = media_type(response.fields.get("content-type", ""))
    if name not in _HTML_TYPES:
        raise RejectedError(PLAIN_RESPONSE if name == "text/plain" else OTHER_TYPE)

    if len(entry.block) < entry.size:
        raise RejectedError(too_long_reason(options.max_document_bytes))
    body = decoded_body(response, options.max_document_bytes)
    return page_record(*page_text(body, charset), entry.offset, entry.size)


# ---- Records ----


def _entries(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Entry]:
    """Yield the records that begin in the range; all of the file for the first range if it is not cut at records."""
    file = stream.file
    is_cut = file_range.is_cut and begins_with_one_record(
        file_range.file, file_range.display_path, file_range.compression or ""
    )
    if file_range.start > 0 and not is_cut:
        return

    offset = stream.offset
    while line := file.readline(MAX_HEADER_BYTES):
        if line in _LINE_ENDS:
            offset += len(line)
            continue
        if is_cut and offset >= stream.end:
            return

        if not line.endswith(b"\n") and b"WARC/".startswith(line[:5]):
            raise _no_end(file_range, offset)
        if not _VERSION_LINE.fullmatch(line):
            raise _no_record(file_range, offset)
        header = line + _rest_of_header(file, file_range, offset)
        fields = parse_fields(header)
        size = _size_of_block(fields)
        if size is None:
            raise _no_record(file_range, offset)
        block = _read_block(file, size, options.max_document_bytes + MAX_HEADER_BYTES)
        if block is None:
            raise _no_end(file_range, offset)
        yield Entry(offset, fields, block, size)

        offset += len(header) + size
        if is_cut and offset > stream.end:
            raise _no_record(file_range, stream.end)


def _rest_of_header(file: IO[bytes], file_range: FileRange, offset: int) -> bytes:
    lines: list[bytes] = []
    length = 0
    while (line := file.readline(MAX_HEADER_BYTES)) not in _LINE_ENDS:
        if not line:
            raise _no_end(file_range, offset)
        lines.append(line)
        length += len(line)
        if length > MAX_HEADER_BYTES:
            raise _no_record(file_range, offset)
    return b"".join([*lines, line])


def _size_of_block(fields: dict[str, str]) -> int | None:
    size = fields.get("content-length", "")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 16 else None


def _read_block(file: IO[bytes], size: int, max_bytes: int) -> bytes | None:
    """Return the first bytes of a block, and skip the others; None if the file ends before the block."""
    block = file.read(min(size, max_bytes))
    remaining = size - len(block)
    while remaining and (data := file.read(min(remaining, _READ_BYTES))):
        remaining -= len(data)
    return None if remaining else block


def _no_record(file_range: FileRange, offset: int) -> DataError:
    place = place_in_words(offset, file_range.place(offset))
    return DataError(
        f"{file_range.display_path} is damaged: no WARC record begins at {place}, where one should. Copy the file "
        "again, or leave it out. If it is sound otherwise, write it again with `warcio recompress`."
    )


def _no_end(file_range: FileRange, offset: int) -> EOFError:
    return EOFError(f"the WARC record that begins at {place_in_words(offset, file_range.place(offset))} has no end")


@lru_cache(1024)  # one bit for each file that this process reads a range of
def begins_with_one_record(file: InputFile, shown: str, compression: str) -> bool:
    """Return whether the first frame of a compressed file is one record, as crawlers write them.

    If it is, a range raises an error where another frame is not.
    """
    head = bytearray()
    length = 0
    expected = None
    with open_range(file) as opened:
        first = None
        for start, data in DECOMPRESSORS[compression](CompressedBytes(shown, opened)):
            first = start if first is None else first
            if start != first:
                break

            length += len(data)
            if expected is None:
                head += data
                end = END_OF_HEADER.search(head, max(0, len(head) - len(data) - len(b"\r\n\r")))
                expected = _length_of_record(bytes(head[: end.end()])) if end else None
                if (end and expected is None) or len(head) > MAX_HEADER_BYTES:
                    return False
            if expected is not None and length > expected + _AFTER_BLOCK_BYTES:
                return False
    return expected is not None and length >= expected


def _length_of_record(header: bytes) -> int | None:
    """Return the length of a record with this header, without the line ends after it; None if it has no length."""
    size = _size_of_block(parse_fields(header)) if begins_warc(header) else None
    return None if size is None else len(header) + size
