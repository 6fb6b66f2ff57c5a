"""Files as benchmarks publish them are read as they are, by the tasks that ship and by small ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError
from tests.trainer.finetune import published
from tests.trainer.finetune.published import SENTENCES
from tests.trainer.finetune.tasks import data_of, write_lines
from trainer.finetune.examples import (
    Answer,
    ChoiceExample,
    Example,
    SpanExample,
    TagExample,
    TaskData,
    TextExample,
    is_labeled,
)
from trainer.finetune.files.read import read_task_data
from trainer.finetune.task_file import read_task, shipped_task_names

SUITES = {"glue": published.glue, "superglue": published.superglue, "clue": published.clue}


def shipped(name: str, folder: Path, overrides: list[str] | None = None) -> TaskData:
    SUITES[name.partition("/")[0]](folder)
    return read_task_data(read_task(name, overrides or []), str(folder))


@pytest.mark.parametrize("name", [name for name in shipped_task_names() if name.partition("/")[0] in SUITES])
def test_every_shipped_task_reads_its_published_files(name: str, tmp_path: Path) -> None:
    data = shipped(name, tmp_path)
    assert len(data.train) == len(data.dev) >= 2
    assert all(is_labeled(example) for example in data.train + data.dev)

    assert data.test is not None
    # CLUE publishes C3's test answers; no other test file has any.
    assert all(is_labeled(example) == (name == "clue/c3") for example in data.test)
    assert len({example.id for example in data.test}) == len(data.test)


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "stsb", "mnli", "qnli", "rte", "wnli"])
def test_no_line_of_glue_is_lost_at_a_quote(name: str, tmp_path: Path) -> None:
    data = shipped(f"glue/{name}", tmp_path)
    texts = [example.text.strip() for example in data.train if isinstance(example, TextExample)]
    assert texts == SENTENCES


EXAMPLES = [
    ("glue/cola", "train", 0, TextExample("0", SENTENCES[0], None, 0)),
    ("glue/cola", "test", 3, TextExample("3", SENTENCES[3], None, None)),  # which alone has a header
    ("glue/stsb", "train", 1, TextExample("1", SENTENCES[1], "The answer to sentence 1.", 0.5)),
    ("superglue/multirc", "train", 3, TextExample("0-1-3", SENTENCES[0], "Is it 1? no", 0)),
    (
        "superglue/copa",
        "train",
        1,
        ChoiceExample("1", "It rained.", (f"because {SENTENCES[1]}", "because The answer to sentence 1."), 1),
    ),
    ("superglue/boolq", "train", 0, TextExample("0", SENTENCES[0], "The answer to sentence 0.", 1)),
    ("clue/csl", "train", 0, TextExample("0", "水声 图像", SENTENCES[0], 1)),
]


@pytest.mark.parametrize(("name", "part", "place", "example"), EXAMPLES)
def test_an_example_of_a_shipped_task(name: str, part: str, place: int, example: Example, tmp_path: Path) -> None:
    assert getattr(shipped(name, tmp_path), part)[place] == example


@pytest.mark.parametrize(
    ("name", "labels"),
    [("glue/stsb", ()), ("superglue/boolq", ("false", "true")), ("clue/iflytek", ("100", "104", "108", "116"))],
)
def test_labels_of_a_shipped_task(name: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    """Similarities are numbers, booleans are labels, and labels of numbers are in the order of numbers."""
    assert shipped(name, tmp_path).labels == labels


def test_microsofts_own_file_of_mrpc(tmp_path: Path) -> None:
    overrides = ["data.train=MRPC/msr_paraphrase_train.txt", "data.format=tsv"]
    data = shipped("glue/mrpc", tmp_path, overrides)
    assert data.train == shipped("glue/mrpc", tmp_path).train
    assert data.train[0] == TextExample("0", SENTENCES[0], "The answer to sentence 0.", 1)


def test_incomplete_lines_of_qqp_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = shipped("glue/qqp", tmp_path)
    assert [example.id for example in data.train] == ["0", "1", "2", "3"]
    assert data.test is not None
    assert data.test[4] == TextExample("4", "What is this?", "", None)  # every line of a test file gets a prediction

    told = capsys.readouterr().out
    assert "2 of 6 examples of the train set of qqp left out" in told
    assert "train.tsv line 4: 4 fields, expected 6: too few tabs." in told


def test_both_dev_sets_of_mnli(tmp_path: Path) -> None:
    data = shipped("glue/mnli", tmp_path)
    assert data.dev == data.extra["dev_mismatched"]
    assert data.test == data.extra["test_mismatched"]
    assert [example.label for example in data.dev if isinstance(example, TextExample)] == [2, 1, 0, 2]


def test_pairs_without_agreement_are_left_out_of_cmnli(tmp_path: Path) -> None:
    data = shipped("clue/cmnli", tmp_path)
    assert [example.id for example in data.dev] == ["0", "2", "3"]
    assert data.test is not None
    assert len(data.test) == 4


def test_whole_numbers_that_pandas_writes_as_fractions_are_the_same_labels(tmp_path: Path) -> None:
    for name, labels in (("train", (0.0, 1.0)), ("dev", (0, 1))):
        write_lines(tmp_path / f"{name}.jsonl", [{"text": "a", "label": label} for label in labels])
    assert data_of(tmp_path, "sentence", "train.jsonl", dev="dev.jsonl").labels == ("0", "1")


def test_a_label_to_skip_that_no_example_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shipped("clue/cmnli", tmp_path, ["data.skip_labels=['-', 'Neutral']"])
    assert 'No example has the label "Neutral" of data.skip_labels. Did you mean neutral?' in caplog.text
    assert 'the label "-"' not in caplog.text


def test_c3(tmp_path: Path) -> None:
    data = shipped("clue/c3", tmp_path)
    choices = ("天气怎么样？ 下雨", "天气怎么样？ 不下雨", "天气怎么样？ 下雪")
    assert data.train[0] == ChoiceExample("0", "男：今天下雨吗？\n女：不下。", choices, 1)
    assert [len(example.choices) for example in data.train if isinstance(example, ChoiceExample)] == [3, 2, 2]


def test_swag(tmp_path: Path) -> None:
    published.write(tmp_path / "train.csv", published.SWAG)
    endings = [f"ending{number}" for number in range(4)]
    columns = {"context": "sent1", "prefix": "sent2", "choices": endings, "label": "label"}
    data = data_of(tmp_path, "choice", "train.csv", columns=columns)
    choices = ("She leaves.", 'She sings "la".', "She sits.", "She eats.")
    assert data.train[0] == ChoiceExample("0", "She opens the door, slowly.", choices, 0)


@pytest.mark.parametrize("version_2", [False, True])
def test_squad(version_2: bool, tmp_path: Path) -> None:
    published.write(tmp_path / "train.json", json.dumps(published.squad(version_2)))
    data = data_of(tmp_path, "span", "train.json")

    first = data.train[0]
    assert isinstance(first, SpanExample)
    assert first.answers == (Answer("im Norden", 18),)  # in characters, of which 𝔄 is one
    assert len(data.train) == (3 if version_2 else 2)
    if version_2:
        last = data.train[2]
        assert isinstance(last, SpanExample)
        assert (last.is_impossible, last.answers) == (True, ())


def test_empty_answers_among_others_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = published.squad(False)
    questions = content["data"][0]["paragraphs"][0]["qas"]
    questions[0]["answers"].append({"text": " ", "answer_start": 0})
    published.write(tmp_path / "train.json", json.dumps(content))
    data = data_of(tmp_path, "span", "train.json", test="train.json")
    for examples in (data.train, data.dev, data.test or []):
        assert [len(example.answers) for example in examples if isinstance(example, SpanExample)] == [1, 3]
    for name in ("train", "dev", "test"):
        said = f"1 empty answer of the {name} set of small left out; its question has others. The first: "
        assert f"{said}{tmp_path}/train.json question q-1." in caplog.text

    # Where a test set has no other answer, data.bad_rows would not help.
    questions[0]["answers"] = [{"text": " ", "answer_start": 0}]
    published.write(tmp_path / "test.json", json.dumps(content))
    with pytest.raises(DataError, match=r"test.json question q-1: the answer's text is empty. .* is_impossible"):
        data_of(tmp_path, "span", "train.json", test="test.json", bad_rows="drop")


def test_misplaced_answers_can_be_moved(tmp_path: Path) -> None:
    content = published.squad(False)
    questions = content["data"][0]["paragraphs"][0]["qas"]
    questions[0]["answers"] = [{"text": "i", "answer_start": 30}]  # nearest: "It rains" has one at 34, "im" one at 18
    questions[1]["answers"] = [{"text": "June", "answer_start": 3}]
    published.write(tmp_path / "train.json", json.dumps(content))
    data = data_of(tmp_path, "span", "train.json", find_answers=True, bad_rows="drop")
    assert [example.answers for example in data.train if isinstance(example, SpanExample)] == [(Answer("i", 34),)]
    assert [example.answers for example in data.dev if isinstance(example, SpanExample)][1] == (Answer("June", -1),)


@pytest.mark.parametrize(
    ("content", "sentences", "labels"),
    [
        (published.CONLL_2003, [("Anna", "lives", "in", "Rome", "."), ('"', "Yes")], ("B-LOC", "B-PER", "O")),
        (published.CONLL_2000, [("Rivers", "flow"), ("They", "stop", ".")], ("B-NP", "B-VP", "O")),
        (published.WNUT, [("@anna", "#rome", "is"), ("New", "York")], ("B-location", "I-location", "O")),
        (published.WNUT.replace("\n", "\r\n"), [("@anna", "#rome", "is"), ("New", "York")], None),
    ],
)
def test_conll(content: str, sentences: list[tuple[str, ...]], labels: tuple[str, ...] | None, tmp_path: Path) -> None:
    published.write(tmp_path / "train.txt", content)
    published.write(tmp_path / "test.txt", "".join("\n".join(words) + "\n\n" for words in sentences))
    data = data_of(tmp_path, "tags", "train.txt", test="test.txt")

    examples = [example for example in data.train if isinstance(example, TagExample)]
    assert [example.words for example in examples] == sentences
    assert labels is None or data.labels == labels
    assert examples[0].tags is not None
    assert data.labels[examples[0].tags[1]] == content.splitlines()[3 if "DOCSTART" in content else 1].split()[-1]
    assert data.test == [TagExample(str(number), words, None) for number, words in enumerate(sentences)]


@pytest.mark.parametrize("placeholder", [-1, "-1", "None", None, "", "?"])
def test_placeholders_of_test_files_are_no_labels(placeholder: Any, tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in [("yes", "a"), ("no", "b")]]
    write_lines(tmp_path / "train.jsonl", rows)
    write_lines(tmp_path / "test.jsonl", [{**row, "label": placeholder} for row in rows])
    test = data_of(tmp_path, "sentence", "train.jsonl", test="test.jsonl").test
    assert test == [TextExample("0", "yes", None, None), TextExample("1", "no", None, None)]


def test_minus_one_is_a_number_unless_every_example_has_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.jsonl", [{"text": "a", "label": -1}, {"text": "b", "label": 2}])
    write_lines(tmp_path / "hidden.jsonl", [{"text": "a", "label": -1.0}, {"text": "b", "label": -1}])
    files = {"test": "train.jsonl", "extra": {"hidden": "hidden.jsonl"}}
    data = data_of(tmp_path, "sentence", "train.jsonl", **files, labels="number")

    assert data.test is not None
    assert [example.label for example in data.test if isinstance(example, TextExample)] == [-1.0, 2.0]
    assert [is_labeled(example) for example in data.extra["hidden"]] == [False, False]


def test_files_in_a_store(tmp_path: Path) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/finetune/train.tsv", b"text\tlabel\ngood\t1\nbad\t0\n")
    data = data_of("memory://finetune", "sentence", "train.tsv", dev="memory://finetune/train.tsv")
    assert data.train == data.dev == [TextExample("0", "good", None, 1), TextExample("1", "bad", None, 0)]
