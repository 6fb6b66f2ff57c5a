"""Decodes web pages, each by the encoding that it names.

The order is that of browsers (html.spec.whatwg.org, 13.2.3.2): a byte order mark, the header of the response, the page
itself, its bytes. Browsers believe the first. Here a page may have a share of undecodable bytes, and if there are more,
the next is tried: UTF-8, then a guess.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import lru_cache

from pipeline.readers.encodings import UTF8, canonical_encoding
from pipeline.readers.file_encoding import likely_encoding
from pipeline.readers.record import MAX_UNDECODABLE_RATIO, RejectedError, decode_utf8
from schemas.errors import UsageError

UNKNOWN_ENCODING = "page in an unknown encoding"

# The order matters: no mark is the beginning of a later one.
_MARKS = ((codecs.BOM_UTF8, UTF8), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# What pages of these names contain, by the Encoding Standard (encoding.spec.whatwg.org, 4.2), in Python's names.
_AS_BROWSERS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_NOT_IN_PAGES = ("utf-7",)  # browsers refuse it

_NAMED_WITHIN = 4096  # bytes in which a page names its encoding
_NAME = re.compile(
    rb"<meta\b[^>]{0,300}?charset\s*+=\s*+[\"']?\s*+([\w.:-]{1,40})"
    rb"|<\?xml\b[^>]{0,300}?encoding\s*+=\s*+[\"']([\w.:-]{1,40})",
    re.IGNORECASE,
)
_TAG_MARKS = re.compile(rb"[<>]")
_SAMPLE_BYTES = 1 << 14  # an encoding is guessed from this many bytes


def decode_page(body: bytes, charset: str) -> tuple[str, int]:
    """Return the text of a page without a byte order mark, and the number of places that could not be decoded.

    charset: that of the response's header, or empty.

    Those places become U+FFFD. Raises RejectedError if there are too many in every encoding that may be meant.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            body = body.removeprefix(mark)
            return _decoded_in_one_of(body, [encoding])
    return _decoded_in_one_of(body, _candidates(body, charset))


def _candidates(body: bytes, charset: str) -> Iterator[str]:
    if charset:
        yield _encoding_named(charset)

    named = _NAME.search(body, 0, _NAMED_WITHIN)
    if named:
        encoding = _encoding_named((named[1] or named[2]).decode("ascii", errors="replace"))
        yield UTF8 if encoding.startswith("utf-16") else encoding  # a page in UTF-16 cannot name it in ASCII

    yield UTF8
    foreign = [run for run in _TAG_MARKS.split(body) if not run.isascii()]
    yield _encoding_named(likely_encoding(b" ".join(foreign)[:_SAMPLE_BYTES]))


@lru_cache(1024)
def _encoding_named(name: str) -> str:
    """Return Python's name of the encoding that browsers take for this one; empty if there is none."""
    if not name:
        return ""
    try:
        encoding = canonical_encoding(name)
    except UsageError:
        return ""
    return "" if encoding in _NOT_IN_PAGES else _AS_BROWSERS.get(encoding, encoding)


def _decoded_in_one_of(body: bytes, encodings: Iterator[str] | list[str]) -> tuple[str, int]:
    tried = {""}
    for encoding in encodings:
        if encoding in tried:
            continue
        tried.add(encoding)

        text, undecodable = _decoded(body, encoding)
        if undecodable <= MAX_UNDECODABLE_RATIO * len(body):
            return text, undecodable
    raise RejectedError(UNKNOWN_ENCODING)


def _decoded(body: bytes, encoding: str) -> tuple[str, int]:
    if encoding == UTF8:
        text, undecodable = decode_utf8(body, 0)
        return text, undecodable.count if undecodable else 0

    try:
        return body.decode(encoding), 0
    except UnicodeDecodeError:
        text = body.decode(encoding, errors="replace")
        return text, text.count("\ufffd")
