"""What `--format auto` and `--encoding` take a file for: text is not refused, and other things are not read as text."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from pipeline.shard.decompression import compression_of
from pipeline.shard.formats import detect_format
from pipeline.shard.inputs import Piece, plan_splits
from pipeline.shard.listing import matching_files
from schemas.errors import DataError

PROSE = b"The river is long. It runs to the sea.\nAnother line here.\n\n" * 20
LONG_RECORD = json.dumps({"text": "word " * 20_000}).encode() + b"\n" + json.dumps({"text": "A b."}).encode() + b"\n"
ROWS = b"1, a b c, x\n" * 30
POEM = b"Roses are red, violets are blue\n" + b"Sugar is sweet, and so are you\n" * 8
CSV = b"id,title,text\n" + b'1,"One, two",Some words.\n2,B,More words.\n' * 5
TSV = CSV.replace(b",", b"\t").replace(b"\t ", b", ")
ARRAY = b'[{"text": "A b."},\n{"text": "C d."}]\n'

TAKEN = [
    *((f"name-{name}", name, PROSE, "text") for name in ("doc", "html", "so", "tar", "zip")),
    ("name-moses-somali", "corpus.en-so.so", PROSE, "text"),
    ("magic-ID3", "x.txt", b"ID3 is an algorithm. It builds trees.\n" + PROSE, "text"),
    ("magic-BZh", "x.txt", b"BZh is a magic number.\n" + PROSE, "text"),
    ("magic-OggS", "x.txt", b"OggS begins each page.\n" + PROSE, "text"),
    ("magic-fLaC", "x.txt", b"fLaC begins a file.\n" + PROSE, "text"),
    ("magic-ftyp", "x.txt", b"The ftyp box is first.\n" + PROSE, "text"),
    ("magic-PAR1", "x.txt", b"PAR1 is a receptor.\n" + PROSE, "text"),
    ("prose-poem", "x.txt", POEM, "text"),
    ("prose-with-commas", "x.txt", b"Red, green, blue.\n" * 9, "text"),
    ("prose-braces", "x.txt", b"{braces} are no JSON.\n" + PROSE, "text"),
    ("prose-comment", "x.txt", b"<!-- a comment -->\n" + PROSE, "text"),
    ("jsonl", "x.txt", b'{"text": "A b."}\n' * 3, "jsonl"),
    ("jsonl-latin-1", "x.txt", '{"text": "Caf\u00e9 cr\u00e8me."}\n'.encode("latin-1") * 3, "jsonl"),
    ("jsonl-first-record-longer-than-the-head", "part-00000", LONG_RECORD, "jsonl"),
    ("jsonl-first-record-longer-than-the-head-gz", "part-00000.gz", gzip.compress(LONG_RECORD), "jsonl"),
    ("gz-in-capitals", "x.JSONL.GZ", gzip.compress(b'{"text": "A b."}\n'), "jsonl"),
]

REFUSED = [
    ("csv", "x.csv", CSV, "x.csv looks like CSV", "--text_key"),
    ("csv-by-content", "x.txt", CSV, "x.txt looks like CSV", "--format text"),
    ("csv-spaces-in-the-header", "data1", b"id, text, label\n" + ROWS, "data1 looks like CSV", "--text_key"),
    ("tsv", "x.txt", TSV, "x.txt looks like TSV", "--text_key"),
    ("html", "page", b"\n<!DOCTYPE html><html><p>Text.</p></html>", "page looks like HTML", "trafilatura"),
    ("html-after-a-comment", "x.txt", b"<!-- c --><head><title>x</title></head>", "looks like HTML", "trafilatura"),
    ("html-body", "x.txt", b"<body>Hi there.</body>\n", "looks like HTML", "trafilatura"),
    ("xml", "dump.xml.bz2", bz2.compress(b"<mediawiki>..."), "looks like XML", "WikiExtractor"),
    ("pdf", "x.txt", b"%PDF-1.4\n%\xe2\xe3", "x.txt looks like PDF", "pdftotext"),
    ("png", "x", b"\x89PNG\r\n\x1a\n\x00\x00", "looks like an image", "Leave it out"),
    ("mp3", "x", b"ID3\x04\x00\x00\x00", "looks like audio", "Leave it out"),
    ("docx", "x.txt", b"PK\x03\x04\x14\x00", "looks like an archive or office document", "Extract its text first"),
    ("doc", "x", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "looks like an office document", "Extract its text first"),
    ("so", "libx.so", b"\x7fELF\x02\x01", "looks like binary data", "Convert"),
    ("tar-gz", "x.tar.gz", gzip.compress(b"x" * 600), "looks like an archive", "Extract its text first"),
    ("7z", "x", b"7z\xbc\xaf\x27\x1c", "looks like an archive (7z)", "Extract its text first"),
    ("gz-without-suffix", "x.txt", gzip.compress(b"A b."), "looks like gzip", ".gz at the end"),
    ("bz2-without-suffix", "x.txt", bz2.compress(b"A b." * 99), "looks like bz2", ".bz2 at the end"),
    ("json-array", "arr", ARRAY, "looks like a JSON array", "jq -c '.[]'"),
    ("json-array-over-lines", "arr", b'[\n  {\n "text": "A b."\n }\n]\n', "looks like a JSON array", "jq -c '.[]'"),
    ("json-object-over-lines", "obj.txt", b'{\n "text": "A b. C d."\n}\n', "looks like JSON over several lines", "jq"),
]


@pytest.mark.parametrize(("name", "data", "form"), [pytest.param(*case[1:], id=case[0]) for case in TAKEN])
def test_text_is_taken_for_what_it_is(tmp_path: Path, name: str, data: bytes, form: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert detect_format(str(tmp_path / name)) == form


@pytest.mark.parametrize(("name", "data", "kind", "remedy"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED])
def test_what_is_not_text_is_refused(tmp_path: Path, name: str, data: bytes, kind: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as refusal:
        detect_format(str(tmp_path / name))
    assert kind in str(refusal.value)
    assert remedy in str(refusal.value)


CAFE = "Café crème. Très bon.\n\n" * 20


@pytest.mark.parametrize("encoding", ["cp1252", "gb18030", "koi8-r", "utf-16-le", "utf-32", "ascii"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_utf8_is_not_read_in_another_encoding(tmp_path: Path, encoding: str, suffix: str) -> None:
    path = tmp_path / f"x.txt{suffix}"
    path.write_bytes(gzip.compress(CAFE.encode()) if suffix else CAFE.encode())
    with pytest.raises(DataError, match="--encoding utf-8"):
        plan_splits(matching_files(str(path)), "text", encoding)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Plain words.\n" * 9, "cp1252"),
        (CAFE, "cp1252"),
        ("联通\n", "gb18030"),
        ("раб", "cp866"),
        ("河很长。下一句。\n" * 30, "utf-16-le"),
        ("A b.\n" * 9, "utf-16-be"),
        ("A b.\n" * 9, "utf-7"),
        ("東京は日本の首都です。\n" * 9, "iso2022_jp"),
    ],
)
def test_text_in_the_encoding_that_was_named_is_read(tmp_path: Path, text: str, encoding: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(text.encode(encoding))
    (split,) = plan_splits(matching_files(str(path)), "auto", encoding)
    assert len(split.pieces) == 1


def test_compression_is_known_by_a_suffix_in_any_case() -> None:
    assert [compression_of(f"x.TXT{suffix}") for suffix in (".GZ", ".Bz2", ".XZ", ".zst")] == [
        "gzip",
        "bz2",
        "xz",
        "zstd",
    ]


def test_a_field_of_a_piece_cannot_be_passed_in_the_place_of_another() -> None:
    with pytest.raises(TypeError):
        Piece("x.txt", 0, 1, 1, 1, "version", "text", None, "cp1252")  # type: ignore[misc]
