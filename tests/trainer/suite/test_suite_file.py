"""Suites are read strictly, and what is missing is named before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import tomli_w

from schemas.errors import DataError, UsageError
from trainer.suite.encoders import encoders_of, short_names
from trainer.suite.needed_files import missing_files, without_missing
from trainer.suite.suite_file import open_suite, suite_names


def changed(path: Path, **changes: object) -> Path:
    content = tomllib.loads(path.read_text()) | changes
    path.write_text(tomli_w.dumps(content))
    return path


@pytest.mark.parametrize("name", suite_names())
def test_the_shipped_suites_open(name: str) -> None:
    suite = open_suite(name, [], [])
    assert suite.entry.name == name
    for task in suite.tasks:
        assert task.metric in task.task.metrics
        assert task.task.source


def test_cb_counts_what_the_leaderboard_counts() -> None:
    [cb] = [task for task in open_suite("superglue", [], []).tasks if task.entry.name == "cb"]
    assert cb.metric == "accuracy_and_macro_f1"


def test_a_suite_opens_with_its_tasks(suite_file: Path) -> None:
    suite = open_suite(str(suite_file), [], ["training.epochs=7", "tags:training.epochs=9"])
    assert [task.entry.name for task in suite.tasks] == ["subjects", "tags", "verbs"]
    assert [task.task.training.epochs for task in suite.tasks] == [7, 9, 7]
    assert [task.metric for task in suite.tasks] == ["accuracy", "chunk_f1", "accuracy"]


def test_a_labeled_test_set_can_be_reported(suite_file: Path) -> None:
    task_file = suite_file.parent / "subjects.toml"
    data = {"train": "subjects/train.jsonl", "dev": "subjects/dev.jsonl", "test": "subjects/dev.jsonl"}
    changed(task_file, data=data)
    changed(suite_file, tasks=[{"name": "subjects", "file": "subjects.toml", "sets": ["dev", "test"]}])
    [task] = open_suite(str(suite_file), [], []).tasks
    assert task.entry.sets == ("dev", "test")


def test_data_are_found_beside_the_task_file_as_by_finetune(suite_file: Path) -> None:
    """A suite of task files from other folders."""
    folder = suite_file.parent
    elsewhere = folder.parent / "suites" / "mixed.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(suite_file.read_text().replace('file = "', 'file = "../small/').replace("pairs/*", "p/*"))
    suite = open_suite(str(elsewhere), [], [])
    assert [part.name for part in missing_files(suite, None)] == ["order"]
    assert [part.name for part in missing_files(suite, str(folder))] == ["order"]
    (folder / "pairs").rename(elsewhere.parent / "p")
    assert missing_files(suite, None) == []


def test_files_may_lie_in_the_home_folder(suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(suite_file.parent))
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(suite_file.read_text().replace('file = "', 'file = "~/').replace("pairs/*", "~/pairs/*"))
    suite = open_suite(str(elsewhere), [], [])
    assert missing_files(suite, None) == []


def test_only_keeps_what_a_task_starts_from(suite_file: Path) -> None:
    suite = open_suite(str(suite_file), ["verbs"], [])
    assert [task.entry.name for task in suite.tasks] == ["subjects", "verbs"]
    assert suite.minimal_pairs == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": [{"name": "a"}]}, r"tasks\[0\]\.file is missing\. The task file"),
        ({"tasks": [{"name": "a", "file": "tags.toml", "metrik": "x"}]}, r"unknown key tasks\[0\]\.metrik\..*metric"),
        ({"tasks": [{"name": "a/b", "file": "tags.toml"}]}, r"tasks\[0\]\.name: .*found 'a/b'"),
        (
            {"tasks": [{"name": "a", "file": "tags.toml", "metric": "f2"}]},
            "a reports f2, but .* has the metrics chunk_f1",
        ),
        (
            {"tasks": [{"name": "a", "file": "tags.toml", "sets": ["hard"]}]},
            "the set hard, but .* has only dev",
        ),
        ({"tasks": [{"name": "a", "file": "none.toml"}]}, r"small\.toml: the task file .*none\.toml does not exist"),
        (
            {"tasks": [{"name": "a", "file": "tags.toml", "starts_from": "b"}]},
            r"small\.toml: tasks: a starts from b, which is not an earlier task of this suite; earlier tasks: none\.$",
        ),
        ({"tasks": [{"name": "order", "file": "tags.toml"}]}, "two parts of the suite have the name order"),
        ({"tasks": [{"name": "probe", "file": "tags.toml"}]}, "has the name probe, which is reserved"),
        ({"tasks": [{"name": "export", "file": "tags.toml"}]}, "has the name export, which is reserved"),
        ({"tasks": [{"name": "mnli-encoder", "file": "tags.toml"}]}, "has the name mnli-encoder, which is reserved"),
        ({"minimal_pairs": [{"name": "probe", "files": "*"}]}, "has the name probe, which is reserved"),
        ({"tasks": [], "minimal_pairs": []}, "neither tasks nor minimal pairs"),
        ({"nmae": "x"}, r"unknown key nmae\. Did you mean name\?"),
    ],
)
def test_what_is_wrong_is_named(suite_file: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_suite(str(changed(suite_file, **changes)), [], [])


def test_wrong_words_are_named(suite_file: Path) -> None:
    with pytest.raises(UsageError, match=r"--only tag: .* Did you mean tags\?"):
        open_suite(str(suite_file), ["tag"], [])
    with pytest.raises(UsageError, match=r"no task verb\. Did you mean verbs\?"):
        open_suite(str(suite_file), [], ["verb:training.lr=1"])
    with pytest.raises(UsageError, match=r"--suite glu: .* Did you mean glue\? These ship with Clozeline: babylm"):
        open_suite("glu", [], [])


def test_a_wrong_path_gets_the_near_file(suite_file: Path) -> None:
    folder = suite_file.parent
    with pytest.raises(UsageError) as error:
        open_suite(str(folder / "smal.toml"), [], [])
    assert str(error.value) == (
        f"--suite {folder}/smal.toml does not exist. Did you mean {suite_file}? Give the path of a suite file."
    )

    changed(suite_file, tasks=[{"name": "subjects", "file": "subjets.toml"}])
    with pytest.raises(UsageError) as error:
        open_suite(str(suite_file), [], [])
    assert str(error.value) == (
        f"{suite_file}: the task file {folder}/subjets.toml does not exist. Did you mean {folder}/subjects.toml? Give "
        "the path of a task file."
    )


def test_all_missing_files_are_named_at_once(suite_file: Path) -> None:
    folder = suite_file.parent
    (folder / "subjects/dev.jsonl").unlink()
    (folder / "tags/train.jsonl").unlink()
    for path in (folder / "pairs").iterdir():
        path.unlink()

    suite = open_suite(str(suite_file), [], [])
    missing = missing_files(suite, str(folder))
    with pytest.raises(DataError) as error:
        without_missing(suite, missing, str(suite_file.parent), skip=False)
    assert str(error.value).splitlines() == [
        "3 files of the suite small cannot be found:",
        "  subjects: subjects/dev.jsonl (from https://example.org/subjects)",
        "  tags: tags/train.jsonl (from https://example.org/tags)",
        "  order: pairs/*.jsonl (from https://example.org/pairs)",
        "Their paths are relative to --data, by default the folder of the file that names them. Put them there, or "
        "run the other tasks with --skip_missing or --only.",
    ]


def test_a_suite_of_which_nothing_is_left(suite_file: Path, tmp_path: Path) -> None:
    suite = open_suite(str(suite_file), ["subjects", "order"], [])
    empty = str(tmp_path / "empty")
    missing = missing_files(suite, empty)
    with pytest.raises(DataError) as error:
        without_missing(suite, missing, empty, skip=True)
    assert str(error.value) == (
        f"no part of the suite small (subjects, order) has its files in {empty}, such as subjects/train.jsonl. They "
        "come from https://example.org/subjects, https://example.org/pairs. Put them there, or give their folder with "
        "--data."
    )
    with pytest.raises(DataError) as error:
        without_missing(suite, missing, empty, skip=False)
    assert "--skip_missing" not in str(error.value) and str(error.value).endswith("Put them there.")


def test_a_task_is_skipped_with_the_one_that_it_starts_from(suite_file: Path) -> None:
    (suite_file.parent / "subjects/dev.jsonl").unlink()
    suite = open_suite(str(suite_file), [], [])
    data = str(suite_file.parent)
    kept, skipped = without_missing(suite, missing_files(suite, data), data, skip=True)
    assert [task.entry.name for task in kept.tasks] == ["tags"]
    assert [part.name for part in skipped] == ["subjects", "verbs"]
    assert kept.entry.names == ["tags", "order"]


def test_optional_parts_may_be_missing(suite_file: Path) -> None:
    pairs = [{"name": "order", "files": "none/*.jsonl", "optional": True}]
    suite = open_suite(str(changed(suite_file, minimal_pairs=pairs)), [], [])
    data = str(suite_file.parent)
    kept, skipped = without_missing(suite, missing_files(suite, data), data, skip=False)
    assert kept.minimal_pairs == ()
    assert [part.name for part in skipped] == ["order"]


def test_folders_get_short_names(tmp_path: Path) -> None:
    assert short_names(["/a/bert", "/b/roberta"]) == {"/a/bert": "bert", "/b/roberta": "roberta"}
    assert short_names(["/a/x/hf", "/b/x/hf"]) == {"/a/x/hf": "a-x-hf", "/b/x/hf": "b-x-hf"}
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
