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
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pipeline.readers.frames import CompressedBytes
from pipeline.readers.html_pages import (
    HTML_RULES,
    SOURCE,
    as_paragraphs,
    decode_page,
    page_record,
    page_text,
)
from pipeline.readers.listing import InputFile
from pipeline.readers.open import DECOMPRESSORS, Stream, compression_of, open_plain
from pipeline.readers.ranges import HEAD_BYTES, open_range
from pipeline.readers.record import (
    Record,
    RecordOptions,
    Rejected,
    RejectedError,
    decode_utf8,
    excerpt_of,
    host_of,
    place_in_words,
    too_long_reason,
)
from schemas.errors import DataError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

OTHER_STATUS = "HTTP status other than 200"
OTHER_TYPE = "content that is neither HTML nor text"
PLAIN_RESPONSE = "response of plain text, not HTML"  # such as robots.txt and source code
UNREADABLE_HEADER = "HTTP header that cannot be parsed"
UNKNOWN_CODING = "content encoding other than gzip and deflate"
DAMAGED_CODING = "content encoding that is damaged"
REVISIT = "page that was found unchanged (revisit)"
IN_SEGMENTS = "record in segments"

WEB_RULES = (OTHER_STATUS, OTHER_TYPE, PLAIN_RESPONSE, REVISIT, *HTML_RULES)
"""Reasons that say what a record of a crawl is, not that it is damaged. Most records of a crawl have one."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")
BEGINS_WARC = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n")
_LINE_ENDS = (b"\r\n", b"\n", b"\r")  # the last one only where the file ends

END_OF_HEADER = re.compile(rb"\r?\n\r?\n")
MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a header, of WARC or of HTTP. Browsers take 256 KB."""

_FOLD = re.compile(rb"(?<![ \t])[ \t]*+\r?\n[ \t]+(?=[^ \t\r\n])")  # a long value continues, as older writers fold it
_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.IGNORECASE)

_MAX_CODINGS = 8  # of one body; a header has room for very many, and each takes time
_SLICE_BYTES = 1 << 12  # given to zlib at once: it copies what follows a gzip member, and there may be very many
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_RAW_WINDOW = -15  # some servers leave out the header of zlib that RFC 9110 asks for

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


def check_warc(opened: IO[bytes], shown: str) -> None:
    """Raise ModuleNotFoundError if a file has pages, not texts alone, and trafilatura is not installed."""
    try:
        head = open_plain(opened, shown, compression_of(shown)).read(HEAD_BYTES)
    except Exception:  # damage is reported where the file is read
        return
    if not re.search(rb"^WARC-Type:\s*conversion\b", head, re.IGNORECASE | re.MULTILINE):
        import_module("trafilatura")


