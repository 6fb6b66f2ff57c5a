"""What quality.py understands and refuses before it trains, and the labeled sentences that nltk_corpus.py reads."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree
from zipfile import ZipFile

import pytest

from benchmarks import nltk_corpus
from trainer.suite.suite_file import open_suite

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("quality")


def test_a_name_is_a_recipe_with_changes(quality: ModuleType) -> None:
    contestant = quality.contestant_of("cpu_hour+4x256+optimizer.lr=1e-3")
    assert (contestant.recipe, contestant.start) == ("cpu_hour", "")
    assert contestant.settings["model.hidden_size"] == "256"
    assert contestant.settings["optimizer.lr"] == "1e-3", "a later part replaces a value of an earlier one"

    assert quality.contestant_of("tiny as it was").recipe == "tiny as it was"
    assert quality.contestant_of("tiny untrained").start == "untrained"
    assert quality.contestant_of("tiny random").settings["model.initial_head"] == "none"


@pytest.mark.parametrize("name", ["tiny+5x300", "tiny trained"])
def test_a_name_that_stands_for_nothing_ends_the_program_before_it_trains(quality: ModuleType, name: str) -> None:
    with pytest.raises(SystemExit, match=r"5x300|trained"):
        quality.contestant_of(name)


def test_an_output_of_another_corpus_is_refused(quality: ModuleType, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(60)))
    out = tmp_path / "out"
    out.mkdir()
    (out / "training.jsonl").write_text(json.dumps({"text": "another document"}) + "\n")
    with pytest.raises(SystemExit, match="was made from other documents"):
        quality.split_corpora([str(corpus)], out)


def test_a_drawing_has_a_curve_for_each_run_that_was_evaluated(quality: ModuleType, tmp_path: Path) -> None:
    curves = {"tiny": [(60.0, 6.5), (120.0, 5.0)], "a<b": [(30.0, 6.0)], "run_mlm, defaults": []}
    outcomes = {(name, 2.0, 0): {"curve": curve} for name, curve in curves.items()}
    quality.draw(outcomes, 6.9, tmp_path / "curves.svg")

    drawing = ElementTree.parse(tmp_path / "curves.svg").getroot()
    inside = [
        0 <= float(coordinate) <= limit
        for line in drawing.findall("{*}svg/{*}polyline")
        for point in line.attrib["points"].split()
        for coordinate, limit in zip(point.split(","), (1000, 200), strict=True)
    ]
    assert inside == [True] * 10, "two coordinates of three measurements and of both ends of the line"
    told = [text.text for text in drawing.findall("{*}text")]
    assert "tiny" in told and "a<b" in told and "run_mlm, defaults" not in told


# Labeled sentences


def package(corpora: Path, name: str, files: dict[str, str]) -> None:
    with ZipFile(corpora / f"{name}.zip", "w") as archive:
        for path, text in files.items():
            archive.writestr(f"{name}/{path}", text)


def test_a_question_has_the_kind_of_its_answer(tmp_path: Path) -> None:
    package(tmp_path, "qc", {"train.txt": "HUM:ind Who was Galileo ?\n", "test.txt": "NUM:date When is it ?\n"})
    assert nltk_corpus.questions(tmp_path) == [
        {"text": "When is it ?", "label": "NUM"},
        {"text": "Who was Galileo ?", "label": "HUM"},
    ]


def test_sets_share_no_example_and_their_suite_scores_the_rest(tmp_path: Path) -> None:
    lines = [{"text": f"sentence {i}", "label": "pos" if i % 2 else "neg"} for i in range(3700)]
    task = nltk_corpus.drawn_task("sentence", lines, tmp_path / "polarity")
    sets = {
        name: [json.loads(line)["text"] for line in (tmp_path / task["data"][name]).read_text().splitlines()]
        for name in ("train", "dev", "test")
    }
    train, dev = nltk_corpus.SET_SIZES["polarity"]
    assert [len(texts) for texts in sets.values()] == [train, dev, 3700 - train - dev]
    assert len({text for texts in sets.values() for text in texts}) == 3700

    nltk_corpus.write_suite(tmp_path / "suite.toml", {"polarity": task})
    opened = open_suite(str(tmp_path / "suite.toml"), [], []).tasks["polarity"]
    assert (opened.entry.sets, opened.task.training.epochs) == (("test",), nltk_corpus.TRAINING["epochs"])
