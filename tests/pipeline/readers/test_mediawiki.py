"""Dumps of MediaWiki: articles become documents, other pages are counted, wherever a dump is cut."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.readers import cut_files, table
from pipeline.readers.mediawiki import (
    DISAMBIGUATION,
    NO_END,
    NO_TEXT,
    NOT_ALONE,
    NOT_XML,
    OTHER_MODEL,
    OTHER_NAMESPACE,
    OUTSIDE,
    REDIRECT,
    TOO_DEEP,
    UNCLOSED,
)
from pipeline.readers.record import Record, RecordOptions, Rejected, too_long_reason
from pipeline.readers.table import read_records
from schemas.manifest import read_manifest
from tests.pipeline.readers.input_files import HEADER, dump, page, whole_range

ARTICLE = "{{Infobox\n| a = b\n}}\n'''Cat''' is a [[pet]] &amp; friend.<ref>x</ref>\n\n== Food ==\nIt eats.\n"
TEXT = "Cat is a pet & friend.\n\nFood\n\nIt eats."

PAGES = [
    (page(1, "Cat", ARTICLE), TEXT),
    (page(2, "Cats", "#REDIRECT [[Cat]]", redirect="Cat"), REDIRECT),
    (page(3, "Talk:Cat", "Is it?", namespace=1), OTHER_NAMESPACE),
    (page(4, "Template:A", "Text.", namespace=10), OTHER_NAMESPACE),
    (page(5, "Data", "{}", model="json"), OTHER_MODEL),
    (page(6, "A", "'''A''' may be:\n* [[B]]\n{{Disambiguation|geo}}"), DISAMBIGUATION),
    (page(7, "A", "A.\n{{ human_name disambiguation\n}}"), DISAMBIGUATION),
    (page(8, "A", "A.\n{{Begriffsklärung}}"), DISAMBIGUATION),
    (page(9, "A", "A.\n{{曖昧さ回避}}"), DISAMBIGUATION),
    (page(10, "A", "A. __DISAMBIG__"), DISAMBIGUATION),
    (page(11, "A", "{{for|b|C (disambiguation)}}\nA [[b]].{{disambiguation needed|x=y}}"), "A b."),
    (page(26, "A", "A <!-- {{disambig}} --> <nowiki>{{disambig}}</nowiki> b."), "A  {{disambig}} b."),
    (page(12, "A", ""), NO_TEXT),
    (page(13, "A", "{{x}}\n== See ==\n[[Category:A]]"), NO_TEXT),
    (page(14, "A", "[[" * 500), TOO_DEEP),
    (page(15, "A", "x").replace("</id>", "</di>"), NOT_XML),
    (page(16, "A", "x").replace("<ns>", "<!DOCTYPE a [<!ENTITY b 'c'>]><ns>"), NOT_XML),
    (page(17, "A", "x").replace(">x<", ">&b;<"), NOT_XML),
    (page(18, "A", "<page>\n  <page>\n</page>\nText with\ttab."), "<page> <page> </page> Text with\ttab."),
    (page(19, "A", "old").replace("</revision>", "</revision><revision><text>New.</text></revision>"), "New."),
    (page(20, "A", "Old.").replace("<ns>0</ns>", "").replace("<model>wikitext</model>", ""), "Old."),
    (page(21, "A", "Main.").replace("<sha1>", "<content><text>slot</text></content><sha1>"), "Main."),
    (page(22, "A", "x").replace("  </page>\n", ""), UNCLOSED),
    (page(23, "A", "القط [[حيوان]].\nΓάτα."), "القط حيوان. Γάτα."),
    ("lost\n\nlines\n" + page(24, "A", "Text."), OUTSIDE, "Text."),
    ("</mediawiki>\n" + HEADER + page(25, "A", "Text."), "Text."),
]


def records(path: Path, *cuts: int) -> list[Record | Rejected]:
    whole = whole_range(path, "mediawiki")
    bounds = itertools.pairwise(sorted({0, whole.size, *cuts}))
    options = RecordOptions("text", "blank_line", max_document_bytes=30_000)
    return [found for a, b in bounds for found in read_records(replace(whole, start=a, end=b), options)]


def without_places(found: list[Record | Rejected]) -> list[Record | Rejected]:
    """The records. In cut files, places count from the first frame of a range."""
    return [replace(record, position=0) for record in found]


def told(found: list[Record | Rejected]) -> list[str]:
    return [record.text if isinstance(record, Record) else record.reason for record in found]


def test_articles_are_read_and_other_pages_counted(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    path.write_text(dump(*(written for written, *_ in PAGES)))
    found = records(path)
    assert told(found) == [text for _, *texts in PAGES for text in texts]
    assert {record.source for record in found} == {"mediawiki"}

    data = path.read_bytes()
    places = [data[record.position :].split()[0] for record in found]
    assert all(
        place == (b"lost" if text == OUTSIDE else b"<page>") for place, text in zip(places, told(found), strict=True)
    )

    # Every line, and every byte near the ends of lines.
    size = len(data)
    ends = [place for place in range(size) if data[place : place + 1] == b"\n"]
    for cut in sorted({near for end in ends for near in range(end - 2, end + 4) if 0 < near < size}):
        assert records(path, cut) == found, cut


@pytest.mark.parametrize("pages_in_stream", [1, 3])
def test_streams_of_bzip2_are_cut_anywhere(tmp_path: Path, monkeypatch, pages_in_stream: int) -> None:
    monkeypatch.setattr(cut_files, "CELL_BYTES", 256)
    monkeypatch.setattr(cut_files, "SEARCH_BYTES", 200)
    pages = [written for written, *_ in PAGES]
    streams = ["".join(pages[start : start + pages_in_stream]) for start in range(0, len(pages), pages_in_stream)]
    path = tmp_path / "x-pages-articles-multistream.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(part.encode()) for part in (HEADER, *streams, "</mediawiki>\n")))

    whole = records(path)
    assert told(whole) == [text for _, *texts in PAGES for text in texts]
    for cut in range(1, path.stat().st_size, 37):
        assert without_places(records(path, cut, cut + 500)) == without_places(whole), cut


def test_what_is_buffered_changes_nothing(tmp_path: Path, monkeypatch) -> None:
    blanks = ["\u200b", " \u3000", "\x85", "\t", "\r", " \u200b a", "《a》", "a\rb", "'' a", "\u00a0\r"]
    pages = [page(number, "A", f"Text.\n{blank}\nMore.\n\n{blank}\n{blank}End.") for number, blank in enumerate(blanks)]
    pages += [page(99, "A", "Too long.\n" * 4000), *(written for written, *_ in PAGES)]
    (path := tmp_path / "dump.xml").write_text(dump(*pages), newline="")
    found = []
    for size in (1, 7, 100, 1000, 100_000):
        monkeypatch.setattr(
            table, "open_range", lambda file, *_, size=size: io.BufferedReader(io.FileIO(file.path), size)
        )
        found.append(records(path))
    assert all(same == found[0] for same in found)
    assert told(found[0])[0] == "Text.\n\nMore.\n\n\u200bEnd."


def test_a_page_in_one_line_is_rejected_and_an_end_that_is_missing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    lines = ["<mediawiki>", *(page(number, "A", "Text.").replace("\n", "") for number in (1, 2))]
    path.write_text("\n".join([*lines, page(3, "A", "Text.")]))
    for cut in (0, 20, 400, path.stat().st_size - 5):
        assert told(records(path, cut)) == [NOT_ALONE, NOT_ALONE, "Text.", NO_END], cut


def test_a_dump_in_one_line_has_its_end_and_advice(command, tmp_path: Path) -> None:
    (tmp_path / "dump.xml").write_text(dump(page(1, "A", "Text.")).replace("\n", ""))
    assert told(records(tmp_path / "dump.xml")) == [NOT_ALONE]
    done = command("shard", "--input", tmp_path / "dump.xml", "--output", tmp_path / "text")
    assert done.returncode == 3 and f"{NOT_ALONE}, at byte" in done.stderr and "xmllint --format" in done.stderr
    done = command("shard", "--input", tmp_path / "dump.xml", "--output", tmp_path / "text", "--max_bad_ratio", 1)
    assert done.returncode == 3 and "xmllint --format" in done.stderr


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress])
def test_a_truncated_dump_in_a_folder_is_no_other_xml(command, tmp_path: Path, compress) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.txt").write_text("A text. It is read.\n")
    (tmp_path / "in" / "wiki.xml.x").write_bytes(compress(dump(page(1, "A", ARTICLE)).encode())[:-20])
    suffix = "bz2" if compress is bz2.compress else "gz"
    (tmp_path / "in" / "wiki.xml.x").rename(tmp_path / "in" / f"wiki.xml.{suffix}")
    done = command("shard", "--input", tmp_path / "in", "--output", tmp_path / "text")
    assert done.returncode == 3 and f"wiki.xml.{suffix} cannot be read to its end" in done.stderr


def test_pages_have_a_limit_and_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml"
    line = "A [[long]] page.\n\n"
    path.write_text(dump(page(1, "A", line * 1000), page(2, "B", line * 2000), page(3, "C", "Text.")))
    assert told(records(path)) == ["\n\n".join(["A long page."] * 1000), too_long_reason(30_000), "Text."]


def test_a_dump_of_redirects_is_no_bad_input(command, tmp_path: Path) -> None:
    pages = [page(1, "Cat", ARTICLE)] + [page(n, "A", "#REDIRECT [[Cat]]", redirect="Cat") for n in range(2, 30)]
    path = tmp_path / "wiki.xml.bz2"
    path.write_bytes(bz2.compress(dump(*pages).encode()))
    done = command("shard", "--input", path, "--output", tmp_path / "text", "--num_shards", 1)
    assert done.returncode == 0, done.stderr

    manifest = read_manifest(str(tmp_path / "text"), "text")
    assert [(entry.reason, entry.source, entry.count) for entry in manifest.ledger] == [(REDIRECT, "mediawiki", 28)]
    assert f"left out: 28 x {REDIRECT} (mediawiki)" in done.stdout + done.stderr
    assert not (tmp_path / "text" / "rejected").exists()
