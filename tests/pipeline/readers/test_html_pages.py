"""Web pages: their main text in the encoding that they name, the same in any order, and no traceback for junk."""

from __future__ import annotations

import codecs
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.readers.html_pages import (
    MAX_ATTRIBUTES,
    MAX_ELEMENTS,
    NO_MAIN_TEXT,
    TOO_LARGE,
    UNKNOWN_ENCODING,
    decode_page,
    main_text,
    page_text,
)
from pipeline.readers.record import Record, RecordOptions, Rejected, RejectedError, Undecodable
from pipeline.readers.table import read_records
from tests.clozeline.test_installation import run_without
from tests.pipeline.readers.input_files import whole_range
from tests.pipeline.readers.web_files import SOME_SECONDS, min_seconds, page, paragraphs, wet

pytest.importorskip("trafilatura")


def outcome(html: str) -> str:
    try:
        return main_text(html)
    except RejectedError as error:
        return error.reason


# ---- Text ----


def test_the_main_text_is_kept_in_paragraphs_without_menu_and_footer() -> None:
    assert main_text(page(3)) == "\n\n".join(paragraphs(3))


def test_lines_end_where_a_browser_ends_them() -> None:
    html = page(1).replace(" had a ", "\r\n   had\na ").replace("<p>", "\n<p>\n").replace("</p>", "</p>\n")
    assert main_text(html) == "\n\n".join(paragraphs(1))


def test_a_text_does_not_depend_on_the_pages_before_it() -> None:
    """trafilatura remembers what it has seen; the same pages, many of them alike, are read in several orders."""
    pages = [page(number % 7, count=number % 5) for number in range(40)]
    pages += [page(number).replace("<article>", f"<article><p>{paragraphs(1)[0]}</p>") for number in range(10)]
    pages += ["<p>" + "word " * number for number in range(10)]
    expected = {html: outcome(html) for html in pages}
    for seed in range(3):
        random.Random(seed).shuffle(pages)
        assert {html: outcome(html) for html in pages} == expected


NESTED = ["<s>", "<div>", "<ul><li>", "<ul><li>word ", "<table><tr><td>", "<blockquote><ul><li>"]


@pytest.mark.parametrize("tags", NESTED)
def test_a_text_does_not_depend_on_the_depth_of_its_caller(tags: str) -> None:
    """Nor on Python's limit of it, of which the deepest page that the parser takes needs about half."""
    levels = 248 // tags.count("<")
    html = page(1).replace("<article>", f"<article>{tags * levels}")
    expected = outcome(html)
    assert paragraphs(1)[0] in expected
    assert called_from(700, lambda: outcome(html)) == expected

    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(600)
        assert outcome(html) == expected
    finally:
        sys.setrecursionlimit(limit)


def called_from(depth: int, function: Callable[[], str]) -> str:
    """Call a function from this many calls."""
    return called_from(depth - 1, function) if depth else function()


# ---- Encodings ----

GERMAN = "Die Straße führt über die Brücke zum schönen Hafen. " * 3
RUSSIAN = "Москва является столицей России. Вчера мы читали книгу о природе. " * 3
JAPANESE = "東京は日本の首都です。昨日、私たちは自然についての本を読みました。" * 3
META = '<meta charset="{}">'
HTTP_EQUIV = "<meta http-equiv=Content-Type content='text/html; charset={}'>"

