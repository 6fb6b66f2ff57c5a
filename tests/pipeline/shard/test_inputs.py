import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.shard import inputs
from pipeline.shard.formats import detect_format
from pipeline.shard.inputs import Piece, plan_splits, with_format
from pipeline.shard.listing import matching_files
from pipeline.shard.record import Record
from pipeline.shard.records import read_records
from schemas.errors import DataError, UsageError


def test_patterns_and_lists_are_sorted_and_each_file_is_taken_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x" * 3)
    found = matching_files(f"{tmp_path}/*.txt,{tmp_path}/c.jsonl, {tmp_path}/a.txt")
    assert [(file.path, file.size) for file in found] == [
        (str(tmp_path / name), 3) for name in ("a.txt", "b.txt", "c.jsonl")
    ]


def test_relative_patterns_stay_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest names its inputs and should not tell whose machine it was made on."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    (file,) = matching_files("texts/*.txt")
    assert (file.path, file.size) == ("texts/a.txt", 1)
    assert matching_files("texts/a.txt") == [file]


def test_a_pattern_that_matches_nothing_stops_the_job(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UsageError, match=r"nothing/\*\.txt matches no file"):
        matching_files(f"{tmp_path}/a.txt,{tmp_path}/nothing/*.txt")
    with pytest.raises(UsageError, match=r"is a folder\. Name its files"):
        matching_files(str(tmp_path))
    with pytest.raises(UsageError, match="--input is empty"):
        matching_files(" , ")


def test_large_files_are_cut_and_small_ones_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 10)
    for name, size in {"a.jsonl": 25, "b.jsonl.gz": 8, "c.txt": 3, "d.txt": 4, "e.txt": 4, "f.jsonl": 0}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    splits = plan_splits(matching_files(f"{tmp_path}/*"), "auto")
    cut = [[(Path(piece.path).name, piece.start, piece.end) for piece in split.pieces] for split in splits]
    assert cut == [
        [("a.jsonl", 0, 10)],
        [("a.jsonl", 10, 20)],
        [("a.jsonl", 20, 25)],
        [("b.jsonl.gz", 0, 8)],
        [("c.txt", 0, 3), ("d.txt", 0, 4)],
        [("e.txt", 0, 4), ("f.jsonl", 0, 0)],
    ]
    assert [split.index for split in splits] == list(range(6))


@pytest.mark.parametrize("name", ["x.parquet", "known-by-its-magic"])
def test_each_row_group_belongs_to_the_piece_that_holds_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 500)
    path = tmp_path / name
    texts = [str(i) * 50 for i in range(400)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=50)

    splits = plan_splits(matching_files(str(path)), "auto")
    pieces = [piece for split in splits for piece in split.pieces]
    assert len(pieces) == -(-path.stat().st_size // 500)
    assert [record.text for piece in pieces for record in records_of(piece)] == texts


def records_of(piece: Piece) -> list[Record]:
    found = list(read_records(with_format(piece), "text", "line"))
    assert all(isinstance(record, Record) for record in found)
    return [record for record in found if isinstance(record, Record)]


def test_a_damaged_parquet_file_is_named_before_the_job_starts_and_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["A b."]}), path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        plan_splits(matching_files(str(path)), "auto")

    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 0)
    (split,) = plan_splits(matching_files(str(path)), "auto")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        records_of(split.pieces[0])


def test_formats_are_detected_by_name_or_first_bytes(tmp_path: Path) -> None:
    wiki = tmp_path / "wiki_00"
    plain = tmp_path / "book.txt.gz"
    wiki.write_text('<doc id="1" url="" title="A">\nA\n\nText.\n</doc>\n')
    plain.write_bytes(gzip.compress(b"Once upon a time.\n"))
    assert detect_format(str(wiki)) == "wikiextractor"
    assert detect_format(str(plain)) == "text"
    assert detect_format("x.json.zst") == "jsonl"
    assert detect_format("x.parquet") == "parquet"
