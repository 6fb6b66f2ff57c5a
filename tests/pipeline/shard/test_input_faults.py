"""Bad, hostile and foreign input to `shard`.

Each try ends in time, with its exit code and one line that says what happened and what to do. Ids name the group of
tries and the try.
"""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.shard import inputs
from pipeline.shard.inputs import plan_splits
from pipeline.shard.listing import matching_files
from pipeline.shard.record import Record
from pipeline.shard.records import read_records
from pipeline.shard.undecodable import UndecodableBytes
from schemas import shards
from schemas.errors import DataError
from schemas.manifest import Manifest, read_manifest
from tests.conftest import after

COMPRESS = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
PROSE = "The cat sat on the mat. It was happy there. The dog was not.\n"
Make = Callable[[Path], list[object]]


def zst_of_newlines(path: Path, megabytes: int, line: bytes) -> None:
    block = line * ((1 << 20) // len(line))
    with open(path, "wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for _ in range(megabytes):
            writer.write(block)


def file_of(name: str, data: bytes, *flags: object) -> Make:
    """An input of one file with these bytes, and the flags to read it with."""

    def make(folder: Path) -> list[object]:
        (folder / name).write_bytes(data)
        return [folder / name, *flags]

    return make


def zst_bomb(line: bytes) -> Make:
    def make(folder: Path) -> list[object]:
        path = folder / "bomb.txt.zst"
        zst_of_newlines(path, 600, line)
        return [path]

    return make


def parquet(columns: dict[str, list], names: list[str], *flags: object, **options) -> Make:
    def make(folder: Path) -> list[object]:
        arrays = [pa.array(column) for column in columns.values()]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), folder / "x.parquet", **options)
        return [folder / "x.parquet", *flags]

    return make


def streams(suffix: str, damage: Callable[[list[bytes]], bytes]) -> Make:
    """An input of ten compressed streams one behind the other, damaged."""
    parts = [COMPRESS[suffix](PROSE.encode() * 20) for _ in range(10)]
    return file_of(f"many.txt{suffix}", damage(parts))


def flipped(stream: int, byte: int = 0) -> Callable[[list[bytes]], bytes]:
    def damage(parts: list[bytes]) -> bytes:
        data = bytearray(b"".join(parts))
        data[sum(map(len, parts[:stream])) + byte] ^= 0x55
        return bytes(data)

    return damage


def one_word(character: bytes) -> Make:
    # Below the size from which worker processes are started.
    return file_of("x.txt", character * (3 << 20))


MARKS = ("e" + "\u0301\u0316" * 250_000 + ". Next.").encode()
SPLIT_MARKS = ("e" + "\u0f73" * 250_000 + ". Next.").encode()
LINES = "".join(f"Line {i} is a document. It has two sentences.\n" for i in range(1500))
FRENCH = "Café crème brûlée. Très bon, à l'hôtel où l'été fut décidé.\n" * 30
RUSSIAN = "Москва является столицей России. Вчера мы читали книгу о природе.\n" * 30
CHINESE = "北京是中国的首都。昨天我们读了一本关于自然的书，它很有意思，大家都喜欢。\n" * 30
JAPANESE = "東京は日本の首都です。昨日、私たちは自然についての本を読みました。\n" * 30
KOREAN = "서울은 대한민국의 수도이다. 어제 우리는 자연에 관한 책을 읽었고 아주 재미있었다.\n" * 30
POLISH = "Zażółć gęślą jaźń. Wczoraj był piękny dzień, a dziś jest później niż myśleliśmy.\n" * 30
CSV = b"id,title,text\n" + b'1,"One, two",Some words.\n2,B,More words.\n' * 5

