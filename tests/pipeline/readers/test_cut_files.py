"""Large compressed files read in ranges: every record once, wherever the file is cut and wherever its frames begin."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.readers import cut_files, inputs, text
from pipeline.readers import open as opening
from pipeline.readers.inputs import FileRange, plan_splits, with_format
from pipeline.readers.listing import matching_files
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records
from schemas.errors import DataError
from tests.pipeline.readers.input_files import whole_range

SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"table"


def bgzf(data: bytes) -> bytes:
    """A member of BGZF: its size is in the extra field (SAM specification, 4.1)."""
    raw = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = raw.compress(data) + raw.flush()
    header = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff" + struct.pack("<HBBHH", 6, 66, 67, 2, len(body) + 25)
    return header + body + struct.pack("<II", zlib.crc32(data), len(data))


def zstd_with_tables(data: bytes) -> bytes:
    """A frame with a checksum and no size, as of the seekable format and pzstd: skippable frames stand between."""
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False)
    return SKIPPABLE + compressor.compress(data)


def zstd_of_blocks(data: bytes) -> bytes:
    """A frame of several blocks."""
    made = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(made, closefd=False) as writer:
        for start in range(0, len(data), 50):
            writer.write(data[start : start + 50])
            writer.flush(zstandard.FLUSH_BLOCK)
    return made.getvalue()


MAKE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", gzip.compress),
    "gzip-stored": (".gz", lambda data: gzip.compress(data, 0)),
    "bgzf": (".gz", bgzf),
    "zstd": (".zst", zstandard.ZstdCompressor(write_content_size=False).compress),
    "zstd-skippable": (".zst", zstd_with_tables),
    "zstd-blocks": (".zst", zstd_of_blocks),
    "bz2": (".bz2", bz2.compress),
}
LAYOUTS = {
    "jsonl": ("jsonl", "blank_line"),
    "line": ("text", "line"),
    "blank_line": ("text", "blank_line"),
    "file": ("text", "file"),
    "wiki": ("wikiextractor", "blank_line"),
    "dump": ("mediawiki", "blank_line"),
}
Found = list[Record | Rejected]


@pytest.fixture
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of 64 bytes, so that small files have many cut points."""
    monkeypatch.setattr(cut_files, "CELL_BYTES", 64)
    monkeypatch.setattr(cut_files, "SEARCH_BYTES", 40)


def records(file_range: FileRange, layout: str) -> Found:
    return list(read_records(file_range, RecordOptions("text", layout)))  # type: ignore[arg-type]


def in_ranges(whole: FileRange, layout: str, cuts: list[int]) -> list[Found]:
    bounds = sorted({0, whole.size, *(cut for cut in cuts if cut < whole.size)})
    ranges = [replace(whole, start=start, end=end) for start, end in itertools.pairwise(bounds)]
    return [records(file_range, layout) for file_range in ranges]


def all_of(parts: list[Found]) -> Found:
    return list(itertools.chain.from_iterable(parts))


def without_places(found: Found) -> list[Record | Rejected]:
    """The records. Blank lines are counted together, because where they are joined depends on what is buffered."""
    plain = [replace(record, position=0) for record in found]
    blank = sum(record.count for record in plain if isinstance(record, Rejected) and record.reason == "blank line")
    rest = [record for record in plain if not (isinstance(record, Rejected) and record.reason == "blank line")]
    return [*rest, Rejected("blank line", "jsonl", 0, count=blank)]


LINE = st.text('ab {}"<>é', max_size=60)
PIECE_OF_TEXT = st.one_of(
    LINE,
    LINE.map(lambda text: json.dumps({"text": text})),
    st.sampled_from(["", " ", "\t", '<doc id="1">', "</doc>", "<page>", "</page>", "x" * 300, "\x1f\x8b\x08\x00"]),
)
TEXT = st.lists(st.tuples(PIECE_OF_TEXT, st.sampled_from(["\n", "\n", "\r\n", "\n\n"])), max_size=40).map(
    lambda lines: "".join(itertools.chain(*lines)).encode()
)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("maker", MAKE)
@given(text=TEXT, frames=st.lists(st.integers(0, 2000), max_size=30), cuts=st.lists(st.integers(1, 3000), max_size=8))
@example(text=b"a\nb\n", frames=[2], cuts=[1, 20, 24, 28, 40])
@example(text=b"", frames=[0, 0, 0], cuts=[5, 30, 64, 100])
@settings(max_examples=15)
def test_every_record_comes_out_once(tmp_path_factory, maker: str, kind: str, text, frames, cuts) -> None:
    suffix, compress = MAKE[maker]
    path = tmp_path_factory.mktemp("cut") / f"x{suffix}"
    bounds = sorted({0, len(text), *(frame for frame in frames if frame < len(text))})
    parts = [text[start:end] for start, end in itertools.pairwise(bounds)] or [b""]
    path.write_bytes(b"".join(compress(part) for part in (*parts, *[b""] * frames.count(0))))

    form, layout = LAYOUTS[kind]
    whole = whole_range(path, form)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cut_files, "CELL_BYTES", 64)
        patched.setattr(cut_files, "SEARCH_BYTES", 40)
        found = in_ranges(whole, layout, cuts)
    assert without_places(all_of(found)) == without_places(records(whole, layout))


