"""The paragraphs of XML and XHTML, as a grammar of a few sets of tags says, for office documents and books.

The parser is lxml without network, DTDs and entities, and its own limits stay on: 256 levels and 10 MB of one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.entities import html5
from typing import Any, NamedTuple

_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{0,31});")
_OF_XML = (b"amp", b"lt", b"gt", b"quot", b"apos")


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
                pieces.append(_mark(element, grammar))
                pieces.append(_text(element.text, tag, grammar, open_as_written))
        elif element is not root:
            parent = element.getparent()
            pieces.append(_text(element.tail, parent.tag, grammar, open_as_written))
    end_paragraph()
    return found


def _mark(element: Any, grammar: Grammar) -> str:
    return grammar.marks.get(element.tag, "")


def _text(text: str | None, tag: str, grammar: Grammar, open_as_written: int) -> str:
    if not text or (grammar.texts and tag not in grammar.texts):
        return ""
    return text if open_as_written or grammar.texts else re.sub(r"[ \t\r\n]+", " ", text)


def _plain_lines(text: str) -> str:
    """Return a text without spaces around its lines, and without empty lines, which would end the paragraph."""
    lines: Iterable[str] = (" ".join(line.split(" ")).strip(" \t\r") for line in text.split("\n"))
    return "\n".join(filter(None, lines))