TRIES: list[tuple[str, Make, int, list[str]]] = [
    ("A-one-word-y", one_word(b"y"), 3, ["long words removed: 1", "empty document", "put spaces between words"]),
    ("A-one-word-!", one_word(b"!"), 3, ["long words removed: 1"]),
    ('A-one-word-"', one_word(b'"'), 3, ["long words removed: 1"]),
    ("A-one-word-(", one_word(b"("), 3, ["long words removed: 1"]),
    (
        "A-no-newline",
        file_of("x.txt", b"word " * 4_000_000, "--direct_num_workers", 1),
        3,
        ["record above 16 MB, at byte 0 of", "x.txt", "--max_document_bytes"],
    ),
    ("B-combining-marks", file_of("x.txt", MARKS), 0, ["combining marks cut 499,970"]),
    ("B-marks-that-split", file_of("x.txt", SPLIT_MARKS), 0, ["combining marks cut"]),
    ("B-zst-of-newlines", zst_bomb(b"\n"), 3, ["bomb.txt.zst grows beyond 256 MB", "--max_decompression_ratio"]),
    ("B-zst-of-blank-lines", zst_bomb(b" \t\r\n"), 3, ["bomb.txt.zst grows beyond 256 MB"]),
    (
        "B-plain-newlines",
        file_of("x.txt", b"\n" * (64 << 20), "--direct_num_workers", 1),
        3,
        ["no document with any text"],
    ),
    (
        "B-plain-newlines-jsonl",
        file_of("x.jsonl", b"\n" * (40 << 20), "--direct_num_workers", 1),
        3,
        ["41,943,040 x blank line (jsonl)"],
    ),
    (
        "D-two-columns-of-a-name",
        parquet({"a": ["A b."], "b": ["C d."]}, ["text", "text"]),
        3,
        ["2 columns called 'text'"],
    ),
    (
        "D-two-sources",
        parquet({"a": ["A b."], "b": ["x"], "c": ["y"]}, ["text", "source", "source"]),
        3,
        ["2 columns called 'source'"],
    ),
    ("D-no-strings", parquet({"a": [1]}, ["text"]), 3, ["no column of strings"]),
    (
        "D-long-row",
        parquet({"a": ["w. " * (6 << 20), "A b."]}, ["text"]),
        3,
        ["record above 16 MB, at row 0 of"],
    ),
    (
        "D-rows-of-any-length-by-flag",
        parquet({"a": ["word word. " * 200, "A b."]}, ["text"], "--max_document_bytes", 2000, "--max_bad_ratio", 1),
        0,
        ["1 x record above 2,000 bytes (parquet)"],
    ),
    ("streams-bz2-flipped", streams(".bz2", flipped(2)), 3, ["many.txt.bz2 is damaged: bz2 stream 3", "at byte 2"]),
    ("streams-xz-flipped", streams(".xz", flipped(2)), 3, ["many.txt.xz is damaged: xz stream 3", "begins at byte"]),
    ("streams-gz-flipped", streams(".gz", flipped(2)), 3, ["many.txt.gz"]),
    ("streams-zst-flipped", streams(".zst", flipped(2)), 3, ["many.txt.zst"]),
    ("streams-bz2-inside", streams(".bz2", flipped(4, 40)), 3, ["many.txt.bz2 is damaged: bz2 stream 5"]),
    ("streams-xz-inside", streams(".xz", flipped(4, 40)), 3, ["many.txt.xz is damaged: xz stream 5"]),
    ("streams-bz2-garbage", streams(".bz2", lambda parts: b"".join(parts) + b"garbage"), 3, ["bz2 stream 11"]),
    ("streams-bz2-cut", streams(".bz2", lambda parts: b"".join(parts)[:-9]), 3, ["many.txt.bz2", "has no end"]),
    ("streams-xz-cut", streams(".xz", lambda parts: b"".join(parts)[:-9]), 3, ["many.txt.xz", "has no end"]),
    (
        "streams-xz-padding",
        streams(".xz", lambda parts: (b"\0" * 8).join(parts) + b"\0" * 70_000),
        0,
        ["600 sentences"],
    ),
    ("streams-bz2-whole", streams(".bz2", b"".join), 0, ["600 sentences"]),
    ("encoding-latin-1", file_of("x.txt", FRENCH.encode("latin-1")), 3, ["first at byte 3", "--encoding cp1252"]),
    ("encoding-in-gz", file_of("x.txt.gz", gzip.compress(FRENCH.encode("cp1252"))), 3, ["byte 3", "--encoding cp1252"]),
    (
        "encoding-latin-1-jsonl",
        file_of("x.jsonl", json.dumps({"text": FRENCH}, ensure_ascii=False).encode("latin-1")),
        3,
        ["x.jsonl is not UTF-8", "--encoding cp1252"],
    ),
    ("encoding-wrong-name", file_of("x.txt", b"A b.", "--encoding", "utf-9"), 2, ["'utf-9'", "Did you mean utf_8?"]),
    ("encoding-not-of-text", file_of("x.txt", b"A b.", "--encoding", "zip"), 2, ["'zip'"]),
    ("encoding-wrong-one", file_of("x.txt", RUSSIAN.encode(), "--encoding", "ascii"), 3, ["is not ASCII"]),
    (
        "encoding-few-bad-bytes",
        file_of("x.txt", PROSE.encode() * 100 + b"A \xff b."),
        0,
        ["1 undecodable bytes were removed, the first at byte 6,102 of"],
    ),
    (
        "encoding-damaged-utf-8",
        file_of("x.txt", CHINESE.encode().replace("。".encode(), b"\xe3\x80")),
        3,
        ["x.txt is not UTF-8", "No encoding that was tried fits"],
    ),
    ("language-code", file_of("x.txt", b"A b.", "--language", "xx"), 2, ["--language 'xx'", "code of ISO 639"]),
    ("language-name", file_of("x.txt", b"A b.", "--language", "Germna"), 2, ["Did you mean german?"]),
    ("language-fallback", file_of("x.txt", b"A b.", "--language", "swe"), 0, ["Swedish (sv)", "those of English (en)"]),
    ("format-csv", file_of("x.csv", CSV), 3, ["x.csv looks like CSV", "--text_key", "--format text"]),
    ("format-given", file_of("x.csv", CSV, "--format", "text"), 0, ["1 documents"]),
    ("format-prose-with-commas", file_of("x.txt", b"Red, green, blue.\n" * 9), 0, ["1 documents"]),
    ("format-json-lines-by-content", file_of("x.txt", b'{"text": "A b."}\n' * 3), 0, ["3 documents"]),
    (
        "layout-one-document",
        file_of("x.txt", LINES.encode()),
        0,
        ["1,500 lines at byte 0 of", "x.txt", "--text_layout line"],
    ),
    (
        "limit-document",
        file_of("x.txt", b"A b.\n\n" + PROSE.encode() * 50, "--max_document_bytes", 1000, "--max_bad_ratio", 0.5),
        0,
        ["left out: 1 x record above 1,000 bytes (text)"],
    ),
    (
        "limit-document-jsonl",
        file_of("x.jsonl", json.dumps({"text": PROSE * 50}).encode(), "--max_document_bytes", 1000),
        3,
        ["record above 1,000 bytes, at byte 0 of"],
    ),
    ("limit-not-a-number", file_of("x.txt", b"A b.", "--max_document_bytes", "0"), 2, ["'0' is not a whole number"]),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("make", "code", "messages"), [pytest.param(*t[1:], id=t[0]) for t in TRIES])