@pytest.mark.parametrize("kind", ["jsonl", "blank_line"])
@pytest.mark.parametrize("maker", ["gzip", "zstd", "bz2"])
def test_blank_lines_on_both_sides_of_a_cut_are_read_once(tmp_path: Path, small_cells, maker: str, kind: str) -> None:
    suffix, compress = MAKE[maker]
    frames = [b'\n\n\n{"text": "Word %d."}\n\n' % number for number in range(8)]
    form, layout = LAYOUTS[kind]
    plain = tmp_path / "x"
    plain.write_bytes(b"".join(frames))
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"".join(map(compress, frames)))

    whole = whole_range(path, form)
    found = in_ranges(whole, layout, list(range(64, whole.size, 64)))
    assert sum(map(bool, found)) >= 3
    assert without_places(all_of(found)) == without_places(records(whole_range(plain, form), layout))


@cache
def natural_text(size: int) -> bytes:
    rng = random.Random(0)
    words = [f"w{rng.randrange(5000)}" for _ in range(size // 5)]
    lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
    return "".join(line + ("\n\n" if i % 7 == 0 else "\n") for i, line in enumerate(lines)).encode()


@dataclass
class Large:
    """A file of `frames` frames of `text`, planned as `shard` does but cut above 0 bytes."""

    path: Path
    ranges: list[FileRange]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Large]:
    monkeypatch.setattr(inputs, "CUT_ABOVE", 0)
    for module in (inputs, cut_files):
        monkeypatch.setattr(module, "CELL_BYTES", 1 << 16)
    monkeypatch.setattr(cut_files, "SEARCH_BYTES", 1 << 14)

    def make(name: str, data: bytes) -> Large:
        path = tmp_path / name
        path.write_bytes(data)
        splits = plan_splits(matching_files(str(path)), "text")
        return Large(path, [file_range for split in splits for file_range in split.ranges])

    return make


@pytest.mark.parametrize(
    ("name", "compress", "frame_bytes", "layout"),
    [
        ("x.gz", gzip.compress, 3_000, "line"),
        ("x.gz", bgzf, 60_000, "blank_line"),
        ("x.zst", zstandard.compress, 50_000, "line"),
        ("x.zst", zstd_with_tables, 40_000, "blank_line"),
        ("x.bz2", lambda data: bz2.compress(data, 1), 10_000_000, "line"),
        ("x.bz2", bz2.compress, 60_000, "blank_line"),
    ],
)
def test_planned_ranges_share_the_work_and_read_the_text_once(large, name, compress, frame_bytes, layout) -> None:
    """The test above has every layout with every compression."""
    text = natural_text(1_500_000)
    parts = [text[start : start + frame_bytes] for start in range(0, len(text), frame_bytes)]
    made = large(name, b"".join(map(compress, parts)))
    assert len(made.ranges) > 5

    found = [records(file_range, layout) for file_range in made.ranges]
    whole = records(whole_range(made.path, "text"), layout)
    assert without_places(all_of(found)) == without_places(whole)
    assert sum(bool(part) for part in found) >= 3


@pytest.mark.parametrize("name", ["x.gz", "x.zst"])
def test_a_file_of_one_frame_is_read_by_its_first_range_and_searched_by_none(large, monkeypatch, name: str) -> None:
    text = natural_text(1_500_000)
    made = large(name, {"x.gz": gzip.compress, "x.zst": zstandard.compress}[name](text))
    monkeypatch.setattr(cut_files, "FRAME_FORMATS", {})
    first, *others = made.ranges
    assert all(records(file_range, "line") == [] for file_range in others)
    monkeypatch.undo()
    assert sum(record.size for record in records(first, "line") if isinstance(record, Record)) > 1_000_000


def test_a_frame_that_does_not_say_how_long_it_is_is_read_by_one_range(large) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    made = large("x.zst", compressor.compress(natural_text(1_500_000)))
    found = [records(file_range, "line") for file_range in made.ranges]
    assert len(made.ranges) > 5 and found[0] and not any(found[1:])


DAMAGED = {
    "gzip": ("x.gz", lambda data: gzip.compress(data, 6), "gzip member"),
    "zstd": ("x.zst", zstd_with_tables, "zstd frame"),
    "bz2": ("x.bz2", bz2.compress, "bz2 (block|stream)"),
}


@pytest.mark.parametrize("place", [0, 12, *(pytest.param(place, marks=pytest.mark.thorough) for place in (1, 500))])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_anywhere_is_an_error_with_its_place(large, kind: str, place: int) -> None:
    """Also at the beginning of the first frame of a range, which its reader then does not find."""
    name, compress, frame = DAMAGED[kind]
    text = natural_text(1_500_000)
    frames = [compress(text[start : start + 60_000]) for start in range(0, len(text), 60_000)]
    starts = [0, *itertools.accumulate(map(len, frames))]

    for number in range(1, len(frames), 6):
        header = len(SKIPPABLE) if kind == "zstd" else 0
        data = bytearray(b"".join(frames))
        data[starts[number] + header + place] ^= 0x55
        made = large(name, bytes(data))
        with pytest.raises(DataError, match=rf"{name}.*the {frame} that begins at byte") as raised:
            for file_range in made.ranges:
                records(file_range, "line")
        named = int(str(raised.value).split("at byte ")[1].split(" ")[0].replace(",", ""))
        assert starts[number - 1] <= named <= starts[number + 1]


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_cut_off_is_an_error_of_its_last_range(large, kind: str) -> None:
    name, compress, frame = DAMAGED[kind]
    text = natural_text(1_500_000)
    data = b"".join(compress(text[start : start + 60_000]) for start in range(0, len(text), 60_000))
    for missing in (1, 100, 10_000):
        made = large(name, data[:-missing])
        with pytest.raises(DataError, match=rf"the {frame}.* that begins at byte"):
            for file_range in made.ranges:
                records(file_range, "line")


def test_compressed_data_within_compressed_data_is_refused_rather_than_read_twice(large) -> None:
    inner = gzip.compress(natural_text(10_000))
    outer = [gzip.compress(natural_text(100_000)), gzip.compress(inner * 90, 0), gzip.compress(b"End.\n" * 30)]
    made = large("x.gz", b"".join(outer))
    with pytest.raises(DataError, match=r"compressed data within compressed data"):
        for file_range in made.ranges:
            records(file_range, "line")


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_bomb_in_one_range_is_named(large, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(opening, "ALWAYS_ALLOWED", 4 << 20)
    name, compress, _ = DAMAGED[kind]
    rng = random.Random(0)
    noise = [compress(rng.randbytes(30_000).hex().encode() + b"\n") for _ in range(20)]
    bomb = [compress(b"\n" * (30 << 20)) for _ in range(3)]
    made = large(name, b"".join(noise[:10] + bomb + noise[10:]))
    with pytest.raises(DataError, match=rf"{name} grows beyond \d+ MB"):
        for file_range in made.ranges:
            records(file_range, "line")


def test_places_in_a_later_range_count_from_its_first_frame(large) -> None:
    text = natural_text(1_500_000).replace(b"\n\n", b"\n")
    lines = text.splitlines(keepends=True)
    lines[len(lines) // 2] = b"\xff" * 9 + b"\n"
    text = b"".join(lines)
    frames = [zstandard.compress(text[start : start + 30_000]) for start in range(0, len(text), 30_000)]
    made = large("x.zst", b"".join(frames))

    ((file_range, record),) = (
        (file_range, record)
        for file_range in made.ranges
        for record in records(file_range, "line")
        if isinstance(record, Record) and record.undecodable
    )
    starts = [0, *itertools.accumulate(map(len, frames))]
    first_frame = next(number for number, start in enumerate(starts) if start >= file_range.start)
    assert text[30_000 * first_frame + record.position :].startswith(b"\xff" * 9)
    assert file_range.place(record.position) == {
        "path": str(made.path),
        "place": record.position,
        "compressed_start": file_range.start,
    }


def test_an_encoding_that_is_not_line_safe_is_not_cut(large, tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(b"".join(gzip.compress(f"Line {i}.\n".encode("utf-16-le")) for i in range(20_000)))
    (split,) = plan_splits(matching_files(str(path)), "text", "utf-16-le")
    (file_range,) = split.ranges
    assert file_range.end == path.stat().st_size > 2 * (1 << 16)
    assert len(records(file_range, "line")) == 20_000


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_that_must_not_be_cut_is_read_by_the_first_of_its_ranges(tmp_path, monkeypatch, suffix: str) -> None:
    """Of many files, the launcher does not know the formats."""
    monkeypatch.setattr(inputs, "MAX_CHECKED_FILES", 0)
    monkeypatch.setattr(inputs, "CUT_ABOVE", 0)
    monkeypatch.setattr(inputs, "CELL_BYTES", 64)
    monkeypatch.setattr(inputs, "SPLIT_BYTES", 100)
    rows = [f"Number {number}." for number in range(100)]
    path = tmp_path / f"x.csv{suffix}"
    data = "\n".join(["text", *rows]).encode()
    path.write_bytes(gzip.compress(data) if suffix else data)

    ranges = [one for split in plan_splits(matching_files(str(path)), "auto") for one in split.ranges]
    first, *others = [records(with_format(one), "line") for one in ranges]
    assert [record.text for record in first if isinstance(record, Record)] == rows
    assert len(others) >= 2 and not any(others)


def test_a_range_in_which_no_document_begins_is_not_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The river is long.\n" * 9000)
    whole = whole_range(path, "text")
    read = 0
    all_lines = text.all_lines

    def counted(*arguments: Any) -> Any:
        nonlocal read
        for line in all_lines(*arguments):
            read += 1
            yield line

    monkeypatch.setattr(text, "all_lines", counted)
    assert records(replace(whole, start=19_000, end=38_000), "blank_line") == []
    assert read <= 1001
