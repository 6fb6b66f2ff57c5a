import re
import resource
from pathlib import Path

import pytest
import zstandard

from pipeline.readers import open as opening
from pipeline.readers.open import compression_of, open_plain
from pipeline.readers.record import RecordOptions
from pipeline.readers.table import READERS, open_stream
from pipeline.readers.text import all_lines
from schemas.errors import DataError
from tests.pipeline.readers.input_files import COMPRESS, whole_range


def lines(path: Path) -> list[tuple[int, bytes | None]]:
    file_range = whole_range(path, "text")
    options = RecordOptions("text", "line")
    stream = open_stream(file_range, READERS["text"], options)
    with stream.file:
        return [(line.offset, line.data) for line in all_lines(stream, file_range, options)]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_files_of_many_parts_are_one_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](part) for part in (b"one\ntw", b"", b"o\nthree")))
    with open_plain(open(path, "rb"), str(path), compression_of(str(path))) as file:
        assert file.read() == b"one\ntwo\nthree"
    assert lines(path) == [(0, b"one\n"), (4, b"two\n"), (8, b"three")]


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_line_of_200_mb_is_passed_over_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    whole = b"before\n" + b"ab" * (100 << 20) + b"\nafter\n"
    path.write_bytes(COMPRESS[suffix](whole))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del whole
    # 200 MB are below ALWAYS_ALLOWED, so that a line which shrinks 1,000 times makes no bomb
    assert [line for _, line in lines(path)] == [b"before\n", None, b"after\n"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kilobytes


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zst", "zstd"), (".bz2", "bz2"), (".xz", "xz")])
def test_a_plain_file_with_a_compressed_name_is_named(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(b'{"text": "plain"}\n')
    with pytest.raises(DataError, match=rf"x\.jsonl{suffix} is not {kind}, although its name says so\. Rename it"):
        lines(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_what_is_appended_to_a_whole_file_is_named_with_its_place(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.jsonl{suffix}"
    whole = COMPRESS[suffix](b"one\n") * 2
    path.write_bytes(whole + b"-- end of dump --\n")
    with pytest.raises(
        DataError, match=rf"begins at byte {len(whole)} .* what comes before is whole.*head -c {len(whole)} FILE > NEW"
    ):
        lines(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize("line", [b"x" * 1000 + b"\n", b"x"], ids=["lines", "one line"])
def test_a_bomb_is_named_before_it_goes_off(tmp_path: Path, monkeypatch, suffix: str, line: bytes) -> None:
    monkeypatch.setattr(opening, "ALWAYS_ALLOWED", 1 << 20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(COMPRESS[suffix](line * ((16 << 20) // len(line))))
    assert path.stat().st_size < 200_000
    with pytest.raises(DataError, match=rf"bomb{suffix} grows beyond \d+ MB"):
        lines(path)


def with_window(data: bytes, window_log: int) -> bytes:
    """A frame as `zstd --long=WINDOW_LOG` makes it of a pipe."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


def test_zstd_with_a_long_window(tmp_path: Path) -> None:
    """Dumps of Reddit are made with --long=31, which takes 2 GB of memory to read."""
    path = tmp_path / "x.zst"
    path.write_bytes(zstandard.compress(b"one\n") + with_window(b"two\n", 29))
    assert lines(path) == [(0, b"one\n"), (4, b"two\n")]

    path.write_bytes(with_window(b"one\n", 31))
    message = f"{path} needs more than 512 MB of memory to decompress. Compress it again without --long."
    with pytest.raises(DataError, match=re.escape(message)):
        lines(path)