ENCODED = [
    ("header", GERMAN.encode("cp1252"), "ISO-8859-1", GERMAN),
    ("header-before-meta", META.format("utf-8").encode() + RUSSIAN.encode("koi8-r"), "koi8-r", RUSSIAN),
    ("mark-before-header", codecs.BOM_UTF8 + GERMAN.encode(), "iso-8859-1", GERMAN),
    ("mark-utf-16", codecs.BOM_UTF16_BE + GERMAN.encode("utf-16-be"), "", GERMAN),
    ("meta", META.format("windows-1251").encode() + RUSSIAN.encode("cp1251"), "", RUSSIAN),
    ("http-equiv", HTTP_EQUIV.format("Shift_JIS").encode() + JAPANESE.encode("cp932"), "", JAPANESE),
    ("xml", b'<?xml version="1.0" encoding="euc-jp"?>' + JAPANESE.encode("euc-jp"), "", JAPANESE),
    ("meta-cannot-name-utf-16", META.format("utf-16").encode() + GERMAN.encode(), "", GERMAN),
    ("latin-1-is-cp1252", "“Zitat” – €5".encode("cp1252"), "latin1", "“Zitat” – €5"),
    ("gb2312-is-gb18030", "朱镕基".encode("gb18030"), "gb2312", "朱镕基"),
    ("no-such-name", GERMAN.encode(), "none-such", GERMAN),
    ("escapes", rb"Stra\u00dfe", "unicode_escape", r"Stra\u00dfe"),
    ("raw-escapes", META.format("raw-unicode-escape").encode() + rb"Stra\u00dfe", "", r"Stra\u00dfe"),
    ("replacement-characters-are-no-damage", "\ufffd".encode() * 9 + RUSSIAN.encode(), "", RUSSIAN),
    ("not-for-text", GERMAN.encode(), "zlib", GERMAN),
    ("header-is-wrong", META.format("cp1251").encode() + RUSSIAN.encode("cp1251"), "utf-8", RUSSIAN),
    ("utf-8-without-a-name", RUSSIAN.encode(), "", RUSSIAN),
    ("guessed-western", GERMAN.encode("cp1252"), "", GERMAN),
    ("guessed-russian", RUSSIAN.encode("cp1251"), "", RUSSIAN),
]


@pytest.mark.parametrize(("body", "charset", "text"), [pytest.param(*case[1:], id=case[0]) for case in ENCODED])
def test_a_page_is_decoded_as_it_says(body: bytes, charset: str, text: str) -> None:
    decoded, undecodable = decode_page(body, charset)
    assert decoded.endswith(text) and undecodable == 0


def test_a_few_damaged_bytes_are_counted_where_they_remain_and_many_are_a_reason(tmp_path: Path) -> None:
    body = (page(1) + "<!-- " + GERMAN * 20 + "-->").encode()
    damaged = body.replace(b"the", b"\xffthe", 1).replace("Straße".encode(), b"Stra\xc3e", 2)
    path = tmp_path / "x.html"
    path.write_bytes(damaged)
    (found,) = read_records(whole_range(path, "html"), RecordOptions("text", "blank_line"))
    assert isinstance(found, Record) and found.text.count("\ufffd") == 1
    assert found.undecodable == Undecodable(1, 0)

    with pytest.raises(RejectedError, match=UNKNOWN_ENCODING):
        page_text(random.Random(0).randbytes(5000), "utf-8")


# ---- Junk ----

SOME = "<p>The river is long and it runs to the sea.</p>"
ATTRIBUTES = " ".join(f"a{number}=x" for number in range(200_000))
BOMBS = [
    ("empty", "", NO_MAIN_TEXT),
    ("blank", " \n\t ", NO_MAIN_TEXT),
    ("nul", "\0" * 1000, NO_MAIN_TEXT),
    ("comment", "<!-- nothing -->", NO_MAIN_TEXT),
    ("no-text", "<html><body><div></div></body></html>", NO_MAIN_TEXT),
    ("nested", f"<html><body>{'<div>' * 100_000}{SOME}", TOO_LARGE),
    ("nested-tables", f"<html><body>{'<table><tr><td>' * 50_000}{SOME}", TOO_LARGE),
    ("attributes", f"<html><body><p {ATTRIBUTES}>{SOME}", TOO_LARGE),
    ("attributes-without-an-end", f"<html><body><p {ATTRIBUTES}", TOO_LARGE),
    ("attributes-behind-quotes", f"<html><body><p x' {ATTRIBUTES} '>{SOME}", TOO_LARGE),
    ("attributes-with-greater-than", "<p " + 'a=">" ' * 200_000, TOO_LARGE),
    ("elements", "<html><body>" + "<b>x</b>" * 200_000, TOO_LARGE),
    ("one-attribute", f"<html><body><p a='{'x' * (15 << 20)}'>{SOME}", TOO_LARGE),
    ("one-text", f"<html><body>{'word ' * (3 << 20)}", TOO_LARGE),
]


