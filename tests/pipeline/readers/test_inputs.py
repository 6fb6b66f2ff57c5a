import os
import shutil
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.readers import inputs
from pipeline.readers.inputs import FileRange, plan_splits, with_format
from pipeline.readers.listing import is_unchanged, list_inputs, matching_files, without
from pipeline.readers.record import Record, RecordOptions
from pipeline.readers.table import read_records
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
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"matches only folders"):
        matching_files(f"{tmp_path}/fold*")
    with pytest.raises(UsageError, match=r"as in corpus/\*\*/\*\.txt"):
        matching_files(f"{tmp_path}/**.txt")
    with pytest.raises(UsageError, match="--input is empty"):
        matching_files(" , ")


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_a_folder_stands_for_the_files_in_it(tmp_path: Path, store: str) -> None:
    names = ("b.txt", "a [1]/z.txt", "a [1]/deep/c.txt", ".git/x.txt", "a [1]/.hidden", "._a.txt")
    root = f"{tmp_path}/texts" if store == "disk" else f"memory://folder{tmp_path}"
    for name in names:
        with fsspec.open(f"{root}/{name}", "wb", auto_mkdir=True):
            pass

    for written in (root, f"{root}/"):
        listing = list_inputs(written, f"{root}/b.txt")
        paths = [file.path.removeprefix(f"{root}/").split(f"{tmp_path.name}/")[-1] for file in listing.files]
        assert paths == ["a [1]/deep/c.txt", "a [1]/z.txt", "b.txt"]
        # A file that is named too is not left out if it is not text.
        assert listing.in_folders == {file.path for file in listing.files[:2]}
        assert listing.folders == [written]


def test_a_folder_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("x")
    (tmp_path / "texts").mkdir()
    for name, target in (("linked", "elsewhere"), ("loop", "texts"), ("b.txt", "elsewhere/a.txt")):
        (tmp_path / "texts" / name).symlink_to(tmp_path / target)
    monkeypatch.chdir(tmp_path)
    found = matching_files("texts")
    assert [(file.path, file.size) for file in found] == [("texts/b.txt", 1), ("texts/linked/a.txt", 1)]

    (tmp_path / "texts" / "dead").symlink_to("nothing")
    with pytest.raises(DataError, match="dead, a link to nothing"):
        matching_files("texts")
    (tmp_path / "texts" / "dead").unlink()
    (tmp_path / "texts" / "itself").symlink_to("itself")
    with pytest.raises(DataError, match="itself, a link to nothing or itself"):
        matching_files("texts")
    (tmp_path / "empty" / ".git").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"empty is a folder without files\. Those that begin with a dot"):
        matching_files("empty")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a.txt"]),
        ("*.txt", ["a.txt"]),
        ("**", ["a.txt", "deep/b.txt"]),
        ("**/*.txt", ["a.txt", "deep/b.txt"]),
        (".*", [".part.crc", "._a.txt"]),
        ("*/*.txt", ["deep/b.txt"]),
        (".git/con*", [".git/config"]),
        ("[.]*", None),
        ("*.crc", None),
        (".part.crc", [".part.crc"]),
    ],
)
def test_patterns_match_no_leading_dot_as_in_a_shell(tmp_path: Path, pattern: str, found: list[str] | None) -> None:
    for name in ("a.txt", "._a.txt", ".part.crc", "deep/b.txt", "deep/._b.txt", ".git/config", ".git/c.txt"):
        (tmp_path / ".top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".top" / name).write_text("x")
        fsspec.filesystem("memory").pipe(f"/dots{tmp_path}/{name}", b"x")

    for root in (f"{tmp_path}/.top", f"memory://dots{tmp_path}"):
        if found is None:
            with pytest.raises(UsageError, match="begins with a dot"):
                matching_files(f"{root}/{pattern}")
        else:
            paths = [file.path.split(f"{tmp_path.name}/")[1] for file in matching_files(f"{root}/{pattern}")]
            assert [path.removeprefix(".top/") for path in paths] == sorted(found)


def test_a_pattern_enters_linked_folders_as_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("x")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "texts" / "loop").symlink_to(tmp_path / "texts")
    assert [file.path for file in matching_files(f"{tmp_path}/texts/*/*.txt")] == [f"{tmp_path}/texts/linked/a.txt"]


def test_links_to_nothing_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for name in ("b.txt", "c.txt"):
        (tmp_path / name).symlink_to("not/fetched")
    with pytest.raises(DataError, match=r"2 of 3 files .*b\.txt.*git annex get"):
        matching_files(f"{tmp_path}/*.txt")
    with pytest.raises(DataError, match=r"1 of 1 files .*b\.txt.*git annex get"):
        matching_files(f"{tmp_path}/a.txt", f"{tmp_path}/b.txt")


def test_lists_may_come_from_a_shell(tmp_path: Path) -> None:
    for name in ("a.txt", "b, c.txt", "d.txt"):
        (tmp_path / name).write_text("x")
    whole = matching_files(f"{tmp_path}/*.txt")
    assert matching_files(*sorted(map(str, tmp_path.iterdir()))) == whole
    assert matching_files(f"{tmp_path}/a.txt,{tmp_path}/d.txt", f"{tmp_path}/b*") == whole


