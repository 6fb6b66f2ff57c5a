"""Reads what WikiExtractor writes: <doc id= url= title=> ... </doc>, where the first line may repeat the title."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.readers.open import Stream
from pipeline.readers.record import BYTE_ORDER_MARK, Record, RecordOptions, Rejected, excerpt_of
from pipeline.readers.text import DocumentLines, all_lines

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

OUTSIDE = "text outside of <doc>"
UNCLOSED = "<doc> without </doc>"
_SOURCE = "wikiextractor"

# The start tag that WikiExtractor writes before every article. Corpora of other tools have <doc> without a URL.
BEGINS_ARTICLES = re.compile(rb'\s*<doc id="[^">\n]*"[^>\n]* url="')

_END_TAG = b"</doc>"
_LESS_THAN = ord("<")
_DOC_TAG = re.compile(rb'\s*(<doc (?:[^">\n]|"[^"\n]*")*>|<doc .*)(?:\s*\n)?')
_TITLE = re.compile(rb' title="(.*)"')


def wiki_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the <doc> blocks that begin in the range, and rejections of unclosed blocks and of lines outside of blocks.

    Lines outside of blocks belong to the range that contains the tag before them, or the start of the file. So a reader
    that begins in the middle of a file skips to the first tag.
    """
    document: DocumentLines | None = None
    title = ""
    is_outside = file_range.start == 0

    for line_offset, line, is_later in all_lines(stream, file_range, options):
        if is_later and document is None and not is_outside:
            return
        if document is not None and (line is None or _LESS_THAN not in line):  # as nearly all lines
            document.add(line, line_offset)
            continue

        for offset, part, is_tag in _cut_at_tags(line_offset, line):
            if not is_tag:
                if document is not None:
                    document.add(part, offset)
                elif is_outside and (part is None or not part.isspace()):
                    yield Rejected(OUTSIDE, _SOURCE, offset, excerpt_of(part or b""))
                continue

            is_end = part == _END_TAG
            if document is not None:
                yield _article(document, title) if is_end else document.to_rejected(UNCLOSED, _SOURCE)
            if is_later:
                return

            document = None if is_end else DocumentLines(options.max_document_bytes, offset)
            title = _title_of(part or b"")
            is_outside = is_end

    if document is not None:
        yield document.to_rejected(UNCLOSED, _SOURCE)


def _cut_at_tags(offset: int, line: bytes | None) -> list[tuple[int, bytes | None, bool]]:
    """Return the parts of a line as (offset, part, is a tag). A <doc> tag begins a line or follows </doc>."""
    if line is None:
        return [(offset, None, False)]

    parts: list[tuple[int, bytes | None, bool]] = []
    for number, part in enumerate(line.split(_END_TAG)):
        if number > 0:
            parts.append((offset, _END_TAG, True))
            offset += len(_END_TAG)

        start = len(BYTE_ORDER_MARK) if part.startswith(BYTE_ORDER_MARK) else 0
        if tag := _DOC_TAG.match(part, start):
            parts.append((offset, tag[1], True))
            start = tag.end()
        if text := part[start:]:
            parts.append((offset + start, text, False))
        offset += len(part)
    return parts


def _title_of(tag: bytes) -> str:
    title = _TITLE.search(tag)
    return html.unescape(title[1].decode(errors="replace")).strip() if title else ""


def _article(document: DocumentLines, title: str) -> Record | Rejected:
    """Return the text of a <doc> block, without its first line if that repeats the title.

    WikiExtractor escapes `&`, `<` and `>` in what it writes.
    """
    first_line = html.unescape(document.first_line.decode(errors="replace")).strip()
    record = document.to_record(_SOURCE, skipped_lines=1 if first_line == title != "" else 0)
    if isinstance(record, Rejected) or "&" not in record.text:
        return record
    return replace(record, text=record.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
