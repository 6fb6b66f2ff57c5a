"""Reads the pages of MediaWiki's XML dumps (mediawiki.org/wiki/Help:Export), such as pages-articles of Wikipedia.

A page is the lines from <page> to </page>, each tag alone on its line; within text, < is escaped. Pages are parsed one
by one, so that a dump can be cut like any file of lines. They have no entity declarations, which stand before a
document's first tag only. Of several revisions, the last one is read.

Pages that are no articles are left out and counted: redirects, talk and other namespaces, lists of meanings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from xml.parsers import expat

from pipeline.readers.encodings import UTF8
from pipeline.readers.open import Stream
from pipeline.readers.record import BYTE_ORDER_MARK, Record, RecordOptions, Rejected, excerpt_of
from pipeline.readers.text import DocumentLines, all_lines, read_lines_before
from pipeline.readers.wikitext import NestingError, plain_text, without_opaque

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

OUTSIDE = "text outside of <page>"
NOT_ALONE = "<page> that is not alone on its line"
UNCLOSED = "<page> without </page>"
NOT_XML = "page that is not XML"
TOO_DEEP = "wikitext nested too deeply"

REDIRECT = "redirect"
OTHER_NAMESPACE = "page that is no article"
OTHER_MODEL = "page that is not wikitext"
DISAMBIGUATION = "disambiguation page"
NO_TEXT = "page without text"
NO_END = "end of a dump: </mediawiki> is missing, so pages may be"

LEFT_OUT = (REDIRECT, OTHER_NAMESPACE, OTHER_MODEL, DISAMBIGUATION, NO_TEXT, NO_END)
"""Reasons of pages that are left out by rule, and of a dump that may be cut short. None is a bad record."""

_SOURCE = "mediawiki"
BEGINS_DUMP = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<mediawiki[\s>]")

_PAGE, _END_OF_PAGE = b"<page>", b"</page>"
_HEADER, _END_OF_HEADER = (b"<mediawiki", b"<siteinfo"), b"</siteinfo>"
_END = b"</mediawiki>"
_AROUND = (b"<?xml", _END)

_ARTICLES = "0"
_WIKITEXT = "wikitext"
_PARTS = {
    "page/ns": "namespace",
    "page/redirect": "redirect",
    "page/revision/model": "model",
    "page/revision/text": "text",
}
_PARSED_AT_ONCE = 1 << 16  # characters of text that the parser hands over together

# Usual templates of disambiguation pages in the larger Wikipedias. The list is not complete: a wiki may have others.
# The extension Disambiguator has __DISAMBIG__ in them, which a dump does not expand. Hatnotes, as in {{for|x|y
# (disambiguation)}}, and {{disambiguation needed}} have other names.
_DISAMBIGUATION_TEMPLATES = (
    r"(?:[\w -]{1,40}[ _])?disambig(?:uation)?(?:[ _-](?:page|cleanup))?|dab|disamb|hndis|geodis|airport[ _]dis"
    r"|mil-unit-dis|numberdis|roaddis|schooldis|mathdab|letter-numbercombdisambig|begriffsklärung"
    r"|homonymie(?:[ _][^{}|]{1,40})?"
    r"|des?ambigua(?:ção|ción|cion|ció)?|disambigua|dezambiguizare|dp|doorverwijspagina|förgrening|gren|flertydig"
    r"|peker|pekerside|fleirtyding|täsmennyssivu|ujednoznacznienie|rozcestník|rozlišovacia stránka|egyért(?:-\w+)?"
    r"|razdvojba|razločitev|täpsustuslehekülg|nuorodinis(?: straipsnis)?|argipen|homónimos|apartigilo|anlam ayrımı?"
    r"|trang định hướng|định hướng|неоднозначность|многозначность|багатозначність|неоднозначність|пояснение"
    r"|вишезначна одредница|αποσαφήνιση|פירושונים|توضيح|صفحة توضيح|ابهام‌زدایی|aimai|[\w]{0,8}曖昧さ回避"
    r"|消歧[义義][页頁]?|동음이의(?:어)?|동명이인|แก้กำกวม"
)
_DISAMBIGUATION = re.compile(rf"\{{\{{\s*+(?:{_DISAMBIGUATION_TEMPLATES})\s*(?:\||\}}\}})", re.IGNORECASE)
_SWITCH = re.compile("__DISAMBIG__", re.IGNORECASE)


def page_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the articles that begin in the range, and rejections of other pages and of text outside of pages.

    Lines outside of pages belong to the range that contains the page before them, or the start of the file. So a reader
    that begins in the middle of a file skips to the first page.
    """
    page: DocumentLines | None = None
    around = _Around() if file_range.start == 0 else None
    are_plain = False

    offset = 0
    for offset, line, is_later in all_lines(stream, file_range, options):
        tag = line.strip() if line is not None and b"page>" in line else b""
        if tag == _PAGE:
            if page is not None:
                yield page.to_rejected(UNCLOSED, _SOURCE)
            if is_later:
                return
            page = DocumentLines(options.max_document_bytes, offset)
            are_plain = file_range.encoding == UTF8

        if page is not None:
            page.add(line, offset)
            if tag == _END_OF_PAGE:
                yield _article(page)
                page = None
                around = _Around()
            elif are_plain and line is not None and offset + len(line) == stream.offset:  # the last that was read
                lines = read_lines_before(stream, b"page>", page.room)
                are_plain = lines is not None
                page.add(lines or b"", stream.offset)
        elif around is not None:
            yield from around.rejected(line, offset)
        elif is_later:
            return

    if page is not None:
        yield page.to_rejected(UNCLOSED, _SOURCE)
    elif around is not None and not around.has_end and file_range.size > 0:
        yield Rejected(NO_END, _SOURCE, offset)