@pytest.mark.parametrize("pattern", ["x{1,2}.txt", "x{01..09}.txt", "*/{a,b}/*.txt"])
def test_quoted_braces_are_refused_with_the_reason(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match=r"braces.*without quotes"):
        matching_files(f"{tmp_path}/{pattern}")
    named = tmp_path / "x{1,2}.txt"
    named.write_text("x")
    assert [file.path for file in matching_files(str(named))] == [str(named)]


@pytest.mark.parametrize(
    "pattern", ["zip://*.jsonl::c.zip", "zip://a.txt::s3://bucket/c.zip", "simplecache::s3://b/x.txt"]
)
def test_chained_addresses_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"chains.*'::'"):
        matching_files(pattern)


def test_all_kinds_of_refused_files_are_told_at_once(tmp_path: Path) -> None:
    names = {"a.png": b"", "b.png": b"", "c.rss": b"", "d.txt": b"Text.", "e.parquet": b"no", "f.bin": b"\0" * 9}
    for name, data in names.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as refusal:
        plan_splits(matching_files(f"{tmp_path}/*"), "auto")
    told = str(refusal.value)
    assert told.startswith("5 of 6 input files are refused.")
    assert [
        told.count(part) for part in ("a.png looks like an image", "b.png", "c.rss looks", "f.bin holds control bytes")
    ] == [1, 0, 1, 1]
    assert "(and 1 more like it)" in told and "e.parquet is not a readable Parquet file" in told


def test_large_files_are_cut_and_small_ones_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 10)
    for name, size in {"a.jsonl": 25, "b.jsonl.gz": 8, "c.txt": 3, "d.txt": 4, "e.txt": 4, "f.jsonl": 0}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    splits = plan_splits(matching_files(f"{tmp_path}/*"), "auto")
    cut = [
        [(Path(file_range.path).name, file_range.start, file_range.end) for file_range in split.ranges]
        for split in splits
    ]
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
def test_each_row_group_belongs_to_the_range_that_holds_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 500)
    path = tmp_path / name
    texts = [str(i) * 50 for i in range(400)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=50)

    splits = plan_splits(matching_files(str(path)), "auto")
    ranges = [file_range for split in splits for file_range in split.ranges]
    assert len(ranges) == -(-path.stat().st_size // 500)
    assert [record.text for file_range in ranges for record in records_of(file_range)] == texts


def records_of(file_range: FileRange) -> list[Record]:
    found = list(read_records(with_format(file_range), RecordOptions("text", "line")))
    assert all(isinstance(record, Record) for record in found)
    return [record for record in found if isinstance(record, Record)]


def test_a_damaged_parquet_file_is_named_before_the_job_starts_and_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["A b."]}), path)
    (tmp_path / "first.parquet").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        plan_splits(matching_files(str(path)), "auto")

    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 0)
    (split,) = plan_splits(matching_files(str(tmp_path / "*.parquet")), "auto")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        records_of(split.ranges[1])


def test_a_file_is_one_however_its_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "b.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    spellings = ["a.txt", "./a.txt", str(tmp_path / "a.txt"), "b.txt", f"{tmp_path}/*"]
    found = list_inputs(*spellings)
    assert [file.path for file in found.files] == ["a.txt", "b.txt"]
    for exclude in ("./a.txt", str(tmp_path / "a.txt")):
        assert [file.path for file in without([found], [exclude])[0].files] == ["b.txt"]


def test_brackets_in_the_name_of_the_working_directory_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old [1]" / "in").mkdir(parents=True)
    (tmp_path / "old [1]" / "in" / "a.txt").write_text("words")
    monkeypatch.chdir(tmp_path / "old [1]")
    for pattern in ("in/*.txt", "./in/*.txt", "./in/../in/a.*", "**/*.txt", "*/a.txt", "in"):
        assert [file.path for file in list_inputs(pattern).files] == ["in/a.txt"]


def test_patterns_of_a_home_and_of_a_url_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("words")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    for pattern in ("~/*.txt", f"file://{tmp_path}/*.txt", f"{tmp_path}/*.txt"):
        found = list_inputs(pattern)
        assert [file.path for file in found.files] == expected
        assert [file.path for file in without([found], ["~/a.txt"])[0].files] == expected[1:]


def test_a_file_that_moved_with_its_time_is_unchanged(tmp_path: Path) -> None:
    first = tmp_path / "a.txt"
    first.write_text("words")
    [listed] = list_inputs(str(first)).files
    shutil.copy2(first, tmp_path / "b.txt")
    (tmp_path / "b.txt").rename(first)
    assert is_unchanged(str(first), listed.version)
    os.utime(first, (1, 1))
    assert not is_unchanged(str(first), listed.version)


def test_many_carriage_returns_take_no_longer_than_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one" + b"\r" * 400_000 + b"\ntwo")
    [split] = plan_splits(list_inputs(str(tmp_path / "a.txt")).files, "auto")
    records = read_records(with_format(split.ranges[0]), RecordOptions("text", "line"))
    assert [record.text.strip() for record in records if isinstance(record, Record)] == ["one", "two"]
