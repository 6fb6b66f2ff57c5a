"""Reads documents of office programs and books, by lxml: .docx (ECMA-376), .odt (OpenDocument 1.3), .epub (EPUB 3.3).

All three are zip files of XML. A document is the file's paragraphs in order: headings, items of lists and cells of
tables are paragraphs too. Left out are headers, footers, footnotes and comments, which .docx keeps in parts that are
not read, tables of contents, deleted text, and of .docx the second copy of a text box, for old programs.

A book is one document, not one for each chapter: sentences that are hard to tell apart come from the same book, so
chapters would be easy to recognize as "another document", and could be on both sides of --holdout.

The parser is lxml without network, DTDs and entities, and its own limits stay on: 256 levels and 10 MB of one text.
Names in zip files are only compared with others, and nothing is written, so that no path leads anywhere.
"""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from zipfile import ZipFile, ZipInfo

from pipeline.readers.open import LimitedReads, Stream
from pipeline.readers.record import PARAGRAPH_BREAK, Record, RecordOptions, Rejected, RejectedError, too_long_reason

if TYPE_CHECKING:
    from pipeline.readers.inputs import FileRange

NO_TEXT = "document without text"
DAMAGED = "document that cannot be read"
ENCRYPTED = "document that is encrypted"
TOO_LARGE = "document with too large parts"

OFFICE_RULES = (NO_TEXT,)
"""Reasons that say what a document is, not that it is damaged."""

MAX_FILE_BYTES = 256 << 20
"""Maximum bytes of a file, which is held in memory. Large ones have images."""

MAX_PART_BYTES = 64 << 20
"""Maximum bytes of one part of a document, decompressed. The XML of a book of 5 MB has about 20 MB."""

MAX_DIRECTORY_BYTES = 32 << 20
"""Maximum bytes of a zip file's directory, which then has some 300,000 entries."""

_SMALL_PART_BYTES = 1 << 20  # which no limit on growth concerns
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # how Office stores what is encrypted

_FIRST_NAME = rb"(?s)PK\x03\x04.{26}"  # of a zip file, what stands before the name of the first entry
BEGINS_DOCX = re.compile(_FIRST_NAME + rb"(?:word/|(?:\[Content_Types\]\.xml|_rels/|docProps/).*?PK\x03\x04.{26}word/)")
# Both standards say that this entry is the first one, and stored.
BEGINS_ODT = re.compile(_FIRST_NAME + rb"mimetypeapplication/vnd\.oasis\.opendocument\.text(?=PK|\s|$)")
BEGINS_EPUB = re.compile(_FIRST_NAME + rb"mimetypeapplication/epub\+zip(?=PK|\s|$)")

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT_WORD = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_SVG_OF_ODF = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_XHTML = "{http://www.w3.org/1999/xhtml}"
_OPF = "{http://www.idpf.org/2007/opf}"
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_ENCRYPTION = "{http://www.w3.org/2001/04/xmlenc#}"

_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{0,31});")
_OF_XML = (b"amp", b"lt", b"gt", b"quot", b"apos")


def _tags(namespaces: tuple[str, ...], names: str) -> frozenset[str]:
    return frozenset(namespace + name for namespace in namespaces for name in names.split())


class Grammar(NamedTuple):
    """What elements mean. Tags are lxml's, `{namespace}name`.

    blocks: begin and end a paragraph. skipped: have no text of the document.
    marks: what stands for an empty element, such as a line break.
    texts: the only elements that hold text; empty if all do.
    as_written: those whose spaces and line ends are text.
    """

    blocks: frozenset[str]
    skipped: frozenset[str]
    marks: dict[str, str]
    texts: frozenset[str] = frozenset()
    as_written: frozenset[str] = frozenset()


_WORDS = (_WORD, _STRICT_WORD)
_DOCX = Grammar(
    blocks=_tags(_WORDS, "p tc"),
    skipped=_tags(_WORDS, "moveFrom del") | {"{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"},
    marks=dict.fromkeys(_tags(_WORDS, "tab ptab"), " ")
    | dict.fromkeys(_tags(_WORDS, "br cr"), "\n")
    | dict.fromkeys(_tags(_WORDS, "noBreakHyphen"), "-"),
    texts=_tags(_WORDS, "t"),
)
_ODT = Grammar(
    blocks=_tags((_TEXT,), "p h list-item") | {_TABLE + "table-cell"},
    skipped=_tags((_TEXT,), "note tracked-changes table-of-content illustration-index table-index alphabetical-index")
    | _tags((_OFFICE,), "annotation forms")
    | _tags((_SVG_OF_ODF,), "title desc"),
    marks={_TEXT + "s": " ", _TEXT + "tab": " ", _TEXT + "line-break": "\n"},
)
_PLACES = (_XHTML, "")  # an HTML parser gives no namespace
_EPUB = Grammar(
    blocks=_tags(
        _PLACES,
        "p h1 h2 h3 h4 h5 h6 li dt dd td th caption tr table div section article blockquote pre figure figcaption "
        "body header footer aside main ul ol dl hr address center",
    ),
    skipped=_tags(_PLACES, "head script style nav rt rp template") | {"{http://www.w3.org/2000/svg}svg", "svg"},
    marks=dict.fromkeys(_tags(_PLACES, "br"), "\n"),
    as_written=_tags(_PLACES, "pre"),
)


