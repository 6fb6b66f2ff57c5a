"""Text in other encodings and languages: `shard` reads it by the name that is given, which its errors suggest."""

from __future__ import annotations

import bz2
import itertools
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.readers.inputs import plan_splits
from pipeline.readers.listing import matching_files
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.table import read_records
from pipeline.readers.undecodable import UndecodableBytes
from schemas.errors import DataError
from schemas.manifest import Manifest, read_manifest
from tests.pipeline.readers.input_files import CHINESE, FRENCH, JAPANESE, KOREAN, POLISH, RUSSIAN
from tests.pipeline.text_rows import sentences_of

# Without mac_roman and iso8859-2, which the guess takes for others.
READ = [
    (FRENCH, "latin-1"),
    (FRENCH, "cp1252"),
    (POLISH, "cp1250"),
    (RUSSIAN, "cp1251"),
    (RUSSIAN, "koi8-r"),
    (RUSSIAN, "cp866"),
    (RUSSIAN, "utf-16"),
    (CHINESE, "gb18030"),
    (CHINESE, "utf-16-le"),
    (CHINESE, "utf-32"),
    (JAPANESE, "shift_jis"),
    (JAPANESE, "euc_jp"),
    (KOREAN, "euc_kr"),
    ("A b. Plain words.\n" * 30, "utf-16-be"),
]


@pytest.mark.parametrize(("text", "written"), [pytest.param(*case, id=case[1]) for case in READ])
def test_the_encoding_that_the_error_names_reads_the_file(tmp_path: Path, text: str, written: str) -> None:
    for name, data in {"x.txt": text.encode(written), "x.txt.xz": lzma.compress(text.encode(written))}.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"--encoding \S+ ?") as refusal:
            documents(path, "utf-8")
        named, other = re.findall(r"--encoding ([\w-]+)", str(refusal.value))
        assert other == "auto"
        assert documents(path, named) == text.splitlines()


def documents(path: Path, encoding: str) -> list[str]:
    """The lines of a file, read in ranges of 1,000 bytes where it can be cut."""
    size = path.stat().st_size
    (split,) = plan_splits(matching_files(str(path)), "text", encoding)
    whole = split.ranges[0]
    cuts = [0, size] if whole.is_whole_file else [*range(0, size, 1000), size]
    ranges = [replace(whole, start=start, end=end) for start, end in itertools.pairwise(cuts)]

    found = []
    for file_range in ranges:
        undecodable = UndecodableBytes(file_range, max_ratio=0.001)
        for record in read_records(file_range, RecordOptions("text", "line")):
            assert isinstance(record, Record)
            undecodable.add(record)
            found.append(record.text.rstrip("\n"))
        undecodable.check()
    return found


def shard(command, folder: Path, *arguments: object) -> tuple[Manifest, list[str]]:
    """The manifest and the sentences of a text folder made by these arguments."""
    done = command("shard", "--output", folder, "--num_shards", 1, *arguments)
    assert done.returncode == 0, done.stderr
    return read_manifest(str(folder), "text"), sentences_of(folder)


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


def test_a_language_by_its_name_decides_where_sentences_end(command, tmp_path: Path) -> None:
    text = "Am 3. Oktober kam er bzw. sie. Das war z. B. am 4. Mai so. Ende."
    (tmp_path / "x.txt").write_text(text)
    manifest, sentences = shard(command, tmp_path / "out", "--input", tmp_path / "x.txt", "--language", "German")
    assert manifest.options["language"] == manifest.statistics["language"] == "de"
    assert sentences == ["Am 3. Oktober kam er bzw. sie.", "Das war z. B. am 4. Mai so.", "Ende."]
