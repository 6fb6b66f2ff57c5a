"""Reads PDF (ISO 32000) by pypdf: the text of the pages, in paragraphs.

pypdf is Python alone, so a file made to exhaust it meets limits that count, never a clock, and the same files are left
out on each machine: pages, operators of all pages with what they draw again (by pypdf's visitor), and pypdf's own
limits of decompressed streams (75 MB) and of forms in forms.
"""

from __future__ import annotations

import io
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.readers.office import DAMAGED, ENCRYPTED, MAX_FILE_BYTES, NO_TEXT, TOO_LARGE
from pipeline.readers.open import Stream
from pipeline.readers.record import PARAGRAPH_BREAK, Record, RecordOptions, Rejected, RejectedError, too_long_reason

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

BEGINS_PDF = re.compile(rb"%PDF-")

SOURCE = "pdf"
PAGE_WITHOUT_TEXT = "page without text, as scanned ones"
UNREADABLE_FORM = "part of a page (form) that cannot be read"

PDF_RULES = (NO_TEXT, PAGE_WITHOUT_TEXT, UNREADABLE_FORM)
"""Reasons that say what a document or a page is, not that it is damaged."""

MAX_PAGES = 10_000
MAX_CONTENT_BYTES = 64 << 20  # of all pages, decompressed
MAX_OPERATORS = 5_000_000
"""Maximum operators of a document's pages, some 500 a page; each takes about 50 microseconds."""

MAX_DEPTH = 100
"""Maximum depth of forms in forms. In deeper ones, Python's limit on calls in calls would cut text off in silence."""

_in_thread = threading.local()

_DRAWING = 200  # operators that the drawing of a form or an image counts as

# For pypdf.Configuration. Its parser takes 7 s for so much of one stream. Forms above its limit would be skipped in
# silence, so ours is reached first.
_LIMITS = {
    "stream_parsing_work_maximum_count": 1_000_000,
    "xform_maximum_invocations_per_extraction": MAX_OPERATORS // _DRAWING + 1,
}


def pdf_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the text of a PDF, and one rejection for its pages that have none."""
    body = stream.file.read(MAX_FILE_BYTES + 1)
    if not body:
        return

    pages: list[str] = []
    unreadable_forms = 0
    reason = ""
    _pypdf()
    # It calls itself for objects in objects; a new thread has the same room for that below every caller.
    with ThreadPoolExecutor(1, "pdf") as thread:
        extraction = thread.submit(_pages, body, options.max_document_bytes)  # fails where a limit refuses threads
    try:
        pages, unreadable_forms = extraction.result()
        reason = "" if any(pages) else NO_TEXT
    except RejectedError as error:
        reason = error.reason
    except MemoryError:
        raise
    except Exception as error:  # pypdf raises exceptions of many kinds for junk
        reason = TOO_LARGE if type(error).__name__ == "LimitReachedError" else DAMAGED

    text = text_of_pages([page for page in pages if page])
    if not reason and len(text.encode()) > options.max_document_bytes:
        reason = too_long_reason(options.max_document_bytes)
    if reason:
        yield Rejected(reason, SOURCE, 0, size=len(body))
        return
    without_text = pages.count("")
    if without_text:
        yield Rejected(PAGE_WITHOUT_TEXT, SOURCE, 0, count=without_text)
    if unreadable_forms:
        yield Rejected(UNREADABLE_FORM, SOURCE, 0, count=unreadable_forms)
    yield Record(text, SOURCE, size=len(body))


class _FormCounter(logging.Handler):
    """Counts the forms that pypdf leaves out in this thread, damaged or too deep ones, which it only logs."""

    def emit(self, record: logging.LogRecord) -> None:
        _in_thread.unreadable_forms += record.msg.startswith("Impossible to decode XFormObject")


class _Work:
    """Counts the operators of a document, and how deep forms are drawn in forms. pypdf calls `begin` and `end`."""

    def __init__(self) -> None:
        self._operators = 0
        self._depth = 0
        self._deepest = 0

    def begin(self, operator: bytes, *_: Any) -> None:
        is_drawing = operator == b"Do"
        self._operators += _DRAWING if is_drawing else 1
        self._depth += is_drawing
        self._deepest = max(self._deepest, self._depth)
        self.check()

    def end(self, operator: bytes, *_: Any) -> None:
        self._depth -= operator == b"Do"

    def check(self) -> None:
        if self._operators > MAX_OPERATORS or self._deepest > MAX_DEPTH:
            raise RejectedError(TOO_LARGE)


def _pages(body: bytes, max_document_bytes: int) -> tuple[list[str], int]:
    """Return the text of each page, empty for one without letters or digits, and the number of unreadable forms."""
    if len(body) > MAX_FILE_BYTES:
        raise RejectedError(TOO_LARGE)

    pypdf = _pypdf()
    pypdf.overwrite_configuration(**_LIMITS)  # of this thread alone
    _in_thread.unreadable_forms = 0
    reader = pypdf.PdfReader(io.BytesIO(body))
    if reader.is_encrypted:
        raise RejectedError(ENCRYPTED)
    if len(reader.pages) > MAX_PAGES:
        raise RejectedError(TOO_LARGE)

    work = _Work()
    pages: list[str] = []
    characters = 0
    content_bytes = 0
    for page in reader.pages:
        content = page.get_contents()
        content_bytes += 0 if content is None else len(content.get_data())
        if content_bytes > MAX_CONTENT_BYTES:
            raise RejectedError(TOO_LARGE)
        text = page.extract_text(visitor_operand_before=work.begin, visitor_operand_after=work.end)
        work.check()  # again, because pypdf catches what is raised in a form
        text = text.encode(errors="replace").decode()  # damaged tables of characters make lone surrogates
        characters += len(text)
        if characters > 2 * max_document_bytes:
            raise RejectedError(TOO_LARGE)
        pages.append(text if any(map(str.isalnum, text)) else "")
    return pages, _in_thread.unreadable_forms


@cache
def _pypdf() -> Any:
    """Return the package. Imported here, because few jobs need it."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL + 1)  # it logs every fault of a file
    log_of_pages = logging.getLogger("pypdf._page")
    log_of_pages.setLevel(logging.WARNING)
    log_of_pages.propagate = False
    log_of_pages.addHandler(_FormCounter())
    return pypdf


