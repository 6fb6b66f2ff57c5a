import gzip
from pathlib import Path

import pytest
import zstandard

from pipeline.shard import inputs
from pipeline.shard.inputs import matching_files, open_plain, plan_splits
from schemas.errors import UsageError


def test_patterns_and_lists_are_sorted_and_each_file_is_taken_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x" * 3)
    found = matching_files(f"{tmp_path}/*.txt,{tmp_path}/c.jsonl, {tmp_path}/a.txt")
    assert found == [(str(tmp_path / name), 3) for name in ("a.txt", "b.txt", "c.jsonl")]


def test_a_pattern_that_matches_nothing_stops_the_job(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match=r"nothing/\*\.txt matches no file"):
        matching_files(f"{tmp_path}/a.txt,{tmp_path}/nothing/*.txt")
    with pytest.raises(UsageError, match=r"is a folder\. Name its files"):
        matching_files(str(tmp_path))
    with pytest.raises(UsageError, match="--input is empty"):
        matching_files(" , ")


def test_only_plain_jsonl_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 10)
    files = [("a.jsonl", 25), ("b.jsonl.gz", 25), ("empty.jsonl", 0)]
    splits = plan_splits(files, "auto")
    assert [(s.path, s.start, s.end, s.compression) for s in splits] == [
        ("a.jsonl", 0, 10, None),
        ("a.jsonl", 10, 20, None),
        ("a.jsonl", 20, 25, None),
        ("b.jsonl.gz", 0, 25, "gzip"),
        ("empty.jsonl", 0, 0, None),
    ]
    assert [s.index for s in splits] == list(range(5))


def test_formats_are_told_by_name_or_first_bytes(tmp_path: Path) -> None:
    wiki, plain = tmp_path / "wiki_00", tmp_path / "book.txt.gz"
    wiki.write_text('<doc id="1" url="" title="A">\nA\n\nText.\n</doc>\n')
    plain.write_bytes(gzip.compress(b"Once upon a time.\n"))
    assert inputs.detect_format(str(wiki), None) == "wikiextractor"
    assert inputs.detect_format(str(plain), "gzip") == "text"
    assert inputs.detect_format("x.json.zst", "zstd") == "jsonl"


def test_many_zstd_frames_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "x.zst"
    path.write_bytes(b"".join(zstandard.compress(part) for part in (b"one ", b"two ", b"three")))
    with open_plain(str(path), "zstd") as file:
        assert file.read() == b"one two three"


def test_relative_patterns_stay_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest names its inputs and should not tell whose machine it was made on."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert matching_files("texts/*.txt") == matching_files("texts/a.txt") == [("texts/a.txt", 1)]
