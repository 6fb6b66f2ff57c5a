import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard.inputs import Split
from pipeline.shard.records import Record, Rejected, parse_json_line, read_records, text_records, wikiextractor_records
from schemas.errors import DataError


def split(path: Path, start: int = 0, end: int | None = None, form: Any = "jsonl", compression=None) -> Split:
    return Split(0, str(path), start, path.stat().st_size if end is None else end, form, compression)


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20), data=st.data())
@settings(max_examples=50, deadline=None)
def test_every_line_belongs_to_exactly_one_split(tmp_path_factory, lengths: list[int], data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("splits") / "x.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i}" + "x" * n}) + "\n" for i, n in enumerate(lengths)))
    size = path.stat().st_size
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(1, size), max_size=6))})
    parts = [list(read_records(split(path, a, b), "text", "blank_line")) for a, b in itertools.pairwise(cuts)]
    whole = list(read_records(split(path), "text", "blank_line"))
    assert [record for part in parts for record in part] == whole
    assert len(whole) == len(lengths)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "a", "source": "wiki"}', Record("a", "wiki")),
        (b'{"text": "a", "source": 3}', Record("a", "jsonl")),
        (b"  \n", Rejected("blank line", "jsonl")),
        (b"{", Rejected("line is not JSON", "jsonl")),
        (b'{"text": "\\ud800"}', Rejected("line is not JSON", "jsonl")),
        (b"\xff\xfe{}", Rejected("line is not JSON", "jsonl")),
        (b'["a"]', Rejected("line is not a JSON object", "jsonl")),
        (b'{"body": "a"}', Rejected("object has no text under 'text'", "jsonl")),
        (b'{"text": 7}', Rejected("object has no text under 'text'", "jsonl")),
    ],
)
def test_json_lines(line: bytes, expected: Record | Rejected) -> None:
    assert parse_json_line(line, "text") == expected


def test_layouts_of_plain_text() -> None:
    lines = ["\n", "one\n", "two\n", "\n", " \n", "three"]
    texts = {layout: [r.text for r in text_records(iter(lines), layout)] for layout in ("blank_line", "line", "file")}
    assert texts == {
        "blank_line": ["one\ntwo\n", "three"],
        "line": ["one\n", "two\n", "three"],
        "file": ["\none\ntwo\n\n \nthree"],
    }


def test_wikiextractor_blocks() -> None:
    lines = '<doc id="1">\nTitle\n\nText.\n</doc>\n<doc id="2">\nOpen\n<doc id="3">\nB\n\nMore.\n</doc>\n'
    lines += 'stray\n<doc id="4">\n'
    found = list(wikiextractor_records(iter(lines.splitlines(keepends=True))))
    unclosed = Rejected("<doc> without </doc>", "wikiextractor")
    assert found == [Record("\nText.\n", "wikiextractor"), unclosed, Record("\nMore.\n", "wikiextractor"), unclosed]


@pytest.mark.parametrize(("suffix", "compression"), [(".gz", "gzip"), (".zst", "zstd"), (".bz2", "bz2"), (".xz", "xz")])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str, compression: str) -> None:
    import bz2
    import gzip
    import lzma

    import zstandard

    compress = {"gzip": gzip.compress, "zstd": zstandard.compress, "bz2": bz2.compress, "xz": lzma.compress}[
        compression
    ]
    text = "".join(f'{{"text": "line {i} {i * i}"}}\n' for i in range(5000))
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(compress(text.encode()))
    assert len(list(read_records(split(path, compression=compression), "text", "line"))) == 5000
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"cannot be read to its end"):
        list(read_records(split(path, compression=compression), "text", "line"))
