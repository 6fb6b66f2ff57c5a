"""Bad input of a task: one line that names the file, the line, the value and what was expected, before any training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ClozelineError, DataError, UsageError
from tests.trainer.finetune import published
from trainer.finetune.files.read import read_task_data
from trainer.finetune.task import Task

GOOD = "text\tlabel\ngood\tpositive\nbad\tnegative\n"
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

    task = Task.model_validate({"name": "small", "kind": kind, "data": data})
    with pytest.raises(ClozelineError) as refused:
        read_task_data(task, str(folder))

    assert isinstance(refused.value, DataError | UsageError)
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


def test_an_unknown_label_that_looks_like_a_value(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, "text\tlabel\na\t0.5\nb\t1.25\n", "text\tlabel\na\t0.75\n")
    assert 'dev.tsv line 2: unknown label "0.75". Each different label of a training example is a class' in message
    assert message.endswith('here 0.5, 1.25. To predict a number instead, set data.labels = "number".')
    assert "Did you mean" not in message


def test_a_label_in_another_unicode_form(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, "text\tlabel\na\tcaf\u00e9\nb\ttea\n", "text\tlabel\na\tcafe\u0301\n")
    assert "Did you mean caf\u00e9? The two differ only in their Unicode form" in message


@pytest.mark.parametrize("label", ["nan", "inf", "three", "1,5", "true"])
def test_a_regression_label_that_is_no_number(label: str, tmp_path: Path) -> None:
    message = sentence_error(tmp_path, f"text\tlabel\na\t1.5\nb\t{label}\n", labels="number")
    assert f'train.tsv line 3: the label "{label}" is not a finite number' in message
    assert message.endswith("Write a number, such as 2.5, or leave data.labels out if the labels are names.")


@pytest.mark.parametrize(
    ("value", "shown"), [("NaN", "is missing"), ("true", "true"), ("[1]", "[1]"), ("1e999", "inf")]
)
def test_a_regression_label_of_the_wrong_type(value: str, shown: str, tmp_path: Path) -> None:
    lines = f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {value}}}\n'
    message = sentence_error(tmp_path, lines, labels="number", format="jsonl")
    assert "train.jsonl line 2: the label" in message
    assert shown in message


def test_a_label_that_is_a_list(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, '{"text": "a", "label": ["x"]}\n', format="jsonl", labels=["x", "y"])
    assert "train.jsonl line 1: the label is ['x'], expected text, a number or true/false." in message


def test_a_compressed_file(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, gzip.compress(GOOD.encode()))
    assert "train.tsv is compressed. Files of tasks are read as they are; decompress it." in message


def test_labels_that_are_all_alike_or_all_different(tmp_path: Path) -> None:
    alike = sentence_error(tmp_path, "text\tlabel\na\tx\nb\tx\n")
    assert 'expected two different labels or more, found only "x"' in alike
    assert "train.tsv line 3: 3 fields" in sentence_error(tmp_path, "text\tlabel\na\tx\nb\ty\tz\n")

    lines = "".join(f"text {number}\t{number}.5\n" for number in range(300))
    different = sentence_error(tmp_path, f"text\tlabel\n{lines}")
    assert "300 different labels in 300 examples" in different
    assert 'data.labels = "number"' in different


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, GOOD, columns={"text": "txt", "label": "label"})
    assert "train.tsv: there is no column 'txt'; the columns are: text, label. Did you mean text?" in message

    message = sentence_error(tmp_path, GOOD, columns={"text": 0, "label": 2}, header=False)
    assert "there is no column 2; the columns are: 0, 1." in message
    message = sentence_error(tmp_path, GOOD, columns={"text": 0, "label": "label"}, header=False)
    assert "there is no column 'label'; the columns are: 0, 1." in message and "data.header" not in message

    message = sentence_error(tmp_path, "id\tverse\tlabel\n1\ta\tx\n")
    assert 'Set data.columns to the file\'s names, as in columns = { text = "NAME" }.' in message
    assert message.endswith("If the first line is an example, set data.header = false.")

    line = json.dumps({"passage": {"text": "a", "questions": [{"label": 1}]}})
    columns = {"text": "passage.txt", "label": "passage.questions.label"}
    message = sentence_error(tmp_path, line, columns=columns, format="jsonl")
    assert "train.jsonl line 1: there is no column 'passage.txt'; the columns are: passage.text, passage.que" in message


def test_lines_without_the_separator_are_shown(tmp_path: Path) -> None:
    """Labels and texts with a space between them, as in some published files."""
    message = sentence_error(tmp_path, "x a film\ny a book\n", columns={"text": 1, "label": 0}, header=False)
    assert message.endswith(
        "train.tsv has no tabs, which separate the columns of this format, so there is only one column: "
        "'x a film'. Write tabs between the columns, or set data.format."
    )
    message = sentence_error(tmp_path, "text,label\na,x\n")
    assert "train.tsv has no tabs" in message and "'text,label'" in message
    message = sentence_error(tmp_path, "text label\na\tx\n")
    assert f"the first line of {tmp_path}/train.tsv has no tabs" in message

    for name, content in (("csv", ""), ("csv", "\n"), ("tsv", "\n\n")):
        assert "is empty" in sentence_error(tmp_path, content, format=name)

    message = sentence_error(tmp_path, 'text|label\n"a film"|x\n', format="csv")
    assert "has no commas" in message and "'text|label'" in message


@pytest.mark.parametrize(("file_format", "place"), [("jsonl", "train.jsonl line 2"), ("json", "train.json element 1")])
def test_a_row_that_lacks_a_column_of_the_rows_before(file_format: str, place: str, tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x"}, {"text": "b"}]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    message = sentence_error(tmp_path, lines if file_format == "jsonl" else json.dumps(rows), format=file_format)
    assert f"{place}: the column 'label' is missing here, and the rows before have it." in message
    assert "data.columns" not in message


@pytest.mark.parametrize(("file_format", "content"), [("jsonl", ""), ("json", "[]"), ("tsv", "text\tlabel\n")])
def test_an_empty_training_set(file_format: str, content: str, tmp_path: Path) -> None:
    message = sentence_error(tmp_path, content, format=file_format)
    assert (
        f"train.{file_format}: the train set of small has no examples. Check that the task names the right file"
        in message
    )


def test_a_set_of_which_nothing_is_left(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, GOOD, "text\tlabel\n \tpositive\n", bad_rows="drop")
    assert "dev.tsv: the dev set of small has no examples" in message


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    assert "dev.tsv line 4: byte 0xe9 is not UTF-8" in sentence_error(
        tmp_path, GOOD, GOOD.encode() + b"caf\xe9\tpositive\n"
    )
    assert "line 1: byte 0xff is not UTF-8" in sentence_error(tmp_path, GOOD, GOOD.encode("utf-16"))


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


def test_a_quote_that_is_never_closed_names_its_line(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, 'text,label\na,x\n"b,y\nc,x\n', format="csv")
    assert "train.csv line 3: a quote is not closed" in message
    assert "data.quotes = false" in message


def test_a_comma_outside_of_quotes(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, "text,label\na,x\nb,y\nc,d,y\n", format="csv")
    assert (
        "train.csv line 4: 3 fields, expected 2: too many commas, or a field that has one is not in quotes" in message
    )


def test_a_bad_row_of_a_test_set_can_be_kept(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, GOOD, test_text="text\tlabel\nfine\n")
    assert "test.tsv line 2: 1 field, expected 2: too few tabs. Correct it, or set data.bad_rows = " in message


def test_a_duplicate_id(tmp_path: Path) -> None:
    lines = "n\ttext\tlabel\n7\ta\tx\n8\tb\ty\n7\tc\tx\n"
    message = sentence_error(tmp_path, lines, columns={"id": "n", **COLUMNS})
    known = f'train.tsv line 4: the id "7" is already that of {tmp_path}/train.tsv line 2.'
    assert message.endswith(f"{known} Leave data.columns.id out to count them.")


def test_test_labels_for_some_examples_alone(tmp_path: Path) -> None:
    message = sentence_error(tmp_path, GOOD, test_text="text\tlabel\na\tpositive\nb\tNone\n")
    assert "1 examples have a label and 1 have none" in message

    unknown = sentence_error(tmp_path, GOOD, test_text="text\tlabel\na\tpositive\nb\tneutral\n")
    assert 'test.tsv line 3: unknown label "neutral"' in unknown


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


@pytest.mark.parametrize("choices", [["one"], "one", ["one", {"text": "two"}], ["one", " "], []])
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
        ({"data": []}, "train.c3 is not a list. Expected C3's [[lines], [questions], id]"),
        ([[["A line."]]], "train.c3 element 0: expected [[lines], [questions], id]"),
        ([[["A line."], [{"question": "Who?", "choice": 5}]]], "element 0 question 0: expected an object with"),
        (
            [[["A line."], [{"question": "Who?", "choice": ["a", "b"], "answer": "c"}]]],
            "train.c3 element 0 question 0: the answer 'c' is none of the choices ['a', 'b'].",
        ),
    ],
)
def test_a_file_that_is_not_c3(content: Any, expected: str, tmp_path: Path) -> None:
    assert expected in error_of(tmp_path, "choice", json.dumps(content), format="c3")


@pytest.mark.parametrize("content", ["[]", '{"rows": []}', '{"data": [{"paragraph": []}]}', "{", ""])
def test_a_file_that_is_not_squad(content: str, tmp_path: Path) -> None:
    assert "train.json" in error_of(tmp_path, "span", content, format="squad")


def test_a_label_that_is_nan_is_missing(tmp_path: Path) -> None:
    lines = ['{"text": "a", "label": "good"}', '{"text": "b", "label": "bad"}', '{"text": "c", "label": NaN}']
    assert "line 3: the label is missing" in sentence_error(tmp_path, "\n".join(lines) + "\n", format="jsonl")


def test_a_text_or_an_id_that_is_nan_is_missing(tmp_path: Path) -> None:
    lines = ['{"text": "a", "label": "good"}', '{"text": "b", "label": "bad"}', '{"text": NaN, "label": "bad"}']
    message = sentence_error(tmp_path, "\n".join(lines) + "\n", format="jsonl")
    assert "line 3: the text is empty. Expected text in 'text'." in message

    rows = [{"context": "a", "choices": ["b", "c"], "label": 0}, {"context": "a", "choices": ["b", NAN], "label": 0}]
    message = error_of(tmp_path, "choice", "".join(json.dumps(row) + "\n" for row in rows), format="jsonl")
    assert "line 2: a choice is empty." in message

    row = json.dumps({"text": "a", "label": "good", "n": NAN})
    message = sentence_error(tmp_path, row, format="jsonl", labels=("good", "bad"), columns={"id": "n", **COLUMNS})
    assert "line 1: the id [None] is empty or not text." in message


def test_questions_whose_id_is_null_are_numbered(tmp_path: Path) -> None:
    content = published.squad(False)
    questions = content["data"][0]["paragraphs"][0]["qas"]
    for question in questions:
        question["id"] = None
    (tmp_path / "train.json").write_text(json.dumps(content))
    data = {"train": "train.json", "dev": "train.json"}
    task = Task.model_validate({"name": "small", "kind": "span", "data": data})
    found = read_task_data(task, str(tmp_path)).train
    assert len(questions) > 1
    assert [example.id for example in found[: len(questions)]] == [str(number) for number in range(len(questions))]


@pytest.mark.parametrize("columns", [{}, {"columns": {"prefix": "question"}}])
def test_a_prefix_is_found_by_its_name_or_named(columns: dict[str, Any], tmp_path: Path) -> None:
    name = "question" if columns else "prefix"
    line = {"context": "The sky.", name: "Which color?", "choices": ["blue", "small"], "label": 0}
    for file in ("train", "dev"):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps(line) + "\n")
    data = {"train": "train.jsonl", "dev": "dev.jsonl"} | columns
    (example,) = read_task_data(Task.model_validate({"name": "c", "kind": "choice", "data": data}), str(tmp_path)).train
    assert example.choices == ("Which color? blue", "Which color? small")  # type: ignore[union-attr]


def test_labels_that_are_missing_or_skipped_everywhere(tmp_path: Path) -> None:
    nothing = sentence_error(tmp_path, '{"text": "a", "label": null}\n' * 2, format="jsonl")
    assert "line 1: the label is missing. Expected the label's name. Add it, or" in nothing

    one_left = sentence_error(tmp_path, GOOD, skip_labels=["negative"])
    assert 'found only "positive". Check data.columns and data.skip_labels.' in one_left
