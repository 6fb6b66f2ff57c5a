"""What `--format auto` and `--encoding` take a file for: text is not refused, and other things are not read as text."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.beam.estimate import text_bytes_of
from pipeline.readers.formats import find_format, refuse_binary
from pipeline.readers.inputs import plan_splits, with_format
from pipeline.readers.listing import matching_files
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.table import READERS, read_records
from schemas.errors import DataError
from tests.pipeline.readers.input_files import dump

PROSE = b"The river is long. It runs to the sea.\nAnother line here.\n\n" * 20
LONG_RECORD = json.dumps({"text": "word " * 20_000}).encode() + b"\n" + json.dumps({"text": "A b."}).encode() + b"\n"
ROWS = b"1, a b c, x\n" * 30
POEM = b"Roses are red, violets are blue\n" + b"Sugar is sweet, and so are you\n" * 8
CSV = b"id,title,text\n" + b'1,"One, two",Some words.\n2,B,More words.\n' * 5
TSV = CSV.replace(b",", b"\t").replace(b"\t ", b", ")
WIKI = b'<doc id="1" url="https://x.org/?curid=1" title="A">\nA\n\nText.\n</doc>\n'
WARC = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 9\r\n\r\nA b. C d.\r\n\r\n"
CUES = b"1\n00:00:01,000 --> 00:00:02,500\nWe went home\n\n"
TREE = b"# sent_id = 1\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_\n\n"
MAIL = b"Return-Path: <a@x.org>\nFrom: a@x.org\nSubject: Hello\n there\nDate: today\n\nHello.\n"
FASTA = b">sp|P1|A protein\nMKTAYIAKQRQISFVKSHFSRQ\nLEERLGLIEVQAPILS\n"
DS_STORE = b"\0\0\0\1Bud1\0\0\x10\0\0\0\x08\0" + b"\0" * 90
OFFICE = b"PK\x03\x04" + b"." * 26 + b"[Content_Types].xml"
ENTITIES = b"Title\tO\n\nEU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n"
NESTED = "\u05d4\u05db\u05dc O O^O\n\u05e2\u05de\u05dd O^O O^S-GPE\n\n\u05dc\u05d0 O O\n".encode()
PARTS = b"The\tDT\nquick\tJJ\nfox\tNN\nsaw\tVBD\nthe\tDT\ndog\tNN\nof\tIN\nthe\tDT\nking\tNN\n.\t.\n\n" * 2
SENSES = b"the\tdet\nfox\tnoun\nsaw\tverb\nthe\tdet\ndog\tnoun\n\n"
LEXICON = b"".join(b"a%s\tnoun\nb%s\tverb\n\n" % (word, word) for word in PROSE.split()[:8])
LITANY = b"Kyrie eleison\nChriste eleison\nKyrie eleison\n\nKYRIE ELEISON\nCHRISTE ELEISON\nKYRIE ELEISON\n\n" * 9
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"

TAKEN = [
    *((f"name-{name}", name, PROSE, "text") for name in ("doc", "html", "so", "tar", "zip")),
    ("name-moses-somali", "corpus.en-so.so", PROSE, "text"),
    ("magic-BZh", "x.txt", b"BZh is a magic number.\n" + PROSE, "text"),
    ("magic-PAR1", "x.txt", b"PAR1 is a receptor.\n" + PROSE, "text"),
    ("prose-poem", "x.txt", POEM, "text"),
    ("prose-with-commas", "x.txt", b"Red, green, blue.\n" * 9, "text"),
    ("prose-braces", "x.txt", b"{braces} are no JSON.\n" + PROSE, "text"),
    ("prose-comment", "x.txt", b"<!-- a comment -->\n" + PROSE, "text"),
    ("prose-many-comments", "x.txt", b"<!-- a comment -->\n" * 100 + PROSE, "text"),
    ("jsonl", "x.txt", b'{"text": "A b."}\n' * 3, "jsonl"),
    ("jsonl-latin-1", "x.txt", '{"text": "Caf\u00e9 cr\u00e8me."}\n'.encode("latin-1") * 3, "jsonl"),
    ("jsonl-first-record-longer-than-the-head", "part-00000", LONG_RECORD, "jsonl"),
    ("jsonl-first-record-longer-than-the-head-gz", "part-00000.gz", gzip.compress(LONG_RECORD), "jsonl"),
    ("jsonl-as-python-writes-it", "part-00000", b'{"text": "A b.", "score": NaN}\n' * 3, "jsonl"),
    ("wikiextractor-after-a-mark", "wiki_00", b"\xef\xbb\xbf" + WIKI, "wikiextractor"),
    ("mediawiki", "dump.xml.bz2", bz2.compress(dump().encode()), "mediawiki"),
    ("mediawiki-after-a-declaration", "dump", b"\xef\xbb\xbf<?xml version='1.0'?>\n" + dump().encode(), "mediawiki"),
    ("prose-quoted", "x.txt", b">From the old letters\nHE WROTE: I am well.\n" + PROSE, "text"),
    ("prose-of-a-play", "x.txt", b"From: the hill.\nTo be or not to be.\n" + PROSE, "text"),
    ("prose-with-plus-signs", "x.txt", b"C+A+B- and x+y-z, +ABC- too, a+b = c+d.\n" + PROSE, "text"),
    ("prose-chat", "x.log", b"<ann> Hello there.\n<bob> Hello.\n" + PROSE, "text"),
    ("prose-numbered", "x.txt", b"1\nThe first chapter.\n\n2\nThe second one.\n" + PROSE, "text"),
    ("markdown", "x.md", b"---\ntitle: A\n---\n# A\n- one\n" + PROSE, "text"),
    ("latex", "x.tex", b"\\documentclass{article}\n" + PROSE, "text"),
    ("text-with-a-few-control-bytes", "x.txt", PROSE + b"\0\0\x1b[0m" + PROSE, "text"),
    ("html", "page", b"\n<!DOCTYPE html><html><p>Text.</p></html>", "html"),
    ("html-after-many-comments", "x.txt", b"<!-- c -->\n" * 100 + b"<html>", "html"),
    ("html-after-a-comment", "x.txt", b"<!-- c --><head><title>x</title></head>", "html"),
    ("html-body", "x.txt", b"\xef\xbb\xbf<body>Hi there.</body>\n", "html"),
    ("html-as-xml", "x", b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">\n<html>', "html"),
    ("html-by-name", "x.HTM.gz", gzip.compress("<p>Grüße".encode("latin-1")), "html"),
    ("warc", "x.gz", gzip.compress(WARC), "warc"),
    ("warc-1.1", "x", WARC.replace(b"1.0", b"1.1"), "warc"),
    ("warc-with-pages-in-utf-16", "x", WARC + "Grüße ".encode("utf-16") * 99, "warc"),
    ("wet-by-name", "x.warc.wet.gz", gzip.compress(WARC), "warc"),
    ("csv", "x.csv", CSV, "csv"),
    ("csv-by-content", "x.txt", CSV, "csv"),
    ("csv-spaces-in-the-header", "data1", b"id, text, label\n" + ROWS, "csv"),
    ("csv-gz", "x.csv.gz", gzip.compress(CSV), "csv"),
    ("tsv", "x.txt", TSV, "csv"),
    ("tab", "x.TAB", PROSE, "csv"),
    ("words-and-numbers", "words.txt", b"".join(b"word%d \t %d\n" % (i, i * 99) for i in range(20)), "text"),
    ("words-and-classes", "words.tsv", LEXICON, "csv"),
    ("words-and-translations", "x.tsv", b"word\ttranslation\nthe\tder\n\nthe\tdie\n\na\tein\n\na\teine\n", "csv"),
    ("words-in-rows", "x.tsv", b"text\tlabel\ngood\tpos\nbad\tneg\ngood\tpos\nfine\tpos\n" + b"bad\tneg\n" * 20, "csv"),
    ("numbers-in-blocks", "x.txt", b"1.5\t2\tA\n1.5\t3\tA\n\n" * 20, "text"),
    ("prose-litany", "x.txt", LITANY, "text"),
    ("arrow-file", "x", b"ARROW1\0\0", "arrow"),
    ("arrow-stream", "x", b"\xff\xff\xff\xff\0\1\0\0\x10\0\0\0", "arrow"),
    ("pdf", "x.txt", b"%PDF-1.4\n%\xe2\xe3", "pdf"),
    ("zip", "x.txt", b"PK\x03\x04\x14\x00", "zip"),
    ("tgz", "x.TGZ", b"", "tar"),
    ("gz-in-capitals", "x.JSONL.GZ", gzip.compress(b'{"text": "A b."}\n'), "jsonl"),
]

REFUSED = [
    ("xml", "x.xml.bz2", bz2.compress(b"<a>Text.</a>"), "looks like XML", "docs/input.md"),
    ("xml-by-content", "x", b"<?xml version='1.0'?>\n<wiki>\n</wiki>", "looks like XML", "docs/input.md"),
    ("index-of-a-dump", "x.txt", b"600:10:A\n600:12:B:c\n600:13:D\n", "looks like the index", "Leave it out"),
    ("png", "x", b"\x89PNG\r\n\x1a\n\x00\x00", "looks like an image", "Leave it out"),
    ("mp3", "x", b"ID3\x04\x00\x00\x00", "holds control bytes", "Leave it out"),
    ("xlsx", "x.txt", OFFICE, "looks like an office document", "docx or odt"),
    ("pages", "x.pages", b"PK\x03\x04", "looks like an office document", "docx or odt"),
    ("rar", "x", b"Rar!\x1a\x07\x01\0", "looks like an archive", "Unpack it"),
    ("jar", "x.jar", b"PK\x03\x04", "looks like an archive", "Unpack it"),
    ("doc", "x", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "looks like an office document", "soffice"),
    ("rtf", "x.txt", b"{\\rtf1\\ansi Hello.}", "looks like an office document", "soffice"),
    ("so", "libx.so", b"\x7fELF\x02\x01", "holds control bytes", "Leave it out"),
    ("avro", "x.avro", b"Obj\1", "looks like a file of data", "Convert it"),
    ("7z", "x", b"7z\xbc\xaf\x27\x1c", "looks like an archive", "7z x"),
    ("ds-store", ".DS_Store", DS_STORE, "holds control bytes", "Leave it out"),
    ("compressed-by-an-unknown-program", "x", random.Random(0).randbytes(9000), "holds control bytes", "Leave it out"),
    ("checksum-of-hadoop", "x.crc", b"crc\0\0\0\2\0abc", "holds control bytes", "Leave it out"),
    ("wat", "x.warc.wat.gz", gzip.compress(WARC), "looks like a WAT file", "read the WARC or WET file"),
    ("xml-with-a-declaration", "x", b'<?xml version="1.0"?>\n<rss><p>', "looks like XML", "--format text"),
    ("srt", "x", b"\xef\xbb\xbf" + CUES, "looks like subtitles", "pysubs2"),
    ("vtt", "x.txt", b"WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n", "looks like subtitles", "pysubs2"),
    ("ass", "x.txt", b"[Script Info]\r\nTitle: x\r\n", "looks like subtitles", "pysubs2"),
    ("man", "open.2", b".TH OPEN 2\n.SH NAME\nopen\n", "looks like a man page", "mandoc"),
    ("mdoc", "ls.1", b'.\\" Copyright\n.Dd May 1, 2020\n.Dt LS 1\n', "looks like a man page", "--format text"),
    ("man-link", "creat.2", b".so man2/open.2\n", "looks like a man page", "mandoc"),
    ("conllu", "x.txt", TREE, "looks like CoNLL", "sed -n 's/^# text = //p'"),
    ("conll-2003", "x.txt", b"-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\n", "looks like CoNLL", "--format text"),
    ("iob", "x.txt", b"EU\tB-ORG\nrejects\tO\nBritish\tB-MISC\n", "looks like CoNLL", "--format text"),
    *(
        (f"{case}-{name}", name, data, "looks like CoNLL", f"--format {form}")
        for case, data in (
            ("entities", ENTITIES),
            ("nested", NESTED),
            ("parts-of-speech", PARTS),
            ("senses", SENSES * 9),
        )
        for name, form in (("x.txt", "text"), ("x.bmes", "text"), ("x.tsv", "csv"), ("x.csv", "csv"))
    ),
    ("conllu-as-a-table", "x.tsv", TREE, "looks like CoNLL", "--format csv"),
    ("entities-with-spaces", "x.txt", ENTITIES.replace(b"\t", b" "), "looks like CoNLL", "--format text"),
    ("entities-with-commas", "x.csv", ENTITIES.replace(b"\t", b","), "looks like CoNLL", "--format csv"),
    ("vertical", "x.vert", WIKI, "looks like SGML or vertical text", "beautifulsoup4"),
    ("vertical-by-content", "x", b'<doc id="1" title="x">\nText.\n</doc>\n', "looks like SGML", "beautifulsoup4"),
    ("sgml", "x.txt", b'<refset setid="a" srclang="en">\n<doc docid="b">', "looks like SGML", "beautifulsoup4"),
    ("trec", "x.txt", b"<DOC>\n<DOCNO> 1 </DOCNO>\n<TEXT>\nText.\n", "looks like SGML", "beautifulsoup4"),
    ("tmx", "x.txt", b'<tmx version="1.4">\n', "looks like XML", "--format text"),
    ("mbox", "x", b"From a@x.org Mon Jan  1 00:00:00 2024\nFrom: a\n\nHello.\n", "looks like e-mail", "mailbox"),
    ("eml", "x.txt", MAIL.replace(b"\n", b"\r\n"), "looks like e-mail", "mailbox"),
    ("postscript", "x.txt", b"%!PS-Adobe-3.0\n", "looks like PostScript", "ps2ascii"),
    ("gettext", "x.po", b'# de\nmsgid ""\nmsgstr ""\n', "looks like a gettext catalog", "po2txt"),
    ("sql", "x.txt", b"-- MySQL dump\n\nDROP TABLE IF EXISTS `page`;\n", "looks like an SQL dump", "JSON lines"),
    ("yaml", "x.yml", b"text: Hello.\n", "looks like YAML", "yq"),
    ("yaml-by-content", "x.txt", b"- id: 1\n  text: Hello.\n- id: 2\n  text: Bye.\n", "looks like YAML", "yq"),
    ("fasta", "x.txt", FASTA, "looks like FASTA", "seqkit"),
    ("fasta-dna", "x", b">chr1\nacgtnnacgttaacc\n", "looks like FASTA", "seqkit"),
    ("fastq", "x.txt", b"@read1\nACGTACGT\n+\nIIIIIIII\n", "looks like FASTA", "seqkit"),
    ("lfs", "x.txt", LFS, "a Git LFS pointer", "git lfs pull"),
    ("gz-without-suffix", "x.txt", gzip.compress(b"A b."), "looks like a compressed file", "with .gz"),
    ("bz2-without-suffix", "x.txt", bz2.compress(b"A b." * 99), "looks like a compressed file", ".bz2"),
    ("notebook", "a.ipynb", b'{\n "cells": []\n}\n', "looks like a notebook", "nbconvert"),
]


def detect_format(path: Path) -> str:
    (file,) = matching_files(str(path))
    return find_format(file, "auto", "utf-8")


@pytest.mark.parametrize(("name", "data", "form"), [pytest.param(*case[1:], id=case[0]) for case in TAKEN])
def test_text_is_taken_for_what_it_is(tmp_path: Path, name: str, data: bytes, form: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert detect_format(tmp_path / name) == form


@pytest.mark.parametrize(("name", "data", "kind", "remedy"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED])
def test_what_is_not_text_is_refused(tmp_path: Path, name: str, data: bytes, kind: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as refusal:
        detect_format(tmp_path / name)
    assert kind in str(refusal.value)
    assert remedy in str(refusal.value)
    if "control bytes" in kind or "image" in kind or "office" in kind:
        assert "--format" not in str(refusal.value), "nobody should read it as text"


NOISE = [*map(random.Random(0).gauss, [0] * 4000, [3000] * 4000)]
ELF = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0\1\0\0\0\x90\x32\0\0\0\0\0\0@\0\0\0\x0a\0\0\0\x20\0\0\0" * 40


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(random.Random(0).randbytes(1 << 16), id="random"),
        pytest.param(struct.pack("<4000h", *map(int, NOISE)), id="pcm"),
        pytest.param(struct.pack("<4000f", *NOISE), id="float32"),
        pytest.param(ELF, id="elf"),
    ],
)
def test_binary_data_is_not_taken_for_another_encoding(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(DataError, match="holds control bytes, so it is not text"):
        detect_format(tmp_path / "x")


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
        ("Москва. Вчера мы читали книгу.\n\0" * 30, "cp1251"),
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
    assert len(split.ranges) == 1


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("東京は日本の首都です。ひらがなとカタカナ。\n", "iso2022_jp"),
        ("서울은 대한민국의 수도이다. 어제 우리는 책을 읽었다.\n", "iso2022_kr"),
        ("北京是中国的首都。他们在这里生活。\n", "hz"),
        ("Café crème, à l'hôtel où l'été fut décidé.\n", "utf-7"),
        ("Москва является столицей России.\n", "utf-7"),
        ("Hà Nội là thủ đô của Việt Nam. Thành phố rất đẹp.\n", "utf-7"),
        ("भारत एक देश है। यह बहुत बड़ा है।\n", "utf-7"),
    ],
)
@pytest.mark.parametrize("wanted", ["auto", "text", "jsonl"])
def test_letters_hidden_in_ascii_are_refused_with_their_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, encoding: str, wanted: Any
) -> None:
    path = tmp_path / "x.txt"
    lines = json.dumps({"text": text * 3}, ensure_ascii=False) if wanted == "jsonl" else "Subject: none\n\n" + text * 3
    path.write_bytes(lines.encode(encoding))
    with pytest.raises(DataError, match=f"is {encoding.upper()}.*--encoding {encoding}"):
        plan_splits(matching_files(str(path)), wanted)

    monkeypatch.setattr("pipeline.readers.inputs.MAX_CHECKED_FILES", 0)
    (split,) = plan_splits(matching_files(str(path)), wanted)
    with pytest.raises(DataError, match=f"--encoding {encoding}"):
        with_format(split.ranges[0])

    (split,) = plan_splits(matching_files(str(path)), wanted, encoding)
    (record, *_) = read_records(with_format(split.ranges[0]), RecordOptions("text", "file"))
    assert isinstance(record, Record) and text in record.text


def test_a_switch_between_character_sets_that_python_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\x1b$)A\x0e1109JG\x0f is the capital.\n" * 3)
    with pytest.raises(DataError, match=r"an ISO 2022 encoding.*iconv -f ISO-2022-CN"):
        plan_splits(matching_files(str(tmp_path / "x.txt")), "auto")


@pytest.mark.parametrize("suffix", [suffix for reader in READERS.values() for suffix in reader.suffixes])
def test_a_suffix_of_a_format_is_not_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"")
    (file,) = matching_files(str(path))
    refuse_binary(file)
    assert suffix in READERS[find_format(file, "auto", "utf-8")].suffixes


def test_a_dry_run_knows_compressed_files_and_parquet_by_every_suffix() -> None:
    names = ("x.parquet", "x.PARQUET", "x.pq", "x.Pq", "x.txt", "x.GZ")
    assert [text_bytes_of(name, 10) for name in names] == [20, 20, 20, 20, 10, 35]
