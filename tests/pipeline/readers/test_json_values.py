"""JSON that is not JSON lines: each element of an array, and each object, is a document; memory is bounded."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.readers.encodings import AUTO
from pipeline.readers.inputs import with_format
from pipeline.readers.json_values import json_values
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records
from pipeline.text_keys import text_key
from schemas.errors import DataError
from tests.pipeline.readers.input_files import read, whole_range

STRINGS = ["", "a", 'a "b"', "\\", "[{", "},]", "\n", "ä雨", "\\\\", '\\"']


def made(random_: random.Random, depth: int) -> Any:
    kind = random_.choice(["string", "number", "list", "object"] if depth else ["string", "number"])
    if kind == "string":
        return "".join(random_.choices(STRINGS, k=3))
    if kind == "number":
        return random_.choice([0, -1.5e9, True, None])
    if kind == "list":
        return [made(random_, depth - 1) for _ in range(random_.randrange(3))]
    return {random_.choice(STRINGS): made(random_, depth - 1) for _ in range(random_.randrange(3))}


def blocks_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 1 << 20])
def test_values_are_those_of_a_parser(block_bytes: int) -> None:
    random_ = random.Random(0)
    for _ in range(300):
        elements = [made(random_, 3) for _ in range(random_.randrange(4))]
        objects = [{"a": made(random_, 2)}, {"b": [made(random_, 2)]}]
        layout = {"indent": random_.choice([None, 1]), "ensure_ascii": random_.random() < 0.5}
        text = "\n".join(json.dumps(value, **layout) for value in (objects[0], elements, objects[1]))
        data = random_.choice(["", "\ufeff"]).encode() + text.encode()

        found = list(json_values(blocks_of(data, block_bytes), 1 << 20))
        values = [value for _, value, _ in found if value is not None]
        assert [json.loads(value) for value in values] == [objects[0], *elements, objects[1]]
        assert all(data[offset:].startswith(value) for offset, value, _ in found if value is not None)


def test_a_value_that_is_too_long_is_not_kept() -> None:
    data = json.dumps(["a" * 20, {"text": "b" * 9000}, "c"]).encode()
    found = [(offset, value) for offset, value, _ in json_values(blocks_of(data, 10), 30)]
    assert found == [(1, b'"' + b"a" * 20 + b'"'), (25, None), (9039, b'"c"')]


def texts(path: Path, text_key: str = "text") -> list[str]:
    return [record.text for record in read(path, text_key) if isinstance(record, Record)]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a"])
@pytest.mark.parametrize("indent", [None, 2])
def test_arrays_of_objects_are_documents(name: str, indent: int | None, tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "Eine schöne Zeile."}, {"text": ["Zwei.", "Drei."], "source": "web"}]
    (tmp_path / name).write_text(json.dumps(rows, indent=indent))
    found = read(tmp_path / name)
    assert [(record.text, record.source) for record in found if isinstance(record, Record)] == [
        ("Eine schöne Zeile.", "json"),
        ("Zwei.\n\nDrei.", "web"),
    ]


def test_objects_over_lines_and_arrays_of_strings(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{\n "title": "T",\n "text": "A book."\n}\n{\n "text": "Another."\n}\n')
    assert texts(tmp_path / "one.json") == ["A book.", "Another."]
    (tmp_path / "strings.json").write_text('["One.", "Two [2].", "Three, \\"four\\"."]')
    assert texts(tmp_path / "strings.json") == ["One.", "Two [2].", 'Three, "four".']


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("words", [3, 90_000])
def test_a_value_without_text_is_left_out(words: int, indent: int | None, tmp_path: Path) -> None:
    """In one line, too, as stopwords-iso.json is, which is longer than the bytes that show a format."""
    path = tmp_path / "package.json"
    path.write_text(json.dumps({"name": "x", "words": {"en": ["the"] * words}}, indent=indent))
    (left_out,) = read(path)
    assert isinstance(left_out, Rejected) and left_out.reason == "JSON value without text"
    assert left_out.reason in with_format(whole_range(path, "auto")).reader.harmless


SETTINGS = """// Place your "settings" here, don't change {these}, [2].
/* See https://aka.ms/tsconfig */
{
  "url": "https://a.example/b", // {"text": "No."},
  "paths": {"/*": ["a,]", "b"],},
}
"""


@pytest.mark.parametrize("name", ["tsconfig.json", "settings.jsonc"])
def test_comments_and_last_commas_are_no_damage(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SETTINGS)
    (left_out,) = read(tmp_path / name)
    assert isinstance(left_out, Rejected) and left_out.reason == "JSON value without text"
    assert texts(tmp_path / name, "url") == ["https://a.example/b"] and texts(tmp_path / name, "paths./*") == [
        "a,]\n\nb"
    ]
    (tmp_path / name).write_text(SETTINGS.replace('"a,]"', '"a,]'))
    assert all(isinstance(one, Rejected) and one.reason.startswith("value is not") for one in read(tmp_path / name))


def test_comments_after_the_last_value_are_none(tmp_path: Path) -> None:
    for end in ("// end", "/* end */\n", "\n// one\n\n/* two\nlines */ // three\n"):
        (tmp_path / "a.json").write_text(f'[\n{{"text": "A."}}\n]\n{end}')
        assert [type(record).__name__ for record in read(tmp_path / "a.json")] == ["Record"]


def test_damage_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "package.json"
    path.write_text('[{"text": "A."},\n {"text": "B}, {"text": "C."}]')
    (damaged,) = (record for record in read(path) if isinstance(record, Rejected))
    assert damaged.reason.startswith("value is not JSON") and texts(path) == ["A.", "C."]


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "cp1252"])
def test_other_encodings(encoding: str, tmp_path: Path) -> None:
    words = "Schöne \\ [Wörter]" if encoding == "cp1252" else "長い文 乗 \\ {雨}"
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps([{"text": words}, {"text": words}], ensure_ascii=False).encode(encoding))
    file_range = replace(whole_range(path, "json"), encoding=encoding)
    found = list(read_records(file_range, RecordOptions("text", "blank_line")))
    assert [record.text for record in found if isinstance(record, Record)] == [words, words]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_of_the_encoding_do_not_hide_json(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(json.dumps([{"body": "A."}, {"body": "B."}], indent=1).encode(encoding))
    found = with_format(replace(whole_range(tmp_path / "a.json", "auto"), encoding=AUTO))
    assert found.format == "json" and text_key(found) == "body"


def test_lines_of_which_the_first_is_damaged_are_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "cut\n' + '{"text": "A river."}\n' * 9)
    found = read(tmp_path / "a.jsonl")
    assert isinstance(found[0], Rejected) and len(texts(tmp_path / "a.jsonl")) == 9


@pytest.mark.parametrize("separator", [", ", ","])
def test_damage_in_one_value_of_an_array_in_one_line_loses_that_value_alone(separator: str, tmp_path: Path) -> None:
    rows = [{"id": number, "text": f"Row {number}.", "notes": [{"n": 1}, {"n": 2}]} for number in range(50)]
    data = json.dumps(rows, separators=(separator, ": ")).replace("Row 7.", 'Row "7.').replace("Row 30.", 'Row 30."')
    (tmp_path / "a.json").write_text(data)
    assert texts(tmp_path / "a.json") == [f"Row {number}." for number in range(50) if number not in (7, 30)]
    assert sum(isinstance(record, Rejected) for record in read(tmp_path / "a.json")) == 2


@pytest.mark.parametrize("indent", [None, 2])
def test_damage_in_one_value_loses_that_value_alone(indent: int | None, tmp_path: Path) -> None:
    rows = [json.dumps({"id": number, "text": f"Row {number}."}, indent=indent) for number in range(50)]
    rows[7] = rows[7].replace("Row 7.", 'Row "7')
    rows[20] = rows[20].replace("Row 20.", "Row 20").replace('"}', "}").replace('"\n}', "\n}")
    rows[30] = rows[30].removesuffix("}")
    (tmp_path / "a.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
    found = read(tmp_path / "a.json")
    assert texts(tmp_path / "a.json") == [f"Row {number}." for number in range(50) if number not in (7, 20, 30)]
    assert sum(isinstance(record, Rejected) for record in found) == 3


def test_a_value_without_an_end_that_is_too_long_to_keep_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "cut' + "The river is long. " * 99)
    options = RecordOptions("text", "blank_line", max_document_bytes=100)
    with pytest.raises(
        DataError, match="has no end of the value that begins at byte 1: a quote or a bracket is missing"
    ):
        list(read_records(with_format(whole_range(tmp_path / "a.json", "auto")), options))


def test_values_without_text_among_others_are_bad(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"n": 1}, {"text": "A."}, {"body": "B."}]))
    before, _, after = read(tmp_path / "a.json")
    assert isinstance(before, Rejected) and before.reason == "JSON value without text"
    assert isinstance(after, Rejected) and after.reason == "no text under 'text'" and after.keys == ("body",)
