"""Parses HTTP/1 responses as crawlers store them: status, header fields, and the body without its codings (RFC 9112).

Crawlers may have removed a coding that the header still names. Such a body is taken as it is.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, NamedTuple

from pipeline.readers.record import RejectedError, too_long_reason

UNREADABLE_HEADER = "HTTP header that cannot be parsed"
UNKNOWN_CODING = "content encoding other than gzip and deflate"
DAMAGED_CODING = "content encoding that is damaged"

END_OF_HEADER = re.compile(rb"\r?\n\r?\n")
MAX_HEADER_BYTES = 1 << 20
"""Maximum bytes of a header, of WARC or of HTTP. Browsers take 256 KB."""

_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})", re.IGNORECASE)

_MAX_CODINGS = 8  # of one body; a header has room for very many, and each takes time
_SLICE_BYTES = 1 << 12  # given to zlib at once: it copies what follows a gzip member, and there may be very many
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_RAW_WINDOW = -15  # some servers leave out the header of zlib that RFC 9110 asks for


class Response(NamedTuple):
    """One HTTP response. The names of `fields` are in lower case; of equal names, the first counts."""

    status: int
    fields: dict[str, str]
    body: bytes


class MediaType(NamedTuple):
    """A value of Content-Type: its type in lower case, and its charset, empty if it names none."""

    name: str
    charset: str


def parse_response(block: bytes) -> Response:
    """Return the response that a block of bytes contains.

    Raises RejectedError if it does not begin as one, or if its header has more than MAX_HEADER_BYTES.
    """
    status = _STATUS_LINE.match(block)
    if status is None:
        raise RejectedError(UNREADABLE_HEADER)

    end = END_OF_HEADER.search(block, 0, MAX_HEADER_BYTES)
    if end is None and len(block) > MAX_HEADER_BYTES:
        raise RejectedError(UNREADABLE_HEADER)
    header, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    return Response(int(status[1]), parse_fields(header), body)


def parse_fields(header: bytes) -> dict[str, str]:
    """Return the named fields of an HTTP or WARC header, whose first line has no name."""
    fields: dict[str, list[str]] = {}
    last = ""
    for line in header.split(b"\n")[1:]:
        text = line.decode(errors="replace").rstrip()
        if text[:1] in (" ", "\t"):  # a long value that goes on, as older writers fold it
            if last:
                fields[last].append(text.strip())
            continue

        name, colon, value = text.partition(":")
        name = name.strip().lower()
        last = name if colon and name not in fields else ""
        if last:
            fields[last] = [value.strip()]
    return {name: " ".join(parts) for name, parts in fields.items()}


def media_type(value: str) -> MediaType:
    """Return the parts of a Content-Type. Example: `"text/HTML; charset=utf-8"` -> `("text/html", "utf-8")`."""
    name, _, parameters = value.partition(";")
    charset = _CHARSET.search(parameters)
    return MediaType(name.strip().lower(), charset[1] if charset else "")


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