@pytest.mark.parametrize(("html", "reason"), [pytest.param(*case[1:], id=case[0]) for case in BOMBS])
def test_a_bomb_is_a_reason_in_bounded_time(html: str, reason: str) -> None:
    begun = time.process_time()
    assert outcome(html) == reason
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    "part",
    ["<!--", "<script>", "<style", "<p '", '<p a="', "<p a='\"", "<a <a", "< a=", "<p\t=", "</", "<p/", "&", "<?"],
)
def test_the_search_for_long_tags_is_linear(part: str) -> None:
    small, large = (f"<html><body>{part * (size // len(part))}" for size in (1 << 16, 1 << 18))
    assert min_seconds(lambda: outcome(large)) < 8 * min_seconds(lambda: outcome(small)) + SOME_SECONDS


def test_large_pages_below_the_limits_are_read() -> None:
    attributes = " ".join(f"a{number}='x > y'" for number in range(MAX_ATTRIBUTES - 1))
    script = (
        "<script>if (a<b) {" + "x = 1; " * 3 * MAX_ATTRIBUTES + "}</script><!-- <p " + "a " * 3 * MAX_ATTRIBUTES + "-->"
    )
    html = page(1).replace("<article>", f"<article {attributes}>{script}")
    assert main_text(html) == "\n\n".join(paragraphs(1))
    assert len(main_text(page(2, count=MAX_ELEMENTS // 4)).split("\n\n")) == MAX_ELEMENTS // 4


TAGS = (
    "<html> <p> </p> <table> <tr> <td> </table> <!-- --> <script> </script> <svg> <math> <a href='> <b <i/> &#0; "
    "&#xd800; &lt <![CDATA[ ]]> <?xml <!DOCTYPE <html/> <template> <pre> <head> <ul> text"
)
JUNK = st.one_of(
    st.binary(max_size=300),
    st.text("<>/='\" \0ab&;!-?\n", max_size=300).map(str.encode),
    st.lists(st.sampled_from(TAGS.split()), max_size=60).map(lambda parts: " ".join(parts).encode()),
)


@given(junk=JUNK, charset=st.sampled_from(["", "utf-8", "utf-16", "x\0", "idna", "cp037"]))
@settings(max_examples=300)
def test_junk_is_a_text_or_a_reason(junk: bytes, charset: str) -> None:
    try:
        text, _ = page_text(junk, charset)
        text.encode()
        assert text.strip()
    except RejectedError as error:
        assert error.reason


# ---- The command ----


@pytest.mark.parametrize("many", [False, True])
def test_a_folder_of_pages_is_sharded(command, tmp_path: Path, monkeypatch, many: bool) -> None:
    if many:  # workers find out what the files are
        monkeypatch.setattr("pipeline.readers.inputs.MAX_CHECKED_FILES", 2)
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.html").write_text(page(number))
    (folder / "0-empty.htm").write_text("<html></html>")
    (folder / "nothing.xhtml").write_text("")
    (folder / "no-suffix").write_text(page(7))

    done = command("shard", "--input", folder / "*", "--output", tmp_path / "text")
    assert done.returncode == 0, done.stderr
    assert "7 documents" in done.stdout and "1 x page without main text (web)" in done.stdout


def test_a_page_above_the_limit_is_a_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text(page(1))
    options = RecordOptions("text", "blank_line", max_document_bytes=100)
    assert list(read_records(whole_range(path, "html"), options)) == [Rejected("record above 100 bytes", "web", 0)]


@pytest.mark.parametrize("count", [1, 300])
def test_without_trafilatura_pages_are_refused_before_the_job_begins(tmp_path: Path, count: int) -> None:
    for number in range(count):
        (tmp_path / f"{number}.html").write_text(page(number))
    done = run_without("trafilatura", "shard", "--input", str(tmp_path / "*"), "--output", str(tmp_path / "text"))
    assert (done.returncode, done.stderr) == (
        2,
        'clozeline: the package trafilatura is not installed. It comes with the extra "corpora": '
        'pip install "clozeline[corpora]"\n',
    )
    assert not (tmp_path / "text").exists()


def test_without_trafilatura_wet_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.warc.wet").write_bytes(wet("One sentence. Another one."))
    done = run_without("trafilatura", "shard", "--input", str(tmp_path / "*"), "--output", str(tmp_path / "text"))
    assert done.returncode == 0, done.stderr
    assert "1 document" in done.stdout
