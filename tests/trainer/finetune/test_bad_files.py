"""Bad input of a task: one line that names the file, the line, the value and what was expected, before any training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError, UsageError
from tests.trainer.finetune import published
from tests.trainer.finetune.tasks import data_of

HEAD = "text\tlabel\n"
GOOD = f"{HEAD}good\tpositive\nbad\tnegative\n"
DROP = 'Correct it, or leave such rows out with data.bad_rows = "drop".'
NAN = float("nan")
COLUMNS = {"text": "text", "label": "label"}


def error_of(folder: Path, kind: str, train: str | bytes, dev: str | bytes | None = None, **data: Any) -> str:
    """Write the sets of a task and return the message with which they are refused."""
    ending = {"squad": "json", "conll": "conll"}.get(data.get("format", ""), data.get("format", "tsv"))
    for name, content in (
        ("train", train),
        ("dev", train if dev is None else dev),
        ("test", data.pop("test_text", None)),
    ):
        if content is not None:
            path = folder / f"{name}.{ending}"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            data[name] = path.name

    with pytest.raises((DataError, UsageError)) as refused:
        data_of(folder, kind, data["train"], **data)
    message = str(refused.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def sentence_error(folder: Path, train: str | bytes, dev: str | bytes | None = None, **data: Any) -> str:
    return error_of(folder, "sentence", train, dev, **{"columns": COLUMNS, **data})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fine\t", "dev.tsv line 4: the label is missing. Expected one of negative, positive. Add it, or"),
        (
            "fine\tpositiv",
            'line 4: unknown label "positiv". Expected one of negative, positive. Did you mean positive?',
        ),
        ("fine", f"line 4: 1 field, expected 2: too few tabs. {DROP}"),
        ("fine\tpositive\tmore", f"line 4: 3 fields, expected 2: too many tabs. {DROP}"),
        (
            '"a\tb"\tpositive',
            f"3 fields, expected 2: too many tabs. If quotes enclose fields in this file, set data.quotes = "
            f"true. {DROP}",
        ),
        (" \tpositive", f"line 4: the text is empty. Expected text in 'text'. {DROP}"),
    ],
)
def test_a_wrong_line_of_the_dev_set(line: str, expected: str, tmp_path: Path) -> None:
    assert expected in sentence_error(tmp_path, GOOD, f"{GOOD}{line}\n")


NUMBERED = "".join(f"text {number}\t{number}.5\n" for number in range(300))
NESTED = json.dumps({"passage": {"text": "a", "questions": [{"label": 1}]}})
NO_EXAMPLES = "the train set of small has no examples. Check that the task names the right file"
LACKS_LABEL = "the column 'label' is missing here, and the rows before have it. Add it, or remove the row."
TABS = "Write tabs between the columns, or set data.format."

WRONG_SETS: list[tuple[str | bytes, dict[str, Any], str]] = [
    (
        f"{HEAD}a\t0.5\nb\t1.25\n",
        {"dev": f"{HEAD}a\t0.75\n"},
        'dev.tsv line 2: unknown label "0.75". Each different label of a training example is a class, here 0.5, 1.25. '
        'To predict a number instead, set data.labels = "number".',
    ),
    (
        f"{HEAD}a\tcaf\u00e9\nb\ttea\n",
        {"dev": f"{HEAD}a\tcafe\u0301\n"},
        "Did you mean caf\u00e9? The two differ only in their Unicode form",
    ),
    (
        '{"text": "a", "label": ["x"]}\n',
        {"format": "jsonl", "labels": ["x", "y"]},
        "train.jsonl line 1: the label is ['x'], expected text, a number or true/false.",
    ),
    (
        '{"text": "a", "label": "good"}\n{"text": "c", "label": NaN}\n',
        {"format": "jsonl"},
        "line 2: the label is missing",
    ),
    (
        '{"text": "a", "label": null}\n' * 2,
        {"format": "jsonl"},
        "line 1: the label is missing. Expected the label's name. Add it, or",
    ),
    (f"{HEAD}a\tx\nb\tx\n", {}, 'expected two different labels or more, found only "x"'),
    (GOOD, {"skip_labels": ["negative"]}, 'found only "positive". Check data.columns and data.skip_labels.'),
    (
        f"{HEAD}{NUMBERED}",
        {},
        "300 different labels in 300 examples. Check data.columns; if the label is a number to predict, set "
        'data.labels = "number".',
    ),
    (f"{HEAD}a\tx\nb\ty\tz\n", {}, "train.tsv line 3: 3 fields"),
    (
        gzip.compress(GOOD.encode(), mtime=0),
        {},
        "train.tsv is compressed. Files of tasks are read as they are; decompress it.",
    ),
    # Columns
    (
        GOOD,
        {"columns": {"text": "txt", "label": "label"}},
        "train.tsv: there is no column 'txt'; the columns are: text, label. Did you mean text?",
    ),
    (
        GOOD,
        {"columns": {"text": 0, "label": 2}, "header": False},
        "there is no column 2; the columns are: 0, 1.",
    ),
    (
        GOOD,
        {"columns": {"text": 0, "label": "label"}, "header": False},
        "there is no column 'label'; the columns are: 0, 1. Set data.columns to the file's names, as in columns = { "
        'label = "NAME" }.',
    ),
    (
        "id\tverse\tlabel\n1\ta\tx\n",
        {},
        'Set data.columns to the file\'s names, as in columns = { text = "NAME" }. If the first line is an example, '
        "set data.header = false.",
    ),
    (
        NESTED,
        {"columns": {"text": "passage.txt", "label": "passage.questions.label"}, "format": "jsonl"},
        "train.jsonl line 1: there is no column 'passage.txt'; the columns are: passage.text, passage.que",
    ),
    # Labels and texts with a space between them, as in some published files
    (
        "x a film\ny a book\n",
        {"columns": {"text": 1, "label": 0}, "header": False},
        "train.tsv has no tabs, which separate the columns of this format, so there is only one column: 'x a film'. "
        + TABS,
    ),
    ("text label\na\tx\n", {}, "/train.tsv has no tabs, which separate the columns of this format"),
    ('text|label\n"a film"|x\n', {"format": "csv"}, "train.csv has no commas, which separate the columns of this"),
    ("", {"format": "csv"}, "is empty"),
    ("\n", {"format": "csv"}, "is empty"),
    ("\n\n", {}, "is empty"),
    # Rows
    (
        '{"text": "a", "label": "x"}\n{"text": "b"}\n',
        {"format": "jsonl"},
        f"train.jsonl line 2: {LACKS_LABEL}",
    ),
    (
        '[{"text": "a", "label": "x"}, {"text": "b"}]',
        {"format": "json"},
        f"train.json element 1: {LACKS_LABEL}",
    ),
    ("", {"format": "jsonl"}, f"train.jsonl: {NO_EXAMPLES}"),
    ("[]", {"format": "json"}, f"train.json: {NO_EXAMPLES}"),
    (HEAD, {}, f"train.tsv: {NO_EXAMPLES}"),
    (GOOD, {"dev": f"{HEAD} \tpositive\n", "bad_rows": "drop"}, "dev.tsv: the dev set of small has no examples"),
    (GOOD, {"dev": GOOD.encode() + b"caf\xe9\tpositive\n"}, "dev.tsv line 4: byte 0xe9 is not UTF-8"),
    (GOOD, {"dev": GOOD.encode("utf-16")}, "line 1: byte 0xff is not UTF-8"),
    (
        '{"text": "b", "label": "bad"}\n{"text": NaN, "label": "bad"}\n',
        {"format": "jsonl", "labels": ["good", "bad"]},
        "line 2: the text is empty. Expected text in 'text'.",
    ),
    (
        'text,label\na,x\n"b,y\nc,x\n',
        {"format": "csv"},
        "train.csv line 3: a quote is not closed, or text follows a closing one",
    ),
    (
        "text,label\na,x\nb,y\nc,d,y\n",
        {"format": "csv"},
        "train.csv line 4: 3 fields, expected 2: too many commas, or a field that has one is not in quotes",
    ),
    (
        "n\ttext\tlabel\n7\ta\tx\n8\tb\ty\n7\tc\tx\n",
        {"columns": {"id": "n", **COLUMNS}},
        "/train.tsv line 2. Leave data.columns.id out to count them.",
    ),
    (
        '{"text": "a", "label": "good", "n": NaN}',
        {"format": "jsonl", "labels": ["good", "bad"], "columns": {"id": "n", **COLUMNS}},
        "line 1: the id [None] is empty or not text.",
    ),
    # Test sets
    (
        GOOD,
        {"test_text": f"{HEAD}fine\n"},
        "test.tsv line 2: 1 field, expected 2: too few tabs. Correct it, or set data.bad_rows = ",
    ),
    (GOOD, {"test_text": f"{HEAD}a\tpositive\nb\tNone\n"}, "1 examples have a label and 1 have none"),
    (GOOD, {"test_text": f"{HEAD}a\tpositive\nb\tneutral\n"}, 'test.tsv line 3: unknown label "neutral"'),
]


@pytest.mark.parametrize(("train", "data", "expected"), WRONG_SETS)
def test_a_wrong_set(train: str | bytes, data: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in sentence_error(tmp_path, train, **data)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("NaN", "is missing"),
        ("true", '"true" is not a finite number'),
        ("[1]", "is [1], expected text"),
        ("1e999", '"inf" is not a finite number'),
        ('"three"', '"three" is not a finite number, but data.labels is "number". Write a number, such as 2.5, or'),
    ],
)
def test_a_wrong_label_of_a_regression(value: str, shown: str, tmp_path: Path) -> None:
    lines = f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {value}}}\n'
    message = sentence_error(tmp_path, lines, labels="number", format="jsonl")
    assert f"train.jsonl line 2: the label {shown}" in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"text": "a", "label": }', "line 2: broken JSON at column 24: Expecting value."),
        ('{"text": "a', "line 2: broken JSON at column 10: Unterminated string."),
        ('{"text": "a\tb"}', "line 2: broken JSON at column 12: Invalid control character."),
        ('["a"]', "line 2: a JSON list, expected an object."),
        ("5", "line 2: expected a JSON object, found 5."),
        ('{"text": "a\\ud800", "label": "x"}', "line 2: '\\ud800' at character 1 is not a Unicode character."),
        ('{"text": {"a": 1}, "label": "x"}', "line 2: 'text' is {'a': 1}, expected text."),
        ('{"text": 1' + "0" * 5000 + ', "label": "x"}', "line 2: the JSON cannot be read: Exceeds the limit"),
        ("[" * 100_000, "line 2: the JSON cannot be read: maximum recursion depth"),
    ],
)
def test_a_broken_line_of_json(line: str, expected: str, tmp_path: Path) -> None:
    good = '{"text": "a", "label": "x"}\n'
    message = sentence_error(tmp_path, good, f"{good}{line}\n", format="jsonl", labels=["x", "y"])
    assert f"dev.jsonl {expected}" in message


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (2, "the label 2 is out of range: there are 2 choices, 0 to 1."),
        (-1, "the label -1 is out of range"),
        (None, "the label is missing."),
        (True, 'the label "true" is not the position of a choice.'),
        ("A", 'the label "A" is not the position of a choice.'),
        (0.5, 'the label "0.5" is not the position of a choice.'),
    ],
)
def test_a_wrong_label_of_a_choice(label: Any, expected: str, tmp_path: Path) -> None:
    line = json.dumps({"c": "context", "e": ["one", "two"], "label": label})
    columns = {"context": "c", "choices": "e", "label": "label"}
    message = error_of(tmp_path, "choice", line, columns=columns, format="jsonl")
    assert f"train.jsonl line 1: {expected}" in message


@pytest.mark.parametrize("choices", [["one"], "one", ["one", {"text": "two"}], ["one", " "], ["one", NAN], []])
def test_wrong_choices(choices: Any, tmp_path: Path) -> None:
    line = json.dumps({"c": "context", "e": choices, "label": 0})
    columns = {"context": "c", "choices": "e", "label": "label"}
    assert "train.jsonl line 1: " in error_of(tmp_path, "choice", line, columns=columns, format="jsonl")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"w": ["a", "b"], "t": ["O"]}, "1 tag for 2 words."),
        ({"w": ["a"], "t": None}, "the tags are missing."),
        ({"w": ["a"], "t": "O"}, "the tags are 'O', expected a list"),
        ({"w": ["a", " "], "t": ["O", "O"]}, "word 2 is ' ', expected text that is not blank."),
        ({"w": ["a", 3], "t": ["O", "O"]}, "word 2 is 3, expected text"),
        ({"w": [], "t": []}, "the sentence has no words."),
        ({"w": ["a"], "t": ["B-GEO"]}, 'unknown label "B-GEO". Expected one of O, B-LOC.'),
    ],
)
def test_wrong_tags(row: dict[str, Any], expected: str, tmp_path: Path) -> None:
    data = {"columns": {"words": "w", "tags": "t"}, "format": "jsonl", "labels": ["O", "B-LOC"]}
    assert f"train.jsonl line 1: {expected}" in error_of(tmp_path, "tags", json.dumps(row), **data)


def test_a_word_without_its_tag(tmp_path: Path) -> None:
    columns = {"words": 0, "tags": -1}
    message = error_of(tmp_path, "tags", "Anna NNP B-PER\nlives VBZ\n", format="conll", columns=columns)
    assert "train.conll line 2: 2 columns, but line 1 has 3. Each word needs its tag." in message
    message = error_of(tmp_path, "tags", "Anna NNP B-PER\n", format="conll", columns={"words": "form", "tags": -1})
    assert "train.conll: there is no column 'form'; the columns are: 0, 1, 2." in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"answers": [{"text": "Zzyzx", "answer_start": 4}]},
            f'the answer "Zzyzx" is nowhere in the context. {DROP}',
        ),
        ({"answers": [{"text": "May", "answer_start": 500}]}, 'but the context of 45 characters has "" at 500.'),
        ({"answers": [{"text": "May", "answer_start": -1}]}, 'the answer is "May", but the context of'),
        (
            {"answers": [{"text": "May", "answer_start": 4}]},
            'but the context of 45 characters has "Flu" at 4. data.find',
        ),
        ({"answers": [{"text": "May"}]}, "and answer_start (a whole number), found"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "the answer's text is empty"),
        ({"answers": []}, "the answers are missing. Expected one, or is_impossible = true."),
        ({"answers": "May"}, "answers is 'May', expected a list."),
        ({"is_impossible": True}, "the question is_impossible, but it has 1 answer."),
        ({"is_impossible": "no"}, "is_impossible is 'no', expected true or false."),
        ({"question": " "}, "the question is empty."),
        ({"question": None}, "the question is empty."),
        ({"question": {"text": "When?"}}, "'question' is {'text': 'When?'}, expected text."),
        ({"id": "q-2"}, 'the id "q-2" is already that of'),
    ],
)
def test_wrong_questions(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    content = published.squad(False)
    content["data"][0]["paragraphs"][0]["qas"][0].update(change)
    message = error_of(tmp_path, "span", json.dumps(content), format="squad")
    assert f"train.json question {'q-2' if 'id' in change else 'q-1'}: " in message
    assert expected in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"data": []}, "train.c3 element 0: expected C3's [[lines], [questions], id], with question"),
        ([[["A line."]]], "train.c3 element 0: expected C3's [[lines], [questions], id], with question"),
        ([[["A line."], [{"question": "Who?"}]]], "element 0: expected C3's [[lines], "),
        (
            [[["A line."], [{"question": "Who?", "choice": ["a", "b"], "answer": "c"}]]],
            "train.c3 element 0 question 0: the answer 'c' is none of the choices.",
        ),
    ],
)
def test_a_file_that_is_not_c3(content: Any, expected: str, tmp_path: Path) -> None:
    assert expected in error_of(tmp_path, "choice", json.dumps(content), format="c3")


@pytest.mark.parametrize("content", ["[]", '{"rows": []}', '{"data": [{"paragraph": []}]}', "{", ""])
def test_a_file_that_is_not_squad(content: str, tmp_path: Path) -> None:
    assert "train.json" in error_of(tmp_path, "span", content, format="squad")


def test_questions_whose_id_is_null_are_numbered(tmp_path: Path) -> None:
    content = published.squad(False)
    questions = content["data"][0]["paragraphs"][0]["qas"]
    for question in questions:
        question["id"] = None
    (tmp_path / "train.json").write_text(json.dumps(content))
    found = data_of(tmp_path, "span", "train.json").train
    assert len(questions) > 1
    assert [example.id for example in found[: len(questions)]] == [str(number) for number in range(len(questions))]


@pytest.mark.parametrize("columns", [{}, {"columns": {"prefix": "question"}}])
def test_a_prefix_is_found_by_its_name_or_named(columns: dict[str, Any], tmp_path: Path) -> None:
    name = "question" if columns else "prefix"
    line = {"context": "The sky.", name: "Which color?", "choices": ["blue", "small"], "label": 0}
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    (example,) = data_of(tmp_path, "choice", "train.jsonl", **columns).train
    assert example.choices == ("Which color? blue", "Which color? small")  # type: ignore[union-attr]
