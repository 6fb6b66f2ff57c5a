"""Reads HTML: the main text of a page, without menus, advertisements and footers, by trafilatura (Barbaresi, ACL 2021).

A page's text depends on the page alone: no option reads a clock, and of what trafilatura remembers between pages only
`deduplicate`, off by default, would change a text. Pages made to exhaust a parser are left out by their numbers
of tags and attributes, never by time, so that the same ones are left out on each machine.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pipeline.readers.encodings import UTF8, canonical_encoding
from pipeline.readers.file_encoding import likely_encoding
from pipeline.readers.open import Stream
from pipeline.readers.record import (
    MAX_UNDECODABLE_RATIO,
    Record,
    RecordOptions,
    Rejected,
    RejectedError,
    Undecodable,
    decode_utf8,
    too_long_reason,
)
from schemas.errors import UsageError

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

SOURCE = "web"
NO_MAIN_TEXT = "page without main text"
UNPARSABLE = "HTML that cannot be parsed"
TOO_LARGE = "HTML with too many or too deep tags"

HTML_RULES = (NO_MAIN_TEXT,)
"""Reasons that say what a page is, not that it is damaged."""

MAX_ELEMENTS = 100_000
"""Maximum elements of a page. trafilatura takes up to 4 s for this many, and 20 s at the parser's maximum depth.
The longest pages that people read have about 50,000."""

MAX_ATTRIBUTES = 5000
"""Attributes of one element: the parser compares each with all others."""

# As trafilatura and RefinedWeb (Penedo et al., 2023) set them for text to train on: less, but surely main text.
_OPTIONS: dict[str, Any] = {"favor_precision": True, "include_comments": False}

# Not of XML of another kind.
BEGINS_HTML = re.compile(
    rb"(?is:(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^>]*>)?(?:\s|<!--.*?-->)*+<(?:!doctype\s+html|html|head|body)[\s>])",
)
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # the parser stops at some of them

# Comments, scripts, and tags with up to MAX_ATTRIBUTES attributes. Possessive, so that each byte is read once: a tag
# that has more of them matches without its end.
_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
_TAG = re.compile(
    r"<!--(?s:.*?)(?:-->|\Z)"
    r"|<(script|style)\b(?s:.*?)(?:</\1|\Z)"
    rf"|<[a-z][^\s/>]*+(?:[\s/]*+{_ATTRIBUTE}){{0,{MAX_ATTRIBUTES}}}+[\s/]*+(?P<unended>[^>])?",
    re.IGNORECASE,
)


def html_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the main text of the file."""
    body = stream.file.read(options.max_document_bytes + 1)
    if not body:
        return
    if len(body) > options.max_document_bytes:
        yield Rejected(too_long_reason(options.max_document_bytes), SOURCE, 0)
        return

    try:
        text, undecodable = page_text(body, "")
        yield page_record(text, undecodable, 0, len(body))
    except RejectedError as error:
        yield Rejected(error.reason, SOURCE, 0, size=len(body))


def page_record(text: str, undecodable: int, offset: int, size: int) -> Record:
    """Return the record of a page with at most this many undecodable places, those that its text has."""
    remaining = min(undecodable, text.count("\ufffd"))
    found = Undecodable(remaining, offset) if remaining else None
    return Record(text, SOURCE, found, position=offset, size=size)


def page_text(body: bytes, charset: str) -> tuple[str, int]:
    """Return the main text of an HTML page, and the number of places in the page that could not be decoded.

    charset: that of the response's header, or empty. Raises RejectedError if there is no text.
    """
    html, undecodable = decode_page(body, charset)
    return main_text(html), undecodable


def main_text(html: str) -> str:
    """Return the main text of an HTML page. Raises RejectedError for one that has none or cannot be parsed."""
    html = _NOT_IN_XML.sub("", html)
    if not html or html.isspace():
        raise RejectedError(NO_MAIN_TEXT)
    if any(tag["unended"] for tag in _TAG.finditer(html)):
        raise RejectedError(TOO_LARGE)

    # Both packages call themselves once or twice for each level of tags. A new thread has the same room for that below
    # every caller: the deepest page that is parsed takes 520 frames, and Python allows 1,000 by default.
    extract = _trafilatura().extract
    with ThreadPoolExecutor(1, "html") as thread:
        extraction = thread.submit(lambda: extract(_parsed(html), **_OPTIONS))  # fails where a limit refuses threads
    try:
        text = extraction.result()
    except (RejectedError, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:  # both packages raise exceptions of many kinds for junk
        raise RejectedError(UNPARSABLE) from error
    if not text or text.isspace():
        raise RejectedError(NO_MAIN_TEXT)
    return as_paragraphs(text)


def as_paragraphs(text: str) -> str:
    """Return the text of a page, which has a line for each of its blocks, with a blank line between them.

    Otherwise blocks of similar width would look like the wrapped lines of one.
    """
    return text.replace("\n", "\n\n")


def _parsed(html: str) -> Any:
    """Return the tree of a page. Raises RejectedError if the parser gave up before its end, or for many elements."""
    from lxml.html import HTMLParser, document_fromstring

    # As trafilatura's own parser. The bytes are UTF-8, whatever the page says.
    parser = HTMLParser(
        collect_ids=False, default_doctype=False, encoding="utf-8", remove_comments=True, remove_pis=True
    )
    try:
        tree = document_fromstring(html.encode(errors="replace"), parser=parser)
    except Exception as error:
        if str(error) == "Document is empty":
            raise RejectedError(NO_MAIN_TEXT) from error
        raise

    # Tags in more than 256 tags, and 10 MB without a tag, are beyond limits of libxml2, which then drops the rest.
    if parser.error_log.filter_from_fatals():
        raise RejectedError(TOO_LARGE)
    if sum(1 for _ in tree.iter()) > MAX_ELEMENTS:
        raise RejectedError(TOO_LARGE)
    _join_wrapped_lines(tree)
    return tree


def _join_wrapped_lines(tree: Any) -> None:
    """Replace line ends by spaces, as browsers show them; some of trafilatura's methods would keep them in a text."""
    as_written = {element for parent in tree.iter("pre", "textarea", "listing") for element in parent.iter()}
    for element in tree.iter():
        if element.text and "\n" in element.text and element not in as_written:
            element.text = element.text.replace("\n", " ")
        if element.tail and "\n" in element.tail and element.getparent() not in as_written:
            element.tail = element.tail.replace("\n", " ")


@cache
def _trafilatura() -> Any:
    """Return the package. Imported here, because few jobs need it and it takes half a second."""
    import trafilatura

    # They log every page, and the ledger counts them.
    for package in ("trafilatura", "htmldate", "justext", "courlan"):
        logging.getLogger(package).setLevel(logging.CRITICAL + 1)
    return trafilatura


# ---- The encoding of a page ----

# The order is that of browsers (html.spec.whatwg.org, 13.2.3.2): a byte order mark, the header of the response, the
# page itself, its bytes. Browsers believe the first. Here a page may have a share of undecodable bytes, and if there
# are more, the next is tried: UTF-8, then a guess.

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
