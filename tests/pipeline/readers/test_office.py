"""Documents of office programs, books and PDF files: their paragraphs in order, and a reason for junk and bombs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pipeline.readers.office import DAMAGED, ENCRYPTED, NO_TEXT, TOO_LARGE
from pipeline.readers.pdf import PAGE_WITHOUT_TEXT, UNREADABLE_FORM, text_of_pages
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records
from tests.pipeline.readers.input_files import read, whole_range
from tests.pipeline.readers.office_files import docx, epub, odt, pdf, pdf_of_forms, word, zipped

pytest.importorskip("lxml")

OPTIONS = RecordOptions("text", "blank_line")


def found(tmp_path: Path, data: bytes) -> list[Record | Rejected]:
    """What a file without a name that says its format is read as."""
    path = tmp_path / "x"
    path.write_bytes(data)
    return read(path)


def text_in(tmp_path: Path, data: bytes) -> list[str]:
    (record,) = found(tmp_path, data)
    assert isinstance(record, Record), record
    return record.text.split("\n\n")


def test_docx(tmp_path: Path) -> None:
    table = f"<w:tbl><w:tr><w:tc>{word('Cell')}</w:tc><w:tc>{word('Next')}</w:tc></w:tr></w:tbl>"
    deleted = (
        "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:t>A</w:t><w:tab/><w:t>b.</w:t></w:r></w:p>"
    )
    contents = '<w:p><w:pPr><w:pStyle w:val="TOC1"/></w:pPr><w:r><w:t>Heading 3</w:t></w:r></w:p>'
    data = docx(contents + word("Heading") + word("The river &amp; the sea.") + table + deleted)
    assert text_in(tmp_path, data) == ["Heading", "The river & the sea.", "Cell", "Next", "A b."]


def test_odt(tmp_path: Path) -> None:
    body = (
        "<text:h>Heading</text:h><text:p>One<text:note><text:p>A footnote.</text:p></text:note> line"
        '<text:line-break/>and <text:span>two</text:span><text:s text:c="2"/>more.</text:p>'
        "<text:list><text:list-item><text:p>An item</text:p></text:list-item></text:list>"
    )
    assert text_in(tmp_path, odt(body)) == ["Heading", "One line\nand two more.", "An item"]


def test_a_book_is_one_document_in_the_order_of_its_spine(tmp_path: Path) -> None:
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>T</title></head><body>{}</body></html>'
    chapters: dict[str, str] = {
        "b.xhtml": page.format("<h1>Two</h1><p>Caf&eacute;&nbsp;noir\nis <i>dark</i>.</p>"),
        "a.xhtml": page.format("<h1>One</h1><p>Not closed<br>here<ul><li>Item</ul>"),
    }
    assert text_in(tmp_path, epub(chapters, ["a.xhtml", "b.xhtml"])) == [
        "One",
        "Not closed\nhere",
        "Item",
        "Two",
        "Café\u00a0noir is dark.",
    ]


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><x>&b;</x>'
BAD = [
    ("docx-without-text", docx(word(" ")), NO_TEXT),
    ("docx-truncated", docx(word("A b."))[:-30], DAMAGED),
    ("docx-no-xml", zipped({"[Content_Types].xml": "", "word/document.xml": "<w:p>"}), DAMAGED),
    ("docx-entities", zipped({"[Content_Types].xml": "", "word/document.xml": LAUGHS}), DAMAGED),
    ("docx-depth", docx("<w:p>" * 5000 + "</w:p>" * 5000), DAMAGED),
    ("docx-bomb", docx(word(" " * (9 << 20))), TOO_LARGE),
    ("odt-encrypted", odt("", **{"META-INF/manifest.xml": "<encryption-data/>"}), ENCRYPTED),
    ("epub-without-spine", epub({}, []), NO_TEXT),
    ("epub-without-chapter", epub({"a": "<p>A b.</p>"}, ["b"]), DAMAGED),
]


@pytest.mark.parametrize(("data", "reason"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_what_cannot_be_read_is_a_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (rejected,) = found(tmp_path, data)
    assert isinstance(rejected, Rejected) and rejected.reason == reason


def test_an_encrypted_docx_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.docx"
    path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))
    (rejected,) = read_records(whole_range(path, "docx"), OPTIONS)
    assert isinstance(rejected, Rejected) and rejected.reason == ENCRYPTED


@pytest.mark.parametrize(
    "make", [docx(word("A b. C d.")), odt("<text:p>A b.</text:p>"), epub({"a": "<p>A</p>"}, ["a"])]
)
def test_damage_is_text_or_a_reason(tmp_path: Path, make: bytes) -> None:
    path = tmp_path / "x"
    randomness = random.Random(0)
    for _ in range(150):
        data = bytearray(make)
        for _ in range(3):
            data[randomness.randrange(len(data))] = randomness.randrange(256)
        path.write_bytes(data[: randomness.randrange(10, len(data))] if randomness.random() < 0.3 else data)
        for form in ("docx", "odt", "epub"):
            assert len(list(read_records(whole_range(path, form), OPTIONS))) == 1


# ---- PDF ----

LONG = "The river is long and it runs to the sea of the north, where all"


def test_lines_become_paragraphs_without_running_lines() -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    pages = [
        f"The Book\nA{word} {LONG} bro-\nken words of {LONG}\nend of {word}.\n{number}"
        for number, word in enumerate(words, 1)
    ]
    expected = [f"A{word} {LONG} broken words of {LONG} end of {word}." for word in words]
    assert text_of_pages(pages) == "\n\n".join(expected)
    assert (
        text_of_pages(["东京是日本的首都，很大很大很大\n也很美丽很美丽很美丽很美丽。"])
        == "东京是日本的首都，很大很大很大也很美丽很美丽很美丽很美丽。"
    )


def test_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    assert found(tmp_path, pdf([[LONG, "end."], [], ["A b."]])) == [
        Rejected(PAGE_WITHOUT_TEXT, "pdf", 0),
        Record(f"{LONG} end.\n\nA b.", "pdf"),
    ]
    for data, reason in [
        (pdf([[], []]), NO_TEXT),
        (pdf([["A b."]])[:100], DAMAGED),
        (b"%PDF-1.7 junk", DAMAGED),
        (pdf([["A b."]], b"/Encrypt<</Filter/Standard/V 1/R 2/O(x)/U(x)/P 0>>/ID[(x)(x)]"), ENCRYPTED),
    ]:
        (rejected,) = found(tmp_path, data)
        assert isinstance(rejected, Rejected) and rejected.reason == reason


@pytest.mark.parametrize("depth", [1, 100, 101, 2000])
def test_forms_in_forms_are_read_or_too_many(tmp_path: Path, depth: int) -> None:
    pytest.importorskip("pypdf")
    (document,) = found(tmp_path, pdf_of_forms(depth))
    if depth <= 100:
        assert isinstance(document, Record)
        assert document.text.split() == [word for level in range(depth + 1) for word in ("Line", f"{level}.")]
    else:
        assert isinstance(document, Rejected) and document.reason == TOO_LARGE


def test_a_damaged_form_of_a_page_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    damaged = pdf_of_forms(1).replace(b"/Subtype/Form", b"/Filter/Form")
    unreadable, document = found(tmp_path, damaged)
    assert isinstance(document, Record) and document.text == "Line 0."
    assert unreadable == Rejected(UNREADABLE_FORM, "pdf", 0)


@pytest.mark.parametrize(("limit", "value"), [("MAX_OPERATORS", 50), ("MAX_PAGES", 1), ("MAX_CONTENT_BYTES", 100)])
def test_a_pdf_above_a_limit_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    pytest.importorskip("pypdf")
    monkeypatch.setattr(f"pipeline.readers.pdf.{limit}", value)
    (rejected,) = found(tmp_path, pdf([["A b."] * 30, ["C d."] * 30]))
    assert isinstance(rejected, Rejected) and rejected.reason == TOO_LARGE


def test_a_limit_that_a_form_exceeds_is_not_skipped_with_the_form(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("pypdf")
    monkeypatch.setattr("pipeline.readers.pdf.MAX_OPERATORS", 207)  # 200 of them for the drawing of the form
    (rejected,) = found(tmp_path, pdf_of_forms(1))
    assert isinstance(rejected, Rejected) and rejected.reason == TOO_LARGE
