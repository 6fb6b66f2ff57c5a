"""Parquet files as the Hugging Face Hub has them are read for every kind of task, with the names of their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from schemas.errors import DataError
from tests.trainer.finetune.tasks import data_of
from trainer.finetune.examples import Answer, ChoiceExample, SpanExample, TagExample, TaskData, TextExample, is_labeled

TAGS = datasets.ClassLabel(names=["O", "B-PER"])


def written(folder: Path, rows: dict[str, list[Any]], types: dict[str, Any] | None = None, name: str = "train") -> None:
    """Write rows as a Parquet file, as datasets does. types: features of some columns."""
    found = datasets.Dataset.from_dict(rows)
    found.cast(datasets.Features({**found.features, **(types or {})})).to_parquet(folder / f"{name}.parquet")


def read(folder: Path, kind: str, **data: Any) -> TaskData:
    return data_of(folder, kind, "train.parquet", **data)


def test_labels_have_the_names_of_the_file(tmp_path: Path) -> None:
    labels = datasets.ClassLabel(names=["negative", "positive"])
    written(tmp_path, {"text": ["bad", "so\ngood"], "label": [0, 1], "idx": [7, 8]}, {"label": labels})
    data = read(tmp_path, "sentence", columns={"id": "idx"})
    assert data.labels == ("negative", "positive")
    assert data.train == [TextExample("7", "bad", None, 0), TextExample("8", "so\ngood", None, 1)]


def test_hidden_labels_of_test_files_are_none(tmp_path: Path) -> None:
    labels = datasets.ClassLabel(names=["no", "yes"])
    written(tmp_path, {"text": ["a", "b"], "label": [0, 1]}, {"label": labels})
    written(tmp_path, {"text": ["c"], "label": [-1]}, {"label": labels}, "test")
    data = read(tmp_path, "sentence", test="test.parquet")
    assert data.test == [TextExample("0", "c", None, None)]


def test_numbers_without_names_and_nested_columns(tmp_path: Path) -> None:
    written(tmp_path, {"pair": [{"a": "x", "b": "y"}, {"a": "z", "b": "w"}], "score": [0.5, 2.0]})
    columns = {"text": "pair.a", "text_pair": "pair.b", "label": "score"}
    data = read(tmp_path, "pair", columns=columns, labels="number")
    assert data.train == [TextExample("0", "x", "y", 0.5), TextExample("1", "z", "w", 2.0)]


def test_words_with_tags(tmp_path: Path) -> None:
    rows = {"tokens": [["Anna", "sings"], ["Rain"]], "ner_tags": [[1, 0], [0]]}
    written(tmp_path, rows, {"ner_tags": datasets.Sequence(TAGS)})
    data = read(tmp_path, "tags", columns={"words": "tokens", "tags": "ner_tags"})
    assert data.labels == ("B-PER", "O")
    assert data.train == [TagExample("0", ("Anna", "sings"), (0, 1)), TagExample("1", ("Rain",), (1,))]


def test_choices(tmp_path: Path) -> None:
    written(tmp_path, {"context": ["He"], "choices": [["ran", "blue"]], "label": [0]})
    assert read(tmp_path, "choice").train == [ChoiceExample("0", "He", ("ran", "blue"), 0)]


def test_questions_with_and_without_answers(tmp_path: Path) -> None:
    rows = {
        "id": ["q1", "q2"],
        "context": ["Anna sings.", "It rains."],
        "question": ["Who?", "Who?"],
        "answers": [{"text": ["Anna"], "answer_start": [0]}, {"text": [], "answer_start": []}],
    }
    written(tmp_path, rows)
    answered = SpanExample("q1", "Who?", "Anna sings.", (Answer("Anna", 0),), False)
    assert read(tmp_path, "span").train == [answered, SpanExample("q2", "Who?", "It rains.", (), True)]


def test_damaged_file_and_missing_column_are_named(tmp_path: Path) -> None:
    written(tmp_path, {"sentence": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match=r"train.parquet row 0: there is no column 'text'; .* sentence, label"):
        read(tmp_path, "sentence")

    (tmp_path / "train.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(DataError, match=r"train.parquet cannot be read as Parquet"):
        read(tmp_path, "sentence")


def test_hidden_answers_and_missing_labels(tmp_path: Path) -> None:
    rows = {"id": ["q"], "context": ["Anna sings."], "question": ["Who?"]}
    written(tmp_path, rows | {"answers": [{"text": ["Anna"], "answer_start": [0]}]})
    written(tmp_path, rows | {"answers": [{"text": [], "answer_start": []}]}, name="test")
    found = read(tmp_path, "span", test="test.parquet").test
    assert found == [SpanExample("q", "Who?", "Anna sings.", (), False)] and not is_labeled(found[0])

    labels = {"label": datasets.ClassLabel(names=["no", "yes"])}
    written(tmp_path, {"text": ["a", "b", "c"], "label": [0, 1, -1], "image": [b"x"] * 3}, labels)
    with pytest.raises(DataError, match=r"row 2: the label is missing"):
        read(tmp_path, "sentence")
    assert [example.id for example in read(tmp_path, "sentence", skip_labels=["-1"]).train] == ["0", "1"]


def test_values_that_do_not_fit_are_errors_and_hidden_tags_none(tmp_path: Path) -> None:
    rows = {"tokens": [["Anna", "sings"]], "ner_tags": [[1, 0]]}
    types = {"ner_tags": datasets.Sequence(TAGS)}
    written(tmp_path, rows, types)
    written(tmp_path, rows | {"ner_tags": [[-1, -1]]}, types, "test")
    columns = {"words": "tokens", "tags": "ner_tags"}
    assert read(tmp_path, "tags", columns=columns, test="test.parquet").test == [
        TagExample("0", ("Anna", "sings"), None)
    ]

    question = {"id": ["q"], "context": ["Anna sings."], "question": ["Who?"]}
    for answers in ({"text": ["Anna"], "answer_start": [0, 1]}, {"text": None, "answer_start": None}):
        written(tmp_path, question | {"answers": [answers]})
        with pytest.raises(DataError, match="expected a list"):
            read(tmp_path, "span")


def test_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    written(tmp_path, {"text": ["a", "b"], "target.label": ["no", "yes"]})
    data = read(tmp_path, "sentence", columns={"label": "target.label"}, test="train.parquet")
    assert data.test == data.train == [TextExample("0", "a", None, 0), TextExample("1", "b", None, 1)]


def test_texts_as_bytes(tmp_path: Path) -> None:
    written(tmp_path, {"text": ["schön".encode(), b"bad"], "label": [1, 0]})
    assert read(tmp_path, "sentence").train == [TextExample("0", "schön", None, 1), TextExample("1", "bad", None, 0)]

    written(tmp_path, {"text": [b"good", b"\xe4"], "label": [b"yes", b"no"]})
    with pytest.raises(DataError, match=r"train\.parquet row 1: 'text' is b'\\xe4', expected text"):
        read(tmp_path, "sentence")
    written(tmp_path, {"text": ["good", "bad"], "label": [b"yes", b"n\xe9"]})
    with pytest.raises(DataError, match=r"row 1: the label is b'n\\xe9', expected text"):
        read(tmp_path, "sentence")


def test_files_with_names_and_numbers_for_the_same_labels(tmp_path: Path) -> None:
    labels = datasets.ClassLabel(names=["negative", "positive"])
    written(tmp_path, {"text": ["c", "d"], "label": [1, 0]}, name="more")
    written(tmp_path, {"text": ["bad", "good"], "label": [0, 1]}, {"label": labels})
    both = ["train.parquet", "more.parquet"]
    with pytest.raises(DataError, match=r"more\.parquet has numbers as labels \(0, 1\), but .*\.parquet has names"):
        read(tmp_path, "sentence", train=both)
    found = read(tmp_path, "sentence", train=both, labels=["negative", "positive", "0", "1"]).train
    assert found[3] == TextExample("3", "d", None, 2)
