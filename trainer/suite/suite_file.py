"""Reads a suite, from a file or by the name of a shipped suite, and the task files of its tasks."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.errors import UsageError, nearest_name
from trainer.finetune.files.sets import set_names
from trainer.finetune.near_file import TOML, nearest_file
from trainer.finetune.task import Task
from trainer.finetune.task_file import TaskNames, data_folder, read_task
from trainer.suite.schema import MinimalPairs, Suite, SuiteTask


@dataclass(frozen=True)
class OpenTask:
    """A task of a suite, read from its task file. path: of that file. changes: the --set flags that apply to it."""

    entry: SuiteTask
    path: Path
    task: Task
    changes: tuple[str, ...]

    @property
    def metric(self) -> str:
        """The metric that the suite reports."""
        return self.entry.metric or self.task.metrics[0]

    def data_folder(self, data: str | None) -> str:
        """Return the folder of the task's files: --data, or without it the task file's folder, as in `finetune`."""
        return data_folder(str(self.path), data)


@dataclass(frozen=True)
class OpenSuite:
    """A suite and its tasks.

    entry: the content of the suite file, without parts that were left out. folder: of the suite file.
    """

    entry: Suite
    tasks: tuple[OpenTask, ...]
    folder: str = "."

    @property
    def minimal_pairs(self) -> tuple[MinimalPairs, ...]:
        return self.entry.minimal_pairs

    def pairs_folder(self, data: str | None) -> str:
        """Return the folder of the files of minimal pairs: --data, or without it the suite file's folder."""
        return self.folder if data is None else data


def suite_names() -> list[str]:
    """Return the names of the suites that ship with Clozeline."""
    return sorted(path.stem for path in _shipped_folder().iterdir() if path.suffix == TOML)


def open_suite(name: str, only: Sequence[str], changes: Sequence[str]) -> OpenSuite:
    """Return a suite with its tasks.

    name: of a shipped suite, or the path of a suite file. only: the parts to keep, and the tasks that these start from
    are kept too; if empty, all parts.
    changes: the values of --set. "KEY=VALUE" changes every task, "TASK:KEY=VALUE" one of them.
    Raises UsageError that names each wrong key.
    """
    path = path_of(name)
    suite = read_suite(path)
    for part in only:
        if part not in suite.names:
            raise UsageError(
                f"--only {part}: the suite {suite.name} has no such task.{nearest_name(part, suite.names)} Its tasks "
                f"are {', '.join(suite.names)}."
            )
    check_changes(suite, changes)

    kept = suite.only(with_sources(suite, only or suite.names))
    return OpenSuite(kept, tuple(open_task(path, entry, changes) for entry in kept.tasks), str(path.parent))


def path_of(name: str) -> Path:
    """Return the path of a suite's file. Shipped names come before paths. Raises UsageError if there is none."""
    if is_shipped(name):
        return _shipped_folder() / f"{name}{TOML}"
    if Path(name).is_file():
        return Path(name)

    hint = nearest_file(name, TOML) or nearest_name(name, suite_names())
    if name.endswith(TOML):
        raise UsageError(f"--suite {name} does not exist.{hint} Give the path of a suite file.")
    raise UsageError(
        f"--suite {name}: there is no such file, and no suite of that name.{hint} These ship with Clozeline: "
        f"{', '.join(suite_names())}."
    )


def is_shipped(name: str) -> bool:
    """Return whether a suite of this name ships with Clozeline."""
    return name in suite_names()


def _shipped_folder() -> Path:
    return Path(str(files("trainer") / "suite" / "suites"))


def read_suite(path: Path) -> Suite:
    """Return the content of a suite file, without reading its task files. Raises UsageError."""
    try:
        return Suite.model_validate(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        explained = " ".join(_explain(fault) for fault in error.errors())
        raise UsageError(f"{path}: {explained}") from error


def _explain(fault: Any) -> str:
    """Return one of pydantic's errors as a sentence. The location ("tasks", 1, "file") becomes tasks[1].file."""
    key = ""
    for part in fault["loc"]:
        key += f"[{part}]" if isinstance(part, int) else f".{part}"
    key = key.removeprefix(".")

    schema = {"tasks": SuiteTask, "minimal_pairs": MinimalPairs}.get(str(next(iter(fault["loc"]), "")), Suite)
    last = str(fault["loc"][-1]) if fault["loc"] else ""
    fields = schema.model_fields if len(fault["loc"]) > 1 else Suite.model_fields
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key}.{nearest_name(last, fields)}"

    description = f" {fields[last].description}" if last in fields else ""
    if fault["type"] == "missing":
        return f"{key} is missing.{description}"

    message = fault["msg"].removeprefix("Value error, ")
    if not key:
        return f"{message}."
    # Messages of the schema itself are complete.
    if fault["type"] == "value_error":
        return f"{key}: {message}."
    return f"{key}: {message[0].lower() + message[1:]}, found {_shortened(repr(fault['input']))}.{description}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def with_sources(suite: Suite, names: Sequence[str]) -> list[str]:
    """Return the names, sorted, with the names of all tasks that these tasks start from, directly or indirectly."""
    kept = set(names)
    for task in reversed(suite.tasks):
        if task.name in kept and task.starts_from is not None:
            kept.add(task.starts_from)
    return sorted(kept)


def open_task(suite_path: Path, entry: SuiteTask, changes: Sequence[str]) -> OpenTask:
    """Return a task of a suite, read from its task file, with --set applied. Raises UsageError."""
    path = suite_path.parent / entry.file
    own = changes_of(entry.name, changes)
    task = read_task(str(path), list(own), TaskNames(task=f"{suite_path}: the task file", names_file=True))

    if entry.metric is not None and entry.metric not in task.metrics:
        raise UsageError(
            f"{suite_path}: {entry.name} reports {entry.metric}, but {path} has the metrics {', '.join(task.metrics)}."
        )
    _, *scored = set_names(task.data)  # the first is the training set
    unknown = [name for name in entry.sets if name not in scored]
    if unknown:
        raise UsageError(
            f"{suite_path}: {entry.name} reports the set {unknown[0]}, but {path} has only {', '.join(scored)}."
        )
    return OpenTask(entry, path, task, own)


def changes_of(name: str, changes: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that apply to a task, as KEY=VALUE: first those for all tasks, then its own."""
    own = [change.removeprefix(f"{name}:") for change in changes if change.startswith(f"{name}:")]
    return (*changes_for_all(changes), *own)


def changes_for_all(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that apply to every task. Only a colon before "=" names a task: a value may be a URL."""
    return tuple(change for change in changes if ":" not in change.partition("=")[0])


def check_changes(suite: Suite, changes: Sequence[str]) -> None:
    """Raise UsageError if a change is for a task that the suite does not have."""
    names = [task.name for task in suite.tasks]
    for change in changes:
        task, colon, _ = change.partition("=")[0].partition(":")
        if colon and task not in names:
            raise UsageError(
                f"--set {change}: the suite {suite.name} has no task {task}.{nearest_name(task, names)} Write "
                "KEY=VALUE for all tasks, or TASK:KEY=VALUE for one, as in rte:training.epochs=10."
            )
