"""Bytes that are not in a file's encoding: when they fail a job, how they are reported, and under which name."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline.readers.inputs import FileRange, plan_splits
from pipeline.readers.listing import matching_files
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.table import read_records
from pipeline.readers.undecodable import UndecodableBytes, refuse_undecodable
from pipeline.shard.run_buffer import RunBuffer
from schemas.errors import DataError
from tests.conftest import made

PROSE = "The cat sat on the mat. It was happy there. The dog was not.\n"


def range_of(path: Path) -> FileRange:
    first, *_ = plan_splits(matching_files(str(path)), "auto")
    return first.ranges[0]


def counted(path: Path) -> UndecodableBytes:
    """What is undecodable in a file of lines. Raises DataError as a worker does."""
    undecodable = UndecodableBytes(range_of(path), max_ratio=0.001)
    for record in read_records(undecodable.file_range, RecordOptions("text", "line")):
        undecodable.add(record)
    undecodable.check()
    return undecodable


def report(path: str, count: int, size: int = 100) -> dict[str, Any]:
    fields = {"path": path, "encoding": "utf-8", "is_other": False, "likely": "", "first_place": 3}
    return fields | {"count": count, "worst_count": count, "size": size}


def test_a_file_name_that_is_not_utf8_is_reported(command, tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff.txt")
    long_line = "word " * 30 + "end.\n"
    (tmp_path / name).write_bytes(long_line.encode() * 150 + b"caf\xe9.\n" + PROSE.encode() * 1000)
    done = command("shard", "--input", tmp_path / name, "--output", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert "1 undecodable bytes were removed" in done.stderr
    statistics = json.loads((tmp_path / "out" / "manifest.json").read_text())["statistics"]
    assert statistics["undecodable"]["most"][0]["path"].endswith(r"/bad\xff.txt")
    assert statistics["unbroken_documents"]["first"]["path"].endswith(r"/bad\xff.txt")


def test_a_book_in_another_encoding_with_few_letters_of_it_is_refused(tmp_path: Path) -> None:
    """Its apostrophes would be lost. A larger ratio says that they may."""
    path = tmp_path / "x.txt"
    path.write_bytes((PROSE * 50 + "It wasn\u2019t there.\n").encode("cp1252") * 15)
    with pytest.raises(DataError, match=r"x\.txt is not UTF-8"):
        counted(path)
    refuse_undecodable([report("x", 15, 50_000) | {"is_other": True}], max_ratio=0.002)


@pytest.mark.parametrize(
    ("damage", "is_refused"),
    [
        (b"It cost \xa34 4s, _\xe0 propos_ of the caf\xe9.\n", True),
        (b"It cost \xa34 4s in the caf\xe9, or \xc2\xa35.\n", False),
        (b"In the caf\xc3 it isn\xe2\x80t dear.\n", False),
        (b"The caf\xe9 costs \x80 and \x81.\n", False),
    ],
)
def test_letters_and_signs_of_cp1252_in_a_file_without_utf8_are_no_damage(
    command, tmp_path: Path, damage: bytes, is_refused: bool
) -> None:
    (tmp_path / "x.txt").write_bytes(PROSE.encode() * 200 + damage * 2 + PROSE.encode() * 200)
    done = command("shard", "--input", tmp_path / "x.txt", "--output", tmp_path / "out", "--text_layout", "file")
    assert (done.returncode != 0) == is_refused, done.stderr
    assert ("give --encoding cp1252 to read it" in done.stderr) == is_refused

    flags = ("--text_layout", "file", "--encoding", "auto")
    auto = command("shard", "--input", tmp_path / "x.txt", "--output", tmp_path / "auto", *flags)
    assert ("undecodable bytes removed" not in auto.stdout) == is_refused, auto.stdout
    if is_refused:
        assert "Not UTF-8: 1 x cp1252." in command("inspect", tmp_path / "x.txt").stdout


def test_one_bad_byte_of_a_small_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(PROSE.encode() * 5 + b"\xe9")
    assert counted(tmp_path / "x.txt").count == 1


def test_many_small_files_in_another_encoding_are_refused() -> None:
    reports = [report(f"{i}.txt", count=3) for i in range(10)]
    refuse_undecodable(reports, 0.001, corpus_size=100_000)
    with pytest.raises(DataError, match=r"0.txt is not UTF-8"):
        refuse_undecodable(reports, 0.001, corpus_size=1000)


def test_a_compressed_file_is_judged_by_all_of_it(tmp_path: Path) -> None:
    """Its first 17 MB have twice as many undecodable bytes as allowed, all 62 MB have half as many."""
    rng = random.Random(0)
    words = [rng.randbytes(4).hex() for _ in range(10_000)]
    good = "".join(" ".join(rng.choices(words, k=2_000)) + "\n" for _ in range(60)).encode()
    bad = b"\x80".join(good[start : start + 500] for start in range(0, len(good), 500))
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(bad * 17 + good * 45, 1))

    assert counted(path).count == bad.count(b"\x80") * 17


def test_the_manifest_names_a_hundred_files_once_each(command, tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"{number:03}.txt").write_bytes(PROSE.encode() * 60 + b"\xe9 b.\n" * (1 + number // 100))
    made(command, tmp_path / "out", "shard", "--input", tmp_path / "*.txt")
    statistics = json.loads((tmp_path / "out" / "manifest.json").read_text())["statistics"]["undecodable"]
    paths = [Path(file["path"]).stem for file in statistics["most"]]
    assert statistics["count"] == 140 and statistics["files"] == 120
    assert len(paths) == 100 and paths == sorted(set(paths)) and paths[-20:] == [str(n) for n in range(100, 120)]


@pytest.mark.parametrize(
    ("lines", "line", "warned"),
    [(150, "word " * 30 + "end.", True), (150, "word " * 12, False), (90, "word " * 30, False), (1000, "a b", True)],
)
def test_lines_that_may_be_documents_are_noted(tmp_path: Path, lines: int, line: str, warned: bool) -> None:
    (tmp_path / "x.txt").write_text((line + "\n") * lines)
    file_range = range_of(tmp_path / "x.txt")
    documents = RunBuffer()
    for record in read_records(file_range, RecordOptions("text", "blank_line")):
        assert isinstance(record, Record)
        documents.note_unbroken(record, file_range)
    assert bool(documents.unbroken) == warned


@pytest.mark.parametrize(("damage", "is_older"), [("\ufffd".encode(), True), (b"\x80", False)])
def test_replacement_characters_of_the_files_are_known_from_undecodable_bytes(
    command, tmp_path: Path, damage: bytes, is_older: bool
) -> None:
    (tmp_path / "x.txt").write_bytes(PROSE.encode() * 60 + damage + b" end.\n")
    done = command("shard", "--input", tmp_path / "x.txt", "--output", tmp_path / "out")
    line = next(line for line in done.stdout.splitlines() if "undecodable bytes removed 1" in line)
    assert ("(U+FFFD in the files, where an earlier program could not decode a byte)" in line) == is_older