def warc_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the pages and texts among the records that begin in the range.

    Raises DataError where no record begins although one should, and EOFError for a record that the file's end cuts off.
    """
    for entry in _entries(stream, file_range, options):
        try:
            record = _document(entry, options)
        except RejectedError as error:
            excerpt = excerpt_of(entry.url.encode(errors="replace"))
            yield Rejected(error.reason, SOURCE, entry.offset, excerpt, size=entry.size)
            continue
        if record is not None:
            yield replace(record, host=host_of(entry.url))


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
    if media_type(entry.fields.get("content-type", ""))[0] != "application/http":
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
        if not BEGINS_WARC.fullmatch(line):
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
    while line := file.readline(MAX_HEADER_BYTES):
        lines.append(line)
        length += len(line)
        if line in _LINE_ENDS:
            return b"".join(lines)
        if length > MAX_HEADER_BYTES:
            raise _no_record(file_range, offset)
    raise _no_end(file_range, offset)


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
    """Return whether the first frame of a compressed file is one record of up to a megabyte, as crawlers write them.

    If it is, a range raises an error where another frame is not.
    """
    read = bytearray()
    with open_range(file) as opened:
        frames = DECOMPRESSORS[compression](CompressedBytes(shown, opened))
        first, _ = next(frames, (0, b""))
        for start, data in frames:
            if start != first or len(read) > MAX_HEADER_BYTES:
                break
            read += data

    head = bytes(read)
    end = END_OF_HEADER.search(head)
    if end is None or not BEGINS_WARC.match(head):
        return False
    size = _size_of_block(parse_fields(head[: end.end()]))
    return size is not None and 0 <= len(head) - end.end() - size <= _AFTER_BLOCK_BYTES


# ---- Responses of servers ----

# Status, header fields, and the body without its codings (RFC 9112). Crawlers may have removed a coding that the header
# still names. Such a body is taken as it is.


class Response(NamedTuple):
    """One HTTP response. The names of `fields` are in lower case; of equal names, the first counts."""

    status: int
    fields: dict[str, str]
    body: bytes


def parse_response(block: bytes) -> Response:
    """Return the response that a block of bytes contains.

    Raises RejectedError if it does not begin as one, or if its header has more than MAX_HEADER_BYTES.
    """
    status = _STATUS_LINE.match(block)
    end = END_OF_HEADER.search(block, 0, MAX_HEADER_BYTES)
    if status is None or (end is None and len(block) > MAX_HEADER_BYTES):
        raise RejectedError(UNREADABLE_HEADER)
    header, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    return Response(int(status[1]), parse_fields(header), body)


def parse_fields(header: bytes) -> dict[str, str]:
    """Return the named fields of an HTTP or WARC header, whose first line has no name."""
    fields: dict[str, str] = {}
    for line in _FOLD.sub(b" ", header).split(b"\n")[1:]:
        name, colon, value = line.decode(errors="replace").partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    return fields


def media_type(value: str) -> tuple[str, str]:
    """Return the type and charset of a Content-Type, as `("text/html", "utf-8")` of `"text/HTML; charset=utf-8"`."""
    name, _, parameters = value.partition(";")
    charset = _CHARSET.search(parameters)
    return name.strip().lower(), charset[1] if charset else ""


def decoded_body(response: Response, max_bytes: int) -> bytes:
    """Return the body of a response without transfer and content codings.

    A body that ends early, as where a crawler stopped, is returned as far as it goes. Raises RejectedError for other
    codings than gzip and deflate, for damaged or too many ones, and for more than `max_bytes`.
    """
    body = response.body
    if "chunked" in response.fields.get("transfer-encoding", "").lower():
        body = _joined_chunks(body)

    codings = response.fields.get("content-encoding", "").lower().split(",")
    if len(codings) > _MAX_CODINGS:
        raise RejectedError(DAMAGED_CODING)
    for coding in reversed([name.strip() for name in codings]):
        if coding in ("gzip", "x-gzip"):
            body = _gunzipped(body, max_bytes) if body.startswith(_GZIP_MAGIC) else body
        elif coding == "deflate":
            body = _inflated(body, max_bytes) if not body.lstrip().startswith(b"<") else body
        elif coding not in ("", "identity"):
            raise RejectedError(UNKNOWN_CODING)

    if len(body) > max_bytes:
        raise RejectedError(too_long_reason(max_bytes))
    return body


def _joined_chunks(data: bytes) -> bytes:
    """Return the data of a chunked body, or the body itself if it does not begin with a chunk."""
    chunks: list[bytes] = []
    place = 0
    while place < len(data):
        size = _CHUNK_SIZE.match(data, place)
        if size is None:
            if place == 0:
                return data
            raise RejectedError(DAMAGED_CODING)

        length = int(size[1], 16)
        if length == 0:
            break
        chunks.append(data[size.end() : size.end() + length])
        place = size.end() + length
        place += 2 if data.startswith(b"\r\n", place) else data.startswith(b"\n", place)
    return b"".join(chunks)


def _gunzipped(data: bytes, max_bytes: int) -> bytes:
    """Return the plain bytes of all gzip members, at most one more than `max_bytes`."""
    view = memoryview(data)
    parts: list[bytes] = []
    length = place = 0
    while data.startswith(_GZIP_MAGIC, place) and length <= max_bytes:
        decoder = zlib.decompressobj(_GZIP_WINDOW)
        while not decoder.eof and place < len(data) and length <= max_bytes:
            compressed = view[place : place + _SLICE_BYTES]
            parts.append(_decompressed(decoder, compressed, max_bytes + 1 - length))
            length += len(parts[-1])
            place += len(compressed) - len(decoder.unused_data)
    return b"".join(parts)


def _inflated(data: bytes, max_bytes: int) -> bytes:
    has_header = len(data) > 1 and data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
    window = zlib.MAX_WBITS if has_header else _RAW_WINDOW
    return _decompressed(zlib.decompressobj(window), data, max_bytes + 1)


def _decompressed(decoder: Any, data: bytes | memoryview, max_bytes: int) -> bytes:
    try:
        return decoder.decompress(data, max_bytes)
    except zlib.error as error:
        raise RejectedError(DAMAGED_CODING) from error
