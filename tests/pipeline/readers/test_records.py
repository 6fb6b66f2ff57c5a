import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.readers.inputs import FileRange
from pipeline.readers.jsonl import parse_json_line
from pipeline.readers.record import MAX_RECORD, Record, RecordOptions, Rejected, Undecodable, too_long_reason
from pipeline.readers.table import read_records
from pipeline.shard.cleaning import clean
from schemas.errors import DataError
from tests.pipeline.readers.input_files import dump, whole_range
from tests.pipeline.readers.input_files import page as page_of_dump

TOO_LONG = too_long_reason(MAX_RECORD)
READ = {"jsonl": ("jsonl", "blank_line"), "wiki": ("wikiextractor", "blank_line")}
READ |= {"dump": ("mediawiki", "blank_line")}
READ |= {layout: ("text", layout) for layout in ("blank_line", "line", "file")}


def file_range(path: Path, form: str, start: int = 0, end: int | None = None) -> FileRange:
    whole = whole_range(path, form)
    return replace(whole, start=start, end=whole.size if end is None else end)


def records(path: Path, kind: str, start: int = 0, end: int | None = None) -> list[Record | Rejected]:
    form, layout = READ[kind]
    return list(read_records(file_range(path, form, start, end), RecordOptions("text", layout)))  # type: ignore[arg-type]


WRITE: dict[str, Callable[[list[str]], str]] = {
    "jsonl": lambda texts: "".join(json.dumps({"text": text}) + "\n" for text in texts),
    "line": lambda texts: "".join(text.replace("\n", " ") + "\n" for text in texts),
    "blank_line": lambda texts: "\n\n" + "\n \n\n".join(texts),
    "file": lambda texts: "\n".join(texts),
    "wiki": lambda texts: "".join(f'<doc id="1" url="" title="Title">\nTitle\n\n{text}\n</doc>\n' for text in texts),
    "dump": lambda texts: dump(*(page_of_dump(number, f"T{number}", text) for number, text in enumerate(texts))),
}
TEXT = st.text("ab\n", min_size=1, max_size=40).map(lambda text: "x" + "\n".join(filter(None, text.split("\n"))) + "y")


@pytest.mark.parametrize("kind", WRITE)
@given(texts=st.lists(TEXT, min_size=1, max_size=12), data=st.data())
@settings(max_examples=60)
def test_every_record_belongs_to_exactly_one_range(tmp_path_factory, kind: str, texts, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("pieces") / "x"
    path.write_text(WRITE[kind](texts))
    size = path.stat().st_size
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(1, size), max_size=6))})
    parts = [records(path, kind, a, b) for a, b in itertools.pairwise(cuts)]
    whole = records(path, kind)
    assert [record for part in parts for record in part] == whole
    assert len(whole) == (1 if kind == "file" else len(texts))
    assert all(isinstance(record, Record) for record in whole)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "a", "source": "wiki"}', Record("a", "wiki")),
        (b'\xef\xbb\xbf{"text": "a", "source": 3}', Record("a", "jsonl")),
        (b"  \n", Rejected("blank line", "jsonl", 5)),
        (b'{"text": "a", "score": NaN, "n": [Infinity, -Infinity]}', Record("a", "jsonl")),
        (b'{"text": "a \\ud83d b", "source": "s\\ud83d"}', Record("a \ud83d b", "s?")),
        (b'{"text": "a\tb"}', Record("a\tb", "jsonl")),
        (b'{"text": "a\xffb"}', Record("a\ufffdb", "jsonl", Undecodable(1, 16))),
        (b"{", Rejected("line is not JSON (it ends early)", "jsonl", 5, "{")),
        (b'{"text": "a', Rejected("line is not JSON (it ends early)", "jsonl", 5, '{"text": "a')),
        (b"[" * 100_000, Rejected("line is not JSON (too many brackets in brackets)", "jsonl", 5, "[" * 500)),
        (b"\xfe{}", Rejected("line is not JSON (Expecting value)", "jsonl", 5, "\ufffd{}")),
        (
            b'{"id": 1, "text": "' + b"word " * 99 + b'", "more" "here"}',
            Rejected(
                "line is not JSON (Expecting ':' delimiter)",
                "jsonl",
                5,
                '{"id": 1, "text": "w ... word word ", "more" "here"}',
            ),
        ),
        (b'["a"]', Rejected("line is not a JSON object", "jsonl", 5, '["a"]')),
        (b'{"body": "a"}', Rejected("no text under 'text'", "jsonl", 5, '{"body": "a"}')),
        (b'{"text": null}', Record("", "jsonl")),
        (b'{"text": 7}', Rejected("no text under 'text'", "jsonl", 5, '{"text": 7}')),
        (None, Rejected(TOO_LONG, "jsonl", 5)),
    ],
)
def test_json_lines(line: bytes | None, expected: Record | Rejected) -> None:
    assert parse_json_line(line, "text", 5) == expected


def test_layouts_of_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("\ufeffone\ntwo\n\n \nthree")
    texts = {k: [r.text for r in records(path, k) if isinstance(r, Record)] for k in ("blank_line", "line", "file")}
    assert texts == {
        "blank_line": ["one\ntwo\n", "three"],
        "line": ["one\n", "two\n", "three"],
        "file": ["one\ntwo\n\n \nthree"],
    }