# ---- Documents ----


def office_records(stream: Stream, file_range: FileRange, options: RecordOptions) -> Iterator[Record | Rejected]:
    """Yield the text of a document of a format in _PARAGRAPHS_OF."""
    source = file_range.format
    body = stream.file.read(MAX_FILE_BYTES + 1)
    if not body:
        return

    reason = ""
    text = ""
    try:
        text = PARAGRAPH_BREAK.join(_read(body, source, options.max_decompression_ratio))
        reason = "" if text and not text.isspace() else NO_TEXT
    except RejectedError as error:
        reason = error.reason
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception:  # zipfile and lxml raise exceptions of many kinds for junk
        reason = DAMAGED

    if len(text) > options.max_document_bytes or len(text.encode()) > options.max_document_bytes:
        reason = too_long_reason(options.max_document_bytes)
    yield Rejected(reason, source, 0, size=len(body)) if reason else Record(text, source, size=len(body))


def _read(body: bytes, source: str, max_ratio: int) -> list[str]:
    if len(body) > MAX_FILE_BYTES:
        raise RejectedError(TOO_LARGE)
    if body.startswith(_OLE):
        raise RejectedError(ENCRYPTED)
    reads: Any = LimitedReads(io.BytesIO(body), MAX_DIRECTORY_BYTES, lambda _size: RejectedError(TOO_LARGE))
    with ZipFile(reads) as archive:
        return _PARAGRAPHS_OF[source](archive, max_ratio)


def is_encrypted(entry: ZipInfo) -> bool:
    return bool(entry.flag_bits & 1)


def read_part(archive: ZipFile, name: str, max_ratio: int) -> bytes:
    """Return a part of a document, decompressed.

    Raises KeyError if there is none, RejectedError if it is encrypted, has more than MAX_PART_BYTES or grows more than
    `max_ratio` times, and the exceptions of zipfile.
    """
    entry = archive.getinfo(name)
    if is_encrypted(entry):
        raise RejectedError(ENCRYPTED)
    with archive.open(entry) as opened:
        data = opened.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES or len(data) > max(_SMALL_PART_BYTES, max_ratio * entry.compress_size):
        raise RejectedError(TOO_LARGE)
    return data


def _docx_text(archive: ZipFile, max_ratio: int) -> list[str]:
    root = parse_xml(read_part(archive, "word/document.xml", max_ratio))
    _remove_contents_tables(root)
    return paragraphs(root, _DOCX)


def _remove_contents_tables(root: Any) -> None:
    """Remove paragraphs in the styles of tables of contents, TOC1 to TOC9, whose lines are headings and numbers."""
    for word in _WORDS:
        for style in list(root.iter(word + "pStyle")):
            if not re.fullmatch(r"TOC\d", style.get(word + "val", "")):
                continue
            paragraph = style.getparent().getparent()
            for text in list(paragraph.iter(word + "t")):
                text.text = None


def _odt_text(archive: ZipFile, max_ratio: int) -> list[str]:
    if "META-INF/manifest.xml" in archive.namelist():
        manifest = read_part(archive, "META-INF/manifest.xml", max_ratio)
        if b"encryption-data" in manifest:
            raise RejectedError(ENCRYPTED)
    root = parse_xml(read_part(archive, "content.xml", max_ratio))
    return paragraphs(next(root.iter(_OFFICE + "body")), _ODT)


def _epub_text(archive: ZipFile, max_ratio: int) -> list[str]:
    encrypted = _encrypted_names(archive, max_ratio)
    names = set(archive.namelist())
    found: list[str] = []
    remaining = MAX_PART_BYTES
    for name in _chapters(archive, max_ratio):
        if name in encrypted:
            raise RejectedError(ENCRYPTED)
        if name not in names:
            raise KeyError(name)
        data = read_part(archive, name, max_ratio)
        remaining -= max(1000, len(data))  # also bounds how often an empty chapter may be named
        if remaining < 0:
            raise RejectedError(TOO_LARGE)
        found += paragraphs(parse_xhtml(data), _EPUB)
    return found