# ---- Paragraphs ----

# A page holds lines alone:
#
# running lines   at the top or bottom of most pages, equal up to their numbers: removed
# paragraphs      end with a line that is clearly shorter than the document's lines, also across pages
# words           that a hyphen broke at a line's end are joined

MIN_REPEATS = 3  # of a running line, in pages with even or with odd numbers
RUNNING_LINES = 2
"""Maximum running lines at each end of a page."""

SHORT_LINE = 0.75
"""A line with less than this share of the usual width ends its paragraph: in justified text only its last line does."""

_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b", re.IGNORECASE)
_BROKEN_WORD = re.compile(r"[^\W\d_]-$|\u00ad$")
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff00-\uffef\u3000-\u303f]")


def text_of_pages(pages: Sequence[str]) -> str:
    """Return the text of a document from the texts of its pages, with a blank line between its paragraphs."""
    lines = [list(filter(None, (" ".join(line.split()) for line in page.splitlines()))) for page in pages]
    for _ in range(RUNNING_LINES):
        lines = _without_running_lines(lines, 0)
        lines = _without_running_lines(lines, -1)
    return PARAGRAPH_BREAK.join(_paragraphs([line for page in lines for line in page]))


def _without_running_lines(pages: list[list[str]], place: int) -> list[list[str]]:
    """Return the pages without the line at this place, if most of the pages with even or odd numbers have it."""
    shapes = [_NUMBER.sub("#", page[place]) if page else "" for page in pages]
    counts = Counter((number % 2, shape) for number, shape in enumerate(shapes))
    sides = Counter(number % 2 for number in range(len(pages)))

    kept: list[list[str]] = []
    for number, (page, shape) in enumerate(zip(pages, shapes, strict=True)):
        repeats = counts[number % 2, shape]
        is_running = repeats >= MIN_REPEATS and 2 * repeats > sides[number % 2]
        kept.append((page[1:] if place == 0 else page[:-1]) if is_running else page)
    return kept


def _paragraphs(lines: list[str]) -> list[str]:
    if not lines:
        return []
    usual = sorted(map(len, lines))[len(lines) * 9 // 10]  # all but the longest tenth

    paragraphs: list[str] = []
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        if len(line) < SHORT_LINE * usual and not _BROKEN_WORD.search(line):
            paragraphs.append(_joined(pending))
            pending = []
    return [*paragraphs, _joined(pending)] if pending else paragraphs


def _joined(lines: list[str]) -> str:
    parts = [lines[0]]
    for line in lines[1:]:
        before = parts[-1]
        if _BROKEN_WORD.search(before) and line[0].islower():
            parts[-1] = before[:-1]
        elif not (_WITHOUT_SPACES.match(before[-1]) and _WITHOUT_SPACES.match(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)
