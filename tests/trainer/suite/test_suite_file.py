"""Suites are read strictly, and what is missing is named before anything starts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from schemas.errors import DataError, UsageError
from tests.trainer.suite.conftest import changed
from trainer.suite.encoders import encoders_of, name_of
from trainer.suite.needed_files import missing_files, without_missing
from trainer.suite.suite_file import open_suite, suite_names


@pytest.mark.parametrize("name", suite_names())
def test_the_shipped_suites_open(name: str) -> None:
    suite = open_suite(name, [], [])
    assert suite.name == name
    for task in suite.tasks.values():
        assert task.metric in task.task.metrics
        assert task.task.source


def test_cb_counts_what_the_leaderboard_counts() -> None:
    assert open_suite("superglue", [], []).tasks["cb"].metric == "accuracy_and_macro_f1"


def test_a_suite_opens_with_its_tasks(suite_file: Path) -> None:
    suite = open_suite(str(suite_file), [], ["training.epochs=7", "tags:training.epochs=9"])
    assert list(suite.tasks) == ["subjects", "tags", "verbs"]
    assert [task.task.training.epochs for task in suite.tasks.values()] == [7, 9, 7]
    assert [task.metric for task in suite.tasks.values()] == ["accuracy", "chunk_f1", "accuracy"]


def test_the_table_of_a_task_comes_before_its_file_and_that_before_the_defaults(suite_file: Path) -> None:
    content = tomllib.loads(suite_file.read_text())
    content["defaults"] = {"source": "nowhere", "training": {"epochs": 5, "weight_decay": 0.5}}
    content["tasks"]["tags"]["training"] = {"batch": 3}
    suite_file.write_text(tomli_w.dumps(content))
    tags = open_suite(str(suite_file), [], []).tasks["tags"].task
    assert tags.source == "https://example.org/tags"
    assert (tags.training.epochs, tags.training.batch, tags.training.weight_decay) == (2, 3, 0.5)


def test_a_labeled_test_set_can_be_reported(suite_file: Path) -> None:
    data = {"train": "subjects/train.jsonl", "dev": "subjects/dev.jsonl", "test": "subjects/dev.jsonl"}
    changed(suite_file.parent / "subjects.toml", data=data)
    changed(suite_file, tasks={"subjects": {"file": "subjects.toml", "sets": ["dev", "test"]}})
    assert open_suite(str(suite_file), [], []).tasks["subjects"].entry.sets == ("dev", "test")


def test_data_are_found_beside_the_task_file_as_by_finetune(suite_file: Path) -> None:
    """A suite of task files from other folders."""
    folder = suite_file.parent
    elsewhere = folder.parent / "suites" / "mixed.toml"
    elsewhere.parent.mkdir()
    text = suite_file.read_text().replace('file = "', 'file = "../small/').replace("pairs/*", "p/*")
    elsewhere.write_text(text.replace("verbs/", "../small/verbs/"))
    suite = open_suite(str(elsewhere), [], [])
    assert [part.name for part in missing_files(suite)] == ["order"]
    (folder / "pairs").rename(elsewhere.parent / "p")
    assert missing_files(suite) == []


def test_only_keeps_what_a_task_starts_from(suite_file: Path) -> None:
    assert open_suite(str(suite_file), ["verbs"], []).names == ["subjects", "verbs"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"a": {}}}, r"small\.toml: tasks\.a: kind is missing\."),
        (
            {"tasks": {"a": {"file": "tags.toml", "metrik": "x"}}},
            r"small\.toml: tasks\.a: unknown key metrik\. Did you mean metric\?",
        ),
        ({"tasks": {"a": {"file": 3}}}, r"small\.toml: tasks\.a: file: expected a text, found 3"),
        ({"tasks": {"a/b": {"file": "tags.toml"}}}, "'a/b' is no valid name"),
        ({"tasks": {"a": {"file": "tags.toml", "metric": "f2"}}}, r"a reports f2, .* metrics chunk_f1. Add it to"),
        ({"tasks": {"a": {"file": "tags.toml", "sets": ["hard"]}}}, "the set hard, but it has only dev"),
        (
            {"tasks": {"a": {"file": "tags.toml", "sets": ["dev", "dev"]}}},
            "names a set twice: sets = dev, dev. Name each once",
        ),
        ({"tasks": {"a": {"file": "none.toml"}}}, r"small\.toml: the task file .*none\.toml does not exist"),
        ({"tasks": {"a": {"starts_from": "b"}}}, "a starts from b, which is not an earlier .* Earlier tasks: none"),
        ({"tasks": {"order": {"file": "tags.toml"}}}, "two parts of the suite have the name order"),
        ({"tasks": {"probe": {"file": "tags.toml"}}}, "the name probe is reserved"),
        ({"tasks": {"average": {"file": "tags.toml"}}}, "the name average is reserved"),
        ({"minimal_pairs": {"export": {"files": "*"}}}, "the name export is reserved"),
        ({"minimal_pairs": {"a": {"variant": "all"}}}, r"minimal_pairs\.a: files is missing.* variant: expected"),
        ({"tasks": {}, "minimal_pairs": {}}, "neither tasks nor minimal pairs"),
        (
            {"defaults": {"training": {"lr": "high"}}},
            r"small\.toml: tasks\.verbs and \[defaults\]: training\.lr: expected a number, found 'high'",
        ),
        ({"defaults": {"metirc": "accuracy"}}, r"small\.toml: defaults: unknown key metirc\. Did you mean metric\?"),
        ({"defaults": {"starts_from": "verbs"}}, r"small\.toml: defaults: starts_from is for single tasks"),
        (
            {"tasks": {"a": {"file": "tags.toml", "training": {"lr": "high"}}}},
            r"small\.toml: tasks\.a with .*tags\.toml: training\.lr: expected a number, found 'high'",
        ),
        (
            {"tasks": {"a": {"colour": 1}}},
            r"tasks\.a: unknown key colour\. A task of a suite has file, metric, .* kind",
        ),
        ({"nmae": "x"}, r"unknown key nmae\. Did you mean name\?"),
    ],
)
def test_what_is_wrong_is_named(suite_file: Path, changes: dict[str, object], message: str) -> None:
    if "defaults" in changes and "tasks" not in changes:
        changes["tasks"] = {"verbs": {"kind": "sentence", "data": {"train": "a.jsonl", "dev": "b.jsonl"}}}
    with pytest.raises(UsageError, match=message):
        open_suite(str(changed(suite_file, **changes)), [], [])


def test_wrong_words_are_named(suite_file: Path) -> None:
    with pytest.raises(UsageError, match=r"--only tag: .* Did you mean tags\?"):
        open_suite(str(suite_file), ["tag"], [])
    with pytest.raises(UsageError, match=r"no task verb\. Did you mean verbs\?"):
        open_suite(str(suite_file), [], ["verb:training.lr=1"])
    with pytest.raises(UsageError, match=r"--suite glu .* Did you mean glue\? .* shipped suite: babylm, "):
        open_suite("glu", [], [])
    missing = suite_file.parent / "smal.toml"
    message = f"--suite {missing} does not exist. Did you mean {suite_file}? Give the path of a suite file."
    with pytest.raises(UsageError, match=re.escape(message)):
        open_suite(str(missing), [], [])


def test_a_wrong_change_is_told_with_the_task(suite_file: Path) -> None:
    suite_file = changed(suite_file, defaults={"training": {"epochs": 3}})
    message = rf"with {suite_file.parent}/tags\.toml: --set training\.batch=big: training\.batch: expected a"
    with pytest.raises(UsageError, match=message):
        open_suite(str(suite_file), [], ["tags:training.batch=big"])


def test_all_missing_files_are_named_at_once(suite_file: Path) -> None:
    folder = suite_file.parent
    (folder / "subjects/dev.jsonl").unlink()
    (folder / "tags/train.jsonl").unlink()
    for path in (folder / "pairs").iterdir():
        path.unlink()

    with pytest.raises(DataError) as error:
        without_missing(open_suite(str(suite_file), [], []), skip=False)
    assert str(error.value).splitlines() == [
        "3 files of the suite small cannot be found:",
        "  subjects: subjects/dev.jsonl (from https://example.org/subjects)",
        "  tags: tags/train.jsonl (from https://example.org/tags)",
        "  order: pairs/*.jsonl (from https://example.org/pairs)",
        "Their paths are relative to --data, by default the folder of the file that names them. Put them there, or "
        "run the other tasks with --skip_missing or --only.",
    ]


def test_a_suite_of_which_nothing_is_left(suite_file: Path, tmp_path: Path) -> None:
    suite = open_suite(str(suite_file), ["subjects", "order"], [], str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"^3 files of the suite small cannot be found:") as error:
        without_missing(suite, skip=True)
    assert str(error.value).endswith("by default the folder of the file that names them. Put them there.")


def test_a_task_is_skipped_with_the_one_that_it_starts_from_and_optional_parts_alone(suite_file: Path) -> None:
    optional = {"order": {"files": "none/*.jsonl", "optional": True}}
    suite = open_suite(str(changed(suite_file, minimal_pairs=optional)), [], [])
    kept, skipped = without_missing(suite, skip=False)
    assert (kept.names, [part.name for part in skipped]) == (["subjects", "tags", "verbs"], ["order"])

    (suite_file.parent / "subjects/dev.jsonl").unlink()
    kept, skipped = without_missing(suite, skip=True)
    assert (kept.names, [part.name for part in skipped]) == (["tags"], ["subjects", "order", "verbs"])


def test_folders_get_short_names(tmp_path: Path) -> None:
    assert [name_of(path) for path in ("/a/bert", "/a/x/hf", "/a/.y/hf/", "/hf")] == ["bert", "x", "y", "encoder"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (tmp_path / name / file).write_text("{}")

    found = encoders_of([str(tmp_path / "one"), f"mine={tmp_path / 'two'}"], random_weights=True)
    assert [(encoder.label, encoder.random_weights) for encoder in found] == [
        ("one", False),
        ("mine", False),
        ("random", True),
    ]
    with pytest.raises(UsageError, match="two folders are called one"):
        encoders_of([str(tmp_path / "one"), f"one={tmp_path / 'two'}"], random_weights=False)
    with pytest.raises(UsageError, match=r"has no config\.json"):
        encoders_of([str(tmp_path)], random_weights=False)