def _chapters(archive: ZipFile, max_ratio: int) -> list[str]:
    """Return the names of a book's chapters in the order of its spine, without its table of contents."""
    container = parse_xml(read_part(archive, "META-INF/container.xml", max_ratio))
    package_name = next(container.iter(_CONTAINER + "rootfile")).get("full-path")
    package = parse_xml(read_part(archive, package_name, max_ratio))
    items = {item.get("id"): item for item in package.iter(_OPF + "item")}

    chapters: dict[str, None] = {}
    for reference in package.iter(_OPF + "itemref"):
        item = items[reference.get("idref")]
        is_text = item.get("media-type") in ("application/xhtml+xml", "text/html")
        if is_text and reference.get("linear") != "no" and "nav" not in item.get("properties", "").split():
            path = unquote(item.get("href", "")).partition("#")[0]
            chapters[posixpath.normpath(posixpath.join(posixpath.dirname(package_name), path))] = None
    return list(chapters)


def _encrypted_names(archive: ZipFile, max_ratio: int) -> set[str]:
    """Return the names of a book's parts that are encrypted; its fonts often are."""
    if "META-INF/encryption.xml" not in archive.namelist():
        return set()
    root = parse_xml(read_part(archive, "META-INF/encryption.xml", max_ratio))
    return {unquote(place.get("URI", "")) for place in root.iter(_ENCRYPTION + "CipherReference")}


_PARAGRAPHS_OF = {"docx": _docx_text, "odt": _odt_text, "epub": _epub_text}
"""For each format, what returns the paragraphs of a document, or raises any exception if it is damaged."""


# ---- Paragraphs of XML ----


def parse_xml(data: bytes) -> Any:
    """Return the root of a part. Raises ValueError if it declares entities, and XMLSyntaxError for what is no XML."""
    from lxml import etree

    if b"<!ENTITY" in data:
        raise ValueError("it declares entities")
    parser = etree.XMLParser(
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        strip_cdata=True,
        collect_ids=False,
    )
    return etree.fromstring(data, parser)


def parse_xhtml(data: bytes) -> Any:
    """Return the root of a chapter; of one that is no XML, as many are, what an HTML parser makes of it.

    Raises ValueError if that gives up before the end.
    """
    from lxml import etree, html

    data = _ENTITY.sub(_as_number, data)
    try:
        return parse_xml(data)
    except etree.XMLSyntaxError:
        parser = html.HTMLParser(collect_ids=False, default_doctype=False, remove_comments=True, remove_pis=True)
        root = html.document_fromstring(data, parser=parser)
        if parser.error_log.filter_from_fatals():
            raise ValueError("the parser gave up") from None
        return root


def _as_number(entity: re.Match[bytes]) -> bytes:
    """Return one of HTML's entities, which XML does not know, as a reference by number."""
    if entity[1] in _OF_XML:
        return entity[0]
    characters = html5.get(f"{entity[1].decode()};", "")
    return "".join(f"&#{ord(character)};" for character in characters).encode() or entity[0]


def paragraphs(root: Any, grammar: Grammar) -> list[str]:
    """Return the texts of all paragraphs below an element, in order, without empty ones."""
    from lxml import etree

    found: list[str] = []
    pieces: list[str] = []
    open_as_written = 0

    def end_paragraph() -> None:
        text = _plain_lines("".join(pieces))
        pieces.clear()
        if text:
            found.append(text)

    walk = etree.iterwalk(root, events=("start", "end"))
    for event, element in walk:
        tag = element.tag
        is_skipped = tag in grammar.skipped
        if tag in grammar.blocks:
            end_paragraph()
        open_as_written += (tag in grammar.as_written) * (1 if event == "start" else -1)

        if event == "start":
            if is_skipped:
                walk.skip_subtree()
            else:
                pieces.append(grammar.marks.get(tag, ""))
                pieces.append(_text(element.text, tag, grammar, open_as_written))
        elif element is not root:
            parent = element.getparent()
            pieces.append(_text(element.tail, parent.tag, grammar, open_as_written))
    end_paragraph()
    return found


def _text(text: str | None, tag: str, grammar: Grammar, open_as_written: int) -> str:
    if not text or (grammar.texts and tag not in grammar.texts):
        return ""
    return text if open_as_written or grammar.texts else re.sub(r"[ \t\r\n]+", " ", text)


def _plain_lines(text: str) -> str:
    """Return a text without spaces around its lines, and without empty lines, which would end the paragraph."""
    lines: Iterable[str] = (line.strip(" \t\r") for line in text.split("\n"))
    return "\n".join(filter(None, lines))
