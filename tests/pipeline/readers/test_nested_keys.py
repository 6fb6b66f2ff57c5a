"""Dotted keys of --text_key lead into objects and lists of JSON. In a file of one object, elements are documents."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.readers import json_values
from pipeline.readers.inputs import with_format
from pipeline.readers.nested_keys import joined_at, name_of, path_of
from pipeline.readers.record import Record, RecordOptions, Rejected
from pipeline.readers.table import read_records
from pipeline.text_keys import text_key
from schemas.errors import DataError, nearest_name
from tests.pipeline.readers.input_files import read, whole_range
from tests.pipeline.readers.test_json_values import texts

SENTENCE = "It rained the whole day, and the river rose above the bridge. "
SQUAD = {
    "version": "1.1",
    "data": [
        {"title": "A", "paragraphs": [{"context": "One, [two].", "qas": [{"context": "?"}]}, {"context": "Three."}]},
        {"title": "B {", "paragraphs": [{"context": 'Four "five".'}]},
    ],
    "more": [{"context": "no"}],
}

TELEGRAM = {
    "name": "Chat",
    "messages": [
        {"id": 1, "text": ["A ", {"type": "bold", "text": "bold"}, " word."], "text_entities": [{"text": "bold"}]},
        {"id": 2, "text": "Plain.", "text_entities": [{"type": "plain", "text": "Plain."}]},
        {"id": 3, "text": "", "text_entities": []},
    ],
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        (SQUAD, "data[].paragraphs.context", ["One, [two].\n\nThree.", 'Four "five".']),
        (SQUAD, "data.paragraphs.context", ['One, [two].\n\nThree.\n\nFour "five".']),
        (SQUAD, "version,data[].title", ["1.1\n\nA\n\nB {"]),
        (SQUAD, "none|data[].title", ["A", "B {"]),
        (SQUAD, "data[].title,data[].paragraphs.context", ["A\n\nOne, [two].\n\nThree.", 'B {\n\nFour "five".']),
        (SQUAD, "more[].none|data[].title", ["A", "B {"]),
        ({"d1": {"log": [{"say": "a"}, {"say": "b"}]}, "d, 2": {"log": [{"say": "c"}]}}, "*.log.say", ["a\n\nb", "c"]),
        ({"id, 1": "one", 'id "2"': "two: three"}, "*", ["one", "two: three"]),
        ({"n": 1, "texts": ["a [x]", "b, {c"]}, "texts[]", ["a [x]", "b, {c"]),
        ({"n": 1, "texts": ["a [x]", "b, {c"]}, "texts", ["a [x]\n\nb, {c"]),
        ({"n": 1, "texts": [["a", "b"], ["c"]]}, "texts[]", ["a\n\nb", "c"]),
        ({"a": {"b": {"c": [{"d": "x"}, {"d": ["y", "z"]}]}, "c": [{"d": "no"}]}}, "a.b.c[].d", ["x", "y\n\nz"]),
        ({"\u00e9t\u00e9": [{"d": "x"}, {"d": "y"}]}, "\u00e9t\u00e9[].d", ["x", "y"]),
        ([{"a": {"b": "x"}}, {"a": [{"b": "y"}, {"c": 1}, {"b": "z"}]}], "a.b", ["x", "y\n\nz"]),
        ({"a": {"b": "x"}}, "a.b", ["x"]),
        ({"a.b": "whole", "a": {"b": "x"}}, "a.b", ["whole"]),
        ({"text": "A book.", "title": "T"}, "text|*.text", ["A book."]),
        ({"n": 1, "data": [{"text": "T", "content": "C"}]}, "text|data[].content", ["C"]),
        ({"data": []}, "data[].t", []),
        ({"data": [[{"t": "x"}, {"t": "y"}], [{"t": "z"}]]}, "data[][].t", ["x\n\ny", "z"]),
        ([{"parts": ["x", None, "y"]}, {"parts": [None]}], "parts", ["x\n\ny", ""]),
        (TELEGRAM, "messages[].text", ["A bold word.", "Plain.", ""]),
        (TELEGRAM, "messages.text", ["A bold word.\n\nPlain."]),
        ({"text": ["A.", {"image": "a.png"}, "B.", {"text": ["C.", "D."]}]}, "text", ["A.\n\nB.\n\nC.\n\nD."]),
        (
            [{"m": [{"c": "hi"}, {"c": [{"type": "text", "text": "x"}, {"url": "u"}, {"text": "y"}]}]}],
            "m.c",
            ["hi\n\nx\n\ny"],
        ),
        ([{"text": ["see ", {"url": "u"}, None]}, {"text": [{"url": "u"}]}, {"text": ["x", 1]}], "text", ["see "]),
    ],
)
def test_texts_under_dotted_keys(value: Any, key: str, expected: list[str], indent: int | None, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value, indent=indent))
    assert texts(tmp_path / "a.json", key) == expected


def test_texts_of_a_line_are_one_document(tmp_path: Path) -> None:
    rows = [
        {"_source": {"content": "x"}},
        {"messages": [{"role": "user", "content": "Hello."}, {"content": "Good day."}], "source": "chat"},
        {"messages": []},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    *found, without = read(tmp_path / "a.jsonl", "_source.content|messages.content")
    assert [(one.text, one.source) for one in found if isinstance(one, Record)] == [
        ("x", "jsonl"),
        ("Hello.\n\nGood day.", "chat"),
    ]
    assert isinstance(without, Rejected) and without.reason.startswith("no text under")


def made(random_: random.Random, keys: str, depth: int) -> Any:
    kind = random_.choice(["text", "text", "number", "list", "list", "object", "object", "object"])
    if kind == "number" or depth == 0:
        return random_.randrange(9)
    if kind == "text":
        return random_.choice(["a", "[{", "},", '\\"a\\":', "\\\\"])
    if kind == "list":
        return [made(random_, keys, depth - 1) for _ in range(random_.randrange(4))]
    return {key: made(random_, keys, depth - 1) for key in random_.sample(keys, 2)}


def elements_on(value: Any, path: list[str], marked: int) -> list[tuple[Any, list[str]]]:
    """Return the elements of the list at the marked key, with what follows of the path; the value without one."""
    inner = value
    for key in path[:marked]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if marked and isinstance(inner, list) and inner:
        return [(one, path[marked:]) for one in inner]
    return [(value, path)]


def test_blocks_give_what_a_parsed_object_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(0)
    path = tmp_path / "a.json"
    found = 0
    for _ in range(1000):
        value = {key: made(random_, "ab", 5) for key in random_.sample("ab", 2)}
        keys: list[str] = random_.choices("ab", k=random_.choice([2, 3]))
        monkeypatch.setattr(json_values, "_BLOCK_BYTES", random_.choice([1, 3, 8, 1000]))
        path.write_text(json.dumps(value, indent=random_.choice([None, 1])))

        marked = random_.randrange(len(keys))
        joined = (joined_at(element, tuple(rest)) for element, rest in elements_on(value, keys, marked))
        expected = [text for text in joined if text is not None]
        name = ".".join(key + "[]" * (number == marked) for number, key in enumerate(keys, 1))
        assert texts(path, name) == expected, (value, name)
        found += len(expected)
    assert found > 100


def test_memory_is_bounded_by_the_elements(tmp_path: Path) -> None:
    data = {"meta": ["x" * 5000], "data": [{"t": f"{number} {SENTENCE}"} for number in range(2000)]}
    (tmp_path / "a.json").write_text(json.dumps(data))
    options = RecordOptions("data[].t", "blank_line", max_document_bytes=200)
    found = list(read_records(with_format(whole_range(tmp_path / "a.json", "auto")), options))
    assert [record.text for record in found if isinstance(record, Record)] == [row["t"] for row in data["data"]]


def test_damage_in_one_element_loses_that_one_and_the_last(tmp_path: Path) -> None:
    rows = ",\n".join(json.dumps({"t": f"Row {number}."}) for number in range(50))
    damaged = rows.replace('"Row 7."', '"Row "7."')
    (tmp_path / "a.json").write_text(f'{{"n": 1,\n"data": [{damaged}],\n"end": 1}}')
    found = read(tmp_path / "a.json", "data[].t")
    assert texts(tmp_path / "a.json", "data[].t") == [f"Row {number}." for number in range(50) if number not in (7, 49)]
    assert sum(isinstance(record, Rejected) for record in found) == 2


@pytest.mark.parametrize("block_bytes", range(1, 12))
def test_escapes_in_keys_and_empty_lists_do_not_depend_on_blocks(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"\\": 1, "\u00e9t\u00e9": [{"d": "x"}, {"d": None}, {"d": "y"}], "n": {"m": 1}})
        + '{"\u00e9t\u00e9": []}'
    )
    found = [record.text if isinstance(record, Record) else record.reason for record in read(path, "\u00e9t\u00e9[].d")]
    assert found == ["x", json_values.WITHOUT_TEXT, "y", json_values.WITHOUT_TEXT]


def test_damage_in_one_member_loses_that_one_alone(tmp_path: Path) -> None:
    data = json.dumps({f"k{number}": {"t": f"Row {number}."} for number in range(50)}, indent=1)
    (tmp_path / "a.json").write_text(data.replace('"Row 7."', '"Row 7.'))
    kept = [number for number in range(50) if number not in (7, 49)]
    assert texts(tmp_path / "a.json", "*.t") == [f"Row {number}." for number in kept]


def test_a_head_that_ends_in_escapes_is_looked_at_in_time_that_its_size_bounds() -> None:
    head = b'{"a": "' + b'\\"' * 40_000
    assert list(json_values.objects_of(head[: 1 << 16])) == [{}]


PACKAGE = {
    "name": "x",
    "scripts": {"build": "tsc -p . && echo done with the whole build of all packages that are in this folder"},
    "contributors": [{"name": "Ann Bee"}, {"name": "Bob Cee"}, {"name": "Cid Dee"}],
    "packages": {f"p{number}": {"description": SENTENCE, "integrity": "a" * 99} for number in range(9)},
}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"v": 1, "data": [{"rows": [{"context": SENTENCE * 9, "id": "x" * 40}] * 20}] * 50}, "data[].rows.context"),
        ({f"d{number}": {"log": [{"say": SENTENCE}] * 2} for number in range(5)}, "*.log.say"),
        ({"n": 1, "texts": [SENTENCE] * 9}, "texts[]"),
        ([{"id": 1, "a": {"b": SENTENCE}}] * 3, "a.b"),
        ([{"story": SENTENCE, "author": {"name": "Ann Bee"}}] * 3, "story"),
        (
            {"messages": [{"text": [SENTENCE, {"text": "so it "}, SENTENCE]}, {"text": SENTENCE}] * 20},
            "messages[].text",
        ),
        ({"m": [{"t": [SENTENCE, {"text": "so"}], "t_e": [{"text": SENTENCE}, {"text": "so"}]}] * 20}, "m[].t"),
        ([{"m": [{"c": [{"text": f"{SENTENCE}{n}"}] * 2}, {"c": f"{n} {SENTENCE}"}]} for n in range(9)], "m.c"),
        ([{"body": [f"{n} {SENTENCE}", {"text": SENTENCE}], "n": n} for n in range(9)], "body"),
        ([{"said": [f"{n} {SENTENCE}", {"text": SENTENCE}], "n": n} for n in range(9)], "said"),
        ([{"author": "X" * 90, "paragraphs": ["One.", "Two."], "title": "T"}], "paragraphs"),
        ([{"id": "1", "story": "It rained.", "words": ["It", "rained", "."]}] * 9, "story"),
        ({"name": "x", "description": "No document."}, "text"),
        (PACKAGE, "text"),
    ],
)
def test_the_key_is_found(value: Any, expected: str, indent: int | None, tmp_path: Path) -> None:
    """Also where the object is longer than the bytes that are looked at, and not in settings of programs."""
    (tmp_path / "a.json").write_text(json.dumps(value, indent=indent))
    assert text_key(with_format(whole_range(tmp_path / "a.json", "auto"))) == expected


def test_the_key_of_lines_is_found(tmp_path: Path) -> None:
    row = {"_index": "news", "_source": {"title": "It rains", "content": SENTENCE, "url": "https://a.example/b"}}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    assert text_key(with_format(whole_range(tmp_path / "a.jsonl", "auto"))) == "_source.content"
    (rejected, *_) = read(tmp_path / "a.jsonl")
    assert isinstance(rejected, Rejected) and rejected.keys[0] == "_source.content"


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_texts_within_columns(name: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": f"{number}",
            "translation": {"en": f"{SENTENCE}{number} times.", "de": f"Satz {number}."},
            "messages": [{"role": "user", "content": f"{number}?"}, {"role": "bot", "content": "Yes."}],
            "parts": ["One.", f"{number}."],
            "turn": [{"type": "text", "text": f"{number}."}, {"type": "image", "text": None}, {"text": "Two."}],
            "source": "web",
        }
        for number in range(600)
    ]
    rows.append(dict.fromkeys(rows[0]))
    table = pa.Table.from_pylist(rows)
    if name.endswith("parquet"):
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as file:
            file.write_table(table)

    expected = {
        "translation.de": "Satz {}.",
        "none|messages.content": "{}?\n\nYes.",
        "none[].x|messages[].content": "{}?\n\nYes.",
        "parts": "One.\n\n{}.",
        "turn": "{}.\n\nTwo.",
        "translation.de,id": "Satz {0}.\n\n{0}",
    }
    for key, text in expected.items():
        *found, without = read(tmp_path / name, key)
        assert [one.text for one in found if isinstance(one, Record)] == [text.format(number) for number in range(600)]
        has_column = key in ("parts", "turn", "translation.de,id")  # of its own, with null
        assert {one.source for one in found} == {"web"} and isinstance(without, Record if has_column else Rejected)
    assert text_key(with_format(whole_range(tmp_path / name, "auto"))) == "translation.en"
    with pytest.raises(DataError, match=r"no text column 'mesages.content'; .* Did you mean messages.content\?"):
        read(tmp_path / name, "mesages[].content")
    with pytest.raises(DataError, match=r"no text column 'text'; give --text_key one of id, .*translation.de"):
        read(tmp_path / name)


def test_a_mistake_within_a_dotted_key_is_told() -> None:
    head = json.dumps({"title": "T", "content": "C", "messages": [{"role": "user", "content": "Hello."}]}).encode()
    keys, _, found = json_values.unknown_keys([head], "title,mesages.content")
    assert keys == ["mesages.content"] and nearest_name(keys[0], found) == " Did you mean messages.content?"


def test_columns_whose_names_have_dots_and_fields_without_texts(tmp_path: Path) -> None:
    struct = pa.struct([("c", pa.string()), ("d.e", pa.string()), ("n", pa.null())])
    schema = pa.schema(
        [("m.x", struct), ("m", struct), ("empty", pa.list_(pa.null())), ("deep", pa.list_(pa.list_(pa.string())))]
    )
    row = {"c": SENTENCE, "d.e": SENTENCE, "n": None}
    table = pa.Table.from_pylist([{"m.x": row, "m": row, "empty": [], "deep": [[SENTENCE]]}], schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", "m.c") == [SENTENCE]
    assert texts(tmp_path / "a.parquet", "m.n") == [] and texts(tmp_path / "a.parquet", "empty") == [""]
    assert text_key(with_format(whole_range(tmp_path / "a.parquet", "auto"))) == "m.c"
    for key in ("m.x.c", "m.d.e", "deep", "m"):
        with pytest.raises(DataError, match=f"has no text column '{key}'; give --text_key one of m.c, m.n, empty, or"):
            read(tmp_path / "a.parquet", key)


@pytest.mark.parametrize("path", [("a",), ("a", "[]", "b"), ("a", "[]", "[]", "b", "[]"), ("*", "a", "[]"), ("a", "*")])
def test_names_and_paths_are_each_the_other(path: tuple[str, ...]) -> None:
    assert path_of(name_of(path)) == path


def test_fields_of_a_table_are_no_names_of_a_map(tmp_path: Path) -> None:
    row = {"doc": {key: {"text": f"{SENTENCE}{key}"} for key in "abc"}, "parts": [SENTENCE, None]}
    pq.write_table(pa.Table.from_pylist([row] * 3), tmp_path / "a.parquet")
    assert text_key(with_format(whole_range(tmp_path / "a.parquet", "auto"))) == "doc.a.text"
    assert texts(tmp_path / "a.parquet", "parts") == [SENTENCE] * 3
