"""Bad, hostile and foreign input to `shard`.

Each try ends in time, with its exit code and one line that says what happened and what to do.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.readers import inputs
from pipeline.readers.listing import matching_files
from schemas.errors import StorageError
from tests.conftest import after
from tests.pipeline.readers.input_files import (
    CHINESE,
    PROSE,
    Make,
    file_of,
    flipped,
    one_word,
    parquet,
    renamed,
    streams,
)
from tests.processes import ran

MARKS = ("e" + "\u0301\u0316" * 250_000 + ". Next.").encode()
SPLIT_MARKS = ("e" + "\u0f73" * 250_000 + ". Next.").encode()
LINES = "".join(f"Line {i} is a document. It has two sentences.\n" for i in range(1500))
CSV = b"id,title,text\n" + b'1,"One, two",Some words.\n2,B,More words.\n' * 5

READ: dict[str, tuple[Make, *tuple[str, ...]]] = {
    "combining-marks": (file_of("x.txt", MARKS), "combining marks cut 499,970"),
    "marks-that-split": (file_of("x.txt", SPLIT_MARKS), "combining marks cut"),
    "bytes-not-utf-8": (
        parquet({"a": [b"A b.", b"Caf\xe9."]}, ["text"]),
        "2 documents",
        "1 undecodable bytes were removed, the first at row 1 of",
        "x.parquet.\n",
    ),
    "xz-padding": (streams(".xz", lambda parts: (b"\0" * 8).join(parts) + b"\0" * 70_000), "600 sentences"),
    "encoding-few-bad-bytes": (
        file_of("x.txt", PROSE.encode() * 100 + b"A \xff b."),
        "1 undecodable bytes were removed, the first at byte 6,102 of",
    ),
    "language-fallback": (file_of("x.txt", b"A b.", "--language", "swe"), "Swedish (sv)", "those of English (en)"),
    "csv-rows": (
        file_of("x.csv", CSV + b'3,A\n4,"A" b,c\n5,a\rb,c\n', "--max_bad_ratio", 0.5),
        "1 x row with a line end (CR) outside of quotes (csv)",
        "1 x row with a quote that is not closed or not doubled (csv)",
        "1 x row with another number of fields than the header (csv)",
    ),
    "format-given": (file_of("x.csv", CSV, "--format", "text"), "1 document,"),
    "layout-one-document": (
        file_of("x.txt", LINES.encode()),
        "1,500 lines at byte 0 of",
        "x.txt",
        "--text_layout line",
    ),
    "limit-document": (
        file_of("x.txt", b"A b.\n\n" + PROSE.encode() * 50, "--max_document_bytes", 1000, "--max_bad_ratio", 0.5),
        "left out: 1 x record above 1,000 bytes (text)",
    ),
}

MISTAKEN: dict[str, tuple[Make, *tuple[str, ...]]] = {
    "encoding-not-of-text": (file_of("x.txt", b"A b.", "--encoding", "zip"), "'zip'"),
    "language-code": (file_of("x.txt", b"A b.", "--language", "xx"), "--language 'xx'", "code of ISO 639"),
}

REFUSED: dict[str, tuple[Make, *tuple[str, ...]]] = {
    "one-word": (one_word(b"y"), "long words removed: 1", "empty document", "put spaces between words"),
    "no-newline": (
        file_of("x.txt", b"word " * 4_000_000, "--direct_num_workers", 1),
        "record above 16 MB, at byte 0 of",
        "x.txt",
        "--max_document_bytes",
    ),
    "newlines": (file_of("x.txt", b"\n" * (64 << 20), "--direct_num_workers", 1), "no document with any text"),
    "newlines-jsonl": (
        file_of("x.jsonl", b"\n" * (40 << 20), "--direct_num_workers", 1),
        "41,943,040 x blank line (jsonl)",
    ),
    "two-sources": (
        parquet({"a": ["A b."], "b": ["x"], "c": ["y"]}, ["text", "source", "source"]),
        "2 columns called 'source'",
    ),
    "nulls-alone": (parquet({"a": pa.nulls(2)}, ["text"]), "2 x empty document (parquet)"),
    "strings-not-utf-8": (
        parquet({"a": pa.array([b"caf\xe9 " * 20] * 9).view(pa.string())}, ["text"]),
        "x.parquet is not UTF-8",
        "the first at row 0;",
        "The texts of Parquet and Arrow files must be UTF-8",
    ),
    "compressed-parquet": (renamed(parquet({"a": ["A b."]}, ["text"]), "x.parquet.gz"), "Decompress it first"),
    "row-in-capitals": (
        renamed(parquet({"a": ["A b."]}, ["text"], "--max_document_bytes", 1), "x.PARQUET"),
        "at row 0 of",
    ),
    "place-in-utf-16": (
        file_of("x.jsonl", '{"text": "Café."}\n{\n'.encode("utf-16"), "--encoding", "utf-16"),
        "at byte 19 of the UTF-8 form of",
    ),
    "undecodable-in-utf-16": (
        file_of("x.txt", "Café au lait. ".encode("utf-16") * 9 + b"\x00\xdc" * 99, "--encoding", "utf-16"),
        "x.txt is not UTF-16",
        "of the UTF-8 form;",
        "Its encoding is unknown",
    ),
    "json-damaged": (
        file_of("x.jsonl", b'{"text": "A b."}\n{"id": 1, "text": "' + b"word " * 99 + b'" "n": 2}\n'),
        "line is not JSON (Expecting ',' delimiter), at byte 17 of",
        'word " "n": 2}',
        "raise --max_bad_ratio.\n",
    ),
    "json-other-keys": (
        file_of("x.jsonl", b'{"id": "7", "n": 1, "title": "A b.", "body": "Some words. More words."}\n' * 2),
        "no text under 'text'",
        "That record has strings under body, title, id: give the key of the text, as in --text_key body",
    ),
    "json-other-keys-allowed": (
        file_of("x.jsonl", b'{"body": "Some words."}\n' * 2, "--max_bad_ratio", 1),
        "2 x no text under 'text' (jsonl)",
        "That record has strings under body",
    ),
    "xz-flipped": (
        streams(".xz", flipped(2)),
        "many.txt.xz is damaged: the xz stream that begins at byte",
        "before is whole",
    ),
    "bz2-garbage": (
        streams(".bz2", lambda parts: b"".join(parts) + b"garbage"),
        "the bz2 stream that begins",
        "no header",
    ),
    "xz-cut": (streams(".xz", lambda parts: b"".join(parts)[:-9]), "many.txt.xz", "has no end"),
    "encoding-damaged-utf-8": (
        file_of("x.txt", CHINESE.encode().replace("。".encode(), b"\xe3\x80")),
        "x.txt is not UTF-8",
        "Its encoding is unknown",
    ),
    "csv-empty-header": (file_of("x.csv", b'"a\n\n'), "x.csv has no readable row of column names"),
    "csv-cr": (file_of("x.csv", b"id,text\r1,A b.\r"), "x.csv has no readable row", "CR alone", "tr '\\r' '\\n'"),
    "arrow-other": (file_of("x.arrow", PROSE.encode()), "x.arrow is not a readable Arrow file"),
    "json-as-lines": (file_of("x", b'[{"text": "A b."}]', "--format", "jsonl"), "--format json reads arrays"),
}
CODES = ((0, READ), (2, MISTAKEN), (3, REFUSED))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("code", "make", "messages"),
    [pytest.param(code, make, told, id=name) for code, tries in CODES for name, (make, *told) in tries.items()],
)
def test_a_try_ends_with_its_code_and_one_line(command, tmp_path: Path, code: int, make: Make, messages) -> None:
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
    command = after("resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))", *shard)
    done = ran(command, env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    assert done.returncode == 3, done.stderr
    assert "100.00% of the records are bad" in done.stderr and "record above 16 MB, at row 0 of" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_end_of_shard_says_what_was_left_out_and_cleaned(command, tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": "One\x00 two.\u00a0Three four.", "source": "web"}),
        json.dumps({"text": " ", "source": "web"}),
        '{"text": "cut o',
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
        "  left out: 1 x line is not JSON (it ends early) (jsonl)",
        "  cleaned: control characters removed 1, spaces made plain 1",
        f"  listed one by one in {tmp_path / 'out' / 'rejected'}",
    ]
    assert done.stderr == ""


def test_a_key_that_no_json_record_has_is_told(command, tmp_path: Path) -> None:
    records = [{"title": "One"}, {"title": "Two", "body": "A text. It is read."}, {"body": "Another text."}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    shard = ("shard", "--input", tmp_path / "x.jsonl", "--overwrite", "--output", tmp_path / "out", "--text_key")
    misspelled = command(*shard, "title,bdy")
    assert "none of the first 3 JSON records has a string under 'bdy' of --text_key title,bdy." in misspelled.stderr
    assert "Did you mean body?" in misspelled.stderr
    assert command(*shard, "title,body").stderr == ""


def test_undecodable_bytes_are_counted_over_the_ranges_of_a_file(command, tmp_path: Path, monkeypatch) -> None:
    """Damage in one range of a large file is measured against the whole file, wherever the file is cut."""
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 10_000)
    data = (PROSE.encode() * 20 + b"\n") * 40
    (tmp_path / "x.txt").write_bytes(data[:25_000] + b"\xff" * 60 + data[25_000:])
    shard_flags = ("shard", "--input", tmp_path / "x.txt", "--output", tmp_path / "out")
    done = command(*shard_flags)
    assert done.returncode == 3 and "60 of about" in done.stderr and "first at byte 25,000;" in done.stderr
    assert command(*shard_flags, "--max_undecodable_ratio", 0.01).returncode == 0


def test_an_output_that_is_the_folder_of_an_input_is_refused(command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words.\n")
    done = command("shard", "--input", tmp_path / "*", "--output", tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"--output {tmp_path} is the folder of the input {tmp_path}/a.txt" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


KEYED = "jsonl, json, parquet, arrow or csv"


@pytest.mark.parametrize(
    ("name", "flags", "warning"),
    [
        ("x.txt", ("--text_key", "body"), f"--text_key body changes nothing: no input is {KEYED}."),
        ("x.jsonl", ("--text_layout", "line"), "--text_layout line changes nothing: no input is text."),
        ("x.txt", ("--text_layout", "line", "--text_key", "text"), ""),
    ],
)
def test_a_flag_that_changes_nothing_is_told(command, tmp_path: Path, name: str, flags, warning: str) -> None:
    (tmp_path / name).write_text('{"text": "A b."}\n' if name.endswith("l") else "A b.\n")
    done = command("shard", "--input", tmp_path / name, "--output", tmp_path / "out", *flags)
    assert done.returncode == 0
    assert done.stderr == (f"clozeline: warning: {warning}\n" if warning else "")


def test_a_folder_is_read_without_what_is_not_text(command, tmp_path: Path, monkeypatch) -> None:
    """On which side the formats are found does not matter."""
    files = {
        "a.txt": b"Some words.\n",
        "deep/b.csv": b"text\nOther words.\n",
        "deep/c.jpg": b"",
        "deep/d": b"\x89PNG\r\n\x1a\n",
        "deep/e.rss": b"<p>Hello.",
        "f.bin": b"\0" * 99,
        ".hidden": b"\0",
    }
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    shard = ("shard", "--input", tmp_path / "in", "--max_bad_ratio", 0, "--output")
    done = command(*shard, tmp_path / "out")
    assert done.returncode == 0 and "2 documents" in done.stdout, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "  left out: 1 x file that looks like XML (folder): write its text as JSON lines first "
        "(docs/input.md has the lines of Python)",
        "  left out: 2 x file that looks like an image (folder)",
        "  left out: 1 x file that looks like binary data (folder)",
        f"  listed one by one in {tmp_path / 'out' / 'rejected'}",
    ]
    (rejected,) = (tmp_path / "out" / "rejected").iterdir()
    lines = list(map(json.loads, rejected.read_text().splitlines()))
    assert [Path(line["path"]).name for line in lines] == ["c.jpg", "d", "e.rss", "f.bin"]
    assert "docs/input.md" in lines[2]["shown"]

    named = ("shard", "--input", tmp_path / "in" / "**", "--output", tmp_path / "named")
    refused = command(*named)
    assert refused.returncode == 3 and "4 of 6 input files are refused" in refused.stderr

    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 0)
    refused = command(*named)
    assert refused.returncode == 3 and "c.jpg looks like an image" in refused.stderr
    assert command(*shard, tmp_path / "again").returncode == 0
    names = ("manifest.json", f"rejected/{rejected.name}")
    assert all((tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)

    # A format that is given is that of all files but those that hold no characters. What is named must be readable.
    as_text = command(*shard, tmp_path / "text", "--format", "text")
    assert "3 documents" in as_text.stdout and "2 x file that looks like an image (folder)" in as_text.stdout
    assert command("shard", "--input", tmp_path / "in", "--output", tmp_path / "in" / "out").returncode == 2


@pytest.mark.parametrize("name", ["a,b", "a[1]", "a b"])
def test_a_folder_of_any_name_is_read_and_descriptions_in_it_are_left_out(command, tmp_path: Path, name: str) -> None:
    """As `datasets` saves them: next to JSON over several lines."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "Some words."}\n')
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"text": "string"}}, indent=2))
    (folder / "list.json").write_text('[{"text": "One."}, {"text": "Two."}]')
    done = command("shard", "--input", folder, "--output", tmp_path / "out", "--max_bad_ratio", 0)
    assert done.returncode == 0 and "3 documents," in done.stdout, done.stderr
    assert "1 x JSON value without text (json)" in done.stdout


def test_an_empty_file_among_others_is_named(command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some words.\n")
    (tmp_path / "b.txt").touch()
    done = command("shard", "--input", tmp_path / "?.txt", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"clozeline: warning: 1 of 2 input files is empty, the first: {tmp_path}/b.txt\n"


def test_a_fault_of_the_network_is_not_blamed_on_the_disk(monkeypatch) -> None:
    """As s3fs and gcsfs raise it: an OSError, without an answer of the store."""

    class Unreachable(fsspec.AbstractFileSystem):
        protocol = "nowhere"

        def info(self, path, **_):
            raise socket.gaierror(-2, "Name or service not known")

        def glob(self, path, maxdepth=None, **_):
            return self.info(path)

    fsspec.register_implementation("nowhere", Unreachable, clobber=True)
    for pattern in ("nowhere://corpus/a.jsonl", "nowhere://corpus/*.jsonl"):
        with pytest.raises(StorageError, match=r"cannot be reached \(gaierror.*the credentials and the network"):
            matching_files(pattern)