def test_a_try_ends_with_its_code_and_one_line(command, tmp_path: Path, make: Make, code: int, messages) -> None:
    path, *flags = make(tmp_path)
    done = command("shard", "--input", path, "--output", tmp_path / "out", *flags)

    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    assert "Traceback" not in printed
    for message in messages:
        assert message in printed
    assert (tmp_path / "out" / "manifest.json").exists() == (code == 0)
    if code:
        assert done.stderr.startswith("clozeline: ") and done.stderr.count("\n") == 1


def test_a_huge_string_of_a_dictionary_needs_no_memory_for_its_rows(tmp_path: Path) -> None:
    """20,000 rows of one string of 21 MB: 420 GB of text in a small file."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["w. " * 7_000_000]))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": column}), path, store_schema=False)
    shard = (sys.executable, "-m", "pipeline", "shard", "--input", path, "--output", tmp_path / "out")
    done = subprocess.run(
        after("resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))", *shard),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 3, done.stderr
    assert "100.00% of the records are bad" in done.stderr and "record above 16 MB, at row 0 of" in done.stderr
    assert "Traceback" not in done.stderr


def shard(command, folder: Path, *arguments: object) -> tuple[Manifest, list[str]]:
    """The manifest and the sentences of a text folder made by these arguments."""
    done = command("shard", "--output", folder, "--num_shards", 1, *arguments)
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(str(folder), "text")
    table = shards.decode_table((folder / manifest.shards[0].path).read_bytes(), "text", shards.TEXT_SCHEMA)
    return manifest, [sentence for row in table["sentences"].to_pylist() for sentence in row]


READ = [
    ("fr-latin-1", FRENCH, "latin-1", "cp1252"),
    ("fr-cp1252", FRENCH, "cp1252", "cp1252"),
    ("fr-mac", FRENCH, "mac_roman", "mac_roman"),
    ("pl-iso8859-2", POLISH, "iso8859-2", "iso8859-2"),
    ("pl-cp1250", POLISH, "cp1250", "cp1250"),
    ("ru-cp1251", RUSSIAN, "cp1251", "cp1251"),
    ("ru-koi8-r", RUSSIAN, "koi8-r", "koi8-r"),
    ("ru-cp866", RUSSIAN, "cp866", "cp866"),
    ("ru-utf-16", RUSSIAN, "utf-16", "utf-16"),
    ("zh-gb18030", CHINESE, "gb18030", "gb18030"),
    ("zh-utf-16-le", CHINESE, "utf-16-le", "utf-16-le"),
    ("zh-utf-32", CHINESE, "utf-32", "utf-32"),
    ("ja-shift_jis", JAPANESE, "shift_jis", "shift_jis"),
    ("ja-euc_jp", JAPANESE, "euc_jp", "euc_jp"),
    ("ko-euc_kr", KOREAN, "euc_kr", "cp949"),
    ("en-utf-16-be", "A b. Plain words.\n" * 30, "utf-16-be", "utf-16-be"),
]


@pytest.mark.parametrize(("text", "written", "named"), [pytest.param(*case[1:], id=case[0]) for case in READ])
def test_the_encoding_that_the_error_names_reads_the_file(tmp_path: Path, text: str, written: str, named: str) -> None:
    for name, data in {"x.txt": text.encode(written), "x.txt.xz": lzma.compress(text.encode(written))}.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"--encoding {named}\b"):
            documents(path, "utf-8")
        assert documents(path, named) == text.splitlines()


def documents(path: Path, encoding: str) -> list[str]:
    """The lines of a file, read in pieces of 1,000 bytes where it can be cut."""
    size = path.stat().st_size
    (split,) = plan_splits(matching_files(str(path)), "text", encoding)
    whole = split.pieces[0]
    cuts = [0, size] if whole.is_whole_file else [*range(0, size, 1000), size]
    pieces = [replace(whole, start=start, end=end) for start, end in itertools.pairwise(cuts)]

    found = []
    for piece in pieces:
        undecodable = UndecodableBytes(piece, max_ratio=0.001)
        for record in read_records(piece, "text", "line"):
            assert isinstance(record, Record)
            undecodable.add(record)
            found.append(record.text.rstrip("\n"))
        undecodable.check()
    return found


def test_a_job_reads_another_encoding_and_records_it(command, tmp_path: Path) -> None:
    (tmp_path / "utf8.txt").write_text(CHINESE)
    (tmp_path / "gb.txt").write_bytes(CHINESE.encode("gb18030"))
    (tmp_path / "wide.txt.bz2").write_bytes(bz2.compress(CHINESE.encode("utf-16")))
    fingerprints = set()
    for name, encoding in {"utf8.txt": "utf-8", "gb.txt": "GB18030", "wide.txt.bz2": "UTF16"}.items():
        manifest, _ = shard(command, tmp_path / encoding, "--input", tmp_path / name, "--encoding", encoding)
        assert manifest.options["encoding"] == {"UTF16": "utf-16"}.get(encoding, encoding.lower())
        fingerprints.add(manifest.fingerprint)
    assert len(fingerprints) == 1


@pytest.mark.parametrize("given", ["de", "GER", "German"])
def test_names_of_a_language_are_one_language(command, tmp_path: Path, given: str) -> None:
    text = "Am 3. Oktober kam er bzw. sie. Das war z. B. am 4. Mai so. Ende."
    (tmp_path / "x.txt").write_text(text)
    manifest, sentences = shard(command, tmp_path / "out", "--input", tmp_path / "x.txt", "--language", given)
    assert manifest.options["language"] == manifest.statistics["language"] == "de"
    assert sentences == ["Am 3. Oktober kam er bzw. sie.", "Das war z. B. am 4. Mai so.", "Ende."]


def test_the_end_of_shard_says_what_was_left_out_and_cleaned(command, tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": "One\x00 two.\u00a0Three four.", "source": "web"}),
        json.dumps({"text": " ", "source": "web"}),
        "[]",
        "",
        json.dumps({"text": "Twice.", "source": "wiki"}),
        json.dumps({"text": "Twice.", "source": "wiki"}),
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    flags = ("--input", tmp_path / "x.jsonl", "--max_bad_ratio", 0.5, "--dedup", "exact")
    done = command("shard", "--output", tmp_path / "out", *flags)
    assert done.stdout.splitlines()[1:] == [
        "  left out: 1 x blank line (jsonl)",
        "  left out: 1 x duplicate document (wiki)",
        "  left out: 1 x empty document (web)",
        "  left out: 1 x line is not a JSON object (jsonl)",
        "  cleaned: control characters removed 1, spaces made plain 1",
    ]
    assert done.stderr == ""


def test_undecodable_bytes_are_counted_over_the_pieces_of_a_file(command, tmp_path: Path, monkeypatch) -> None:
    """Damage in one piece of a large file is measured against the whole file, wherever the file is cut."""
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 10_000)
    data = (PROSE.encode() * 20 + b"\n") * 40
    (tmp_path / "x.txt").write_bytes(data[:25_000] + b"\xff" * 60 + data[25_000:])
    shard_flags = ("shard", "--input", tmp_path / "x.txt", "--output", tmp_path / "out")
    done = command(*shard_flags)
    assert done.returncode == 3 and "60 of about" in done.stderr and "first at byte 25,000," in done.stderr
    assert command(*shard_flags, "--max_undecodable_ratio", 0.01).returncode == 0