OUTSIDE = "text outside of <doc>"
UNCLOSED = "<doc> without </doc>"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('<doc id="2">\nOpen\n<doc id="3">\nB\n\nMore.\n</doc>\n<doc id="4">\n', [UNCLOSED, "B\n\nMore.\n", UNCLOSED]),
        (
            '<doc id="1" title="R&amp;B">\nR&amp;B\n\n5 &lt; 6 &gt; 4, &amp;lt; &quot;\n</doc>',
            ["\n5 < 6 > 4, &lt; &quot;\n"],
        ),
        ('<doc id="1" title="A &quot;b&quot;">\nA "b"\nText.\n</doc>', ["Text.\n"]),
        ('<doc id="1" title="A "b" > c">\nA "b" > c\nText.\n</doc>', ["Text.\n"]),
        ('<doc id="1" title="Other">\nFirst line.\nText.\n</doc>', ["First line.\nText.\n"]),
        ('\ufeff<doc id="1" title="A">\nA\nText.\n</doc>\n', ["Text.\n"]),
        ('<doc id="1" title="A">\nA\nText.</doc>\n', ["Text."]),
        ('<doc id="1" title="A">A\nText.</doc><doc id="2" title="B">\nB\nNext.\n</doc>', ["Text.", "Next.\n"]),
        ('one\n\n<doc id="1">\nText.\n</doc> two\n \nthree\n', [OUTSIDE, "Text.\n", OUTSIDE, OUTSIDE]),
        ("no tag\n", [OUTSIDE]),
    ],
)
def test_wikiextractor(tmp_path: Path, written: str, read: list[str]) -> None:
    path = tmp_path / "wiki"
    path.write_text(written)
    whole = records(path, "wiki")
    assert [record.text if isinstance(record, Record) else record.reason for record in whole] == read

    size = path.stat().st_size
    for cut in range(1, size):
        assert [*records(path, "wiki", 0, cut), *records(path, "wiki", cut, size)] == whole


@pytest.mark.parametrize("kind", ["jsonl", "line", "blank_line", "file", "wiki", "dump"])
def test_a_record_that_is_too_long_is_rejected_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    long = "word " * (MAX_RECORD // 5) + "end."
    path.write_text(WRITE[kind](["Before.", long, "After."]))
    found = [record.text.strip() if isinstance(record, Record) else record.reason for record in records(path, kind)]
    assert found == ([TOO_LONG] if kind == "file" else ["Before.", TOO_LONG, "After."])


def test_a_document_of_a_million_short_lines_is_linear(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\n" * 1_000_000)
    assert [len(record.text) for record in records(path, "blank_line") if isinstance(record, Record)] == [2_000_000]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["one", None, "three"], "source": ["a", "b", None], "n": [1, 2, 3]}), path)

    def read(text_key: str) -> list:
        return list(read_records(file_range(path, "parquet"), RecordOptions(text_key, "line")))

    assert read("text") == [Record("one", "a"), Record("", "b"), Record("three", "parquet")]
    with pytest.raises(DataError, match=r"has no text column 'body'; give --text_key one of text, source"):
        read("body")
    with pytest.raises(DataError, match="has no text column 'n'"):
        read("n")

    pq.write_table(pa.table({"n": [1]}).select([]), path)
    with pytest.raises(DataError, match="has no text column 'text'; it has no column of strings at all"):
        read("text")


def test_places_of_parquet_rows_count_from_the_beginning_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "too long", "d", "e", "too long"]}), path, row_group_size=3)
    second_group = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    ranges = [file_range(path, "parquet", 0, second_group), file_range(path, "parquet", second_group)]
    options = RecordOptions("text", "line", max_document_bytes=4)
    found = [record for part in ranges for record in read_records(part, options)]
    assert [record.position for record in found if isinstance(record, Rejected)] == [2, 5]


UNICODE_BLANKS = ["\u00a0\n", "\u3000 \r\n", "\u200b\n", "\ufeff\n"]


@pytest.mark.parametrize("blank", ["\n", " \n", "\r\n", "\t\n \n", "\r", *UNICODE_BLANKS])
def test_blank_lines_across_a_cut_end_the_same_documents(tmp_path: Path, blank: str) -> None:
    path = tmp_path / "x"
    path.write_text("one\n" + 20 * blank + "two\n" + 20 * blank + "three", newline="")
    size = path.stat().st_size
    for kind in ("blank_line", "line", "jsonl"):
        whole = records(path, kind)
        if kind != "jsonl":
            assert [record.text.strip() for record in whole if isinstance(record, Record)] == ["one", "two", "three"]
        for cut in range(1, size):
            parts = [*records(path, kind, 0, cut), *records(path, kind, cut, size)]
            assert texts_and_blanks(parts) == texts_and_blanks(whole)


def texts_and_blanks(found: list[Record | Rejected]) -> tuple[list[str], int]:
    """The documents, and how many lines were rejected."""
    texts = [record.text for record in found if isinstance(record, Record)]
    return texts, sum(record.count for record in found if isinstance(record, Rejected))


@pytest.mark.parametrize("end", ["\r", "\r\n", "\r\r\n"])
def test_line_ends_of_other_systems(tmp_path: Path, end: str) -> None:
    text = "A wrapped line\nof one. Two.\n\nThree.\n \n\nFour.\nFive."
    for name, content in (("plain", text), ("other", text.replace("\n", end))):
        (tmp_path / name).write_text(content, newline="")
    for kind in ("blank_line", "line", "file"):
        found = [
            [clean(record.text, Counter()) for record in records(tmp_path / name, kind) if isinstance(record, Record)]
            for name in ("plain", "other")
        ]
        assert found[0] == found[1], kind


def test_a_lone_return_ends_a_line_before_a_single_character(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"One.\rX")
    assert [record.text for record in records(tmp_path / "x", "line") if isinstance(record, Record)] == ["One.\n", "X"]