class _Around:
    """The lines between two pages, or before the first: nothing but the dump's header and end, unless it is damaged."""

    def __init__(self) -> None:
        self.has_end = False
        self._in_header = False
        self._is_rejected = False

    def rejected(self, line: bytes | None, offset: int) -> Iterator[Rejected]:
        """Yield a rejection of the first line that does not belong there."""
        text = b"" if line is None else line.strip().removeprefix(BYTE_ORDER_MARK)
        if text.startswith(_HEADER):
            self._in_header = True
        self.has_end = self.has_end or _END in text
        is_page = b"<page" in text  # its tag is not alone on its line
        if self._in_header and not is_page:
            self._in_header = _END_OF_HEADER not in text
            return

        is_expected = line is not None and (not text or text.startswith(_AROUND)) and not is_page
        if is_page or (not is_expected and not self._is_rejected):
            self._is_rejected = True
            yield Rejected(NOT_ALONE if is_page else OUTSIDE, _SOURCE, offset, excerpt_of(line or b""))


def _article(page: DocumentLines) -> Record | Rejected:
    record = page.to_record(_SOURCE)
    if isinstance(record, Rejected):
        return record

    try:
        parts = _parse(record.text)
        reason = _reason_to_leave_out(parts)
        text = "" if reason else plain_text(parts["text"])
    except expat.ExpatError:
        reason, text = NOT_XML, ""
    except NestingError:
        reason, text = TOO_DEEP, ""

    if text:
        return replace(record, text=text)
    return replace(page.to_rejected(reason or NO_TEXT, _SOURCE), undecodable=record.undecodable)


def _reason_to_leave_out(parts: dict[str, str]) -> str | None:
    text = parts.get("text", "")
    if "redirect" in parts:
        return REDIRECT
    # Dumps from before 2012 have neither namespaces nor models.
    if parts.get("namespace", _ARTICLES) != _ARTICLES:
        return OTHER_NAMESPACE
    if parts.get("model", _WIKITEXT) != _WIKITEXT:
        return OTHER_MODEL
    if not text or text.isspace():
        return NO_TEXT
    return DISAMBIGUATION if _is_disambiguation(text) and _is_disambiguation(without_opaque(text)) else None


def _is_disambiguation(text: str) -> bool:
    return bool(_DISAMBIGUATION.search(text) or ("__" in text and _SWITCH.search(text)))


def _parse(xml: str) -> dict[str, str]:
    """Return the text of those parts of a page that _PARTS names. Builds no tree, which could take a lot of memory.

    Raises ExpatError.
    """
    parts: dict[str, str] = {}
    path: list[str] = []
    characters: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        path.append(name)
        characters.clear()

    def end(name: str) -> None:
        if len(path) <= 3 and (part := _PARTS.get("/".join(path))):
            parts[part] = "".join(characters)
        path.pop()
        characters.clear()

    parser = expat.ParserCreate()
    parser.buffer_size = _PARSED_AT_ONCE
    parser.buffer_text = True
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters.append
    parser.Parse(xml, True)
    return parts
