"""Reads a suite, from a file or by the name of a shipped suite.

A suite file has a table for each task, [tasks.NAME], and for each set of minimal pairs, [minimal_pairs.NAME]. The table
of a task holds what the suite needs to know of it (`TaskEntry`), and the content of a task file, which may also be in a
separate file. [defaults] holds values of all tasks; those of a task's file, and then those of its table, come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from schemas.errors import UsageError, nearest_name
from trainer.config.parse import Origin, parse_section
from trainer.config.sections import Place, Section
from trainer.finetune.files.sets import set_names
from trainer.finetune.task import Task
from trainer.finetune.task_file import SUITES, TOML, merged, read_toml, task_content, task_of

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
"""The pattern of valid names, which are also the names of folders."""

RESERVED_NAMES = ("probe", "export", "average")
"""Names of the suite's own jobs, LABEL/probe and step-N/export, and of a row of its table."""

Variant = Literal["word_l2r", "token"]


class TaskEntry(Section):
    """The keys of a task's table that are no part of a task file."""

    file: Place | None = Field(default=None, description="A task file, relative to the suite file.")
    metric: str | None = Field(
        default=None, description="The metric to report, one of the task's own. If unset, the first one."
    )
    sets: tuple[str, ...] = Field(
        default=("dev",),
        min_length=1,
        description='The labeled sets whose scores are averaged: "dev", "test", and names of the task\'s [data.extra].',
    )
    starts_from: str | None = Field(
        default=None,
        description="An earlier task of the suite, whose best fine-tuned encoder this task starts from, with a new "
        "head. If unset, this task starts from the folder that is measured.",
    )
    in_average: bool = Field(default=True, description="Whether the score counts in the average over tasks.")


class MinimalPairs(Section):
    """Pairs of an acceptable and an unacceptable sentence, scored without fine-tuning."""

    files: Place = Field(description="The files, relative to --data. The last part of the path may have wildcards.")
    source: str | None = Field(default=None, description="Where the files can be had, for messages that miss them.")
    variant: Variant = Field(
        default="word_l2r",
        description='What is masked to score a token. "word_l2r": it and what follows in its word. "token": only it.',
    )
    optional: bool = Field(default=False, description="Whether the suite runs without these files.")
    in_average: bool = Field(default=False, description="Whether the score counts in the average over tasks.")


class SuiteFile(Section):
    """A whole suite file. The tables of its tasks and minimal pairs are read one by one, to name the wrong one."""

    name: str = Field(min_length=1, description="The name of the suite in reports.")
    defaults: dict[str, Any] = Field(default={}, description="Keys of all tasks that do not set them.")
    tasks: dict[str, dict[str, Any]] = Field(default={}, description="The tasks, in the order of the table.")
    minimal_pairs: dict[str, dict[str, Any]] = Field(
        default={}, description="Minimal pairs, which follow the tasks in the table."
    )


@dataclass(frozen=True)
class SuiteTask:
    """A task of a suite, with the --set flags applied. folder: of its files."""

    entry: TaskEntry
    task: Task
    folder: str

    @property
    def metric(self) -> str:
        return self.entry.metric or self.task.metrics[0]


@dataclass(frozen=True)
class Suite:
    """A suite and its parts by name. folder: of the files of minimal pairs."""

    name: str
    folder: str
    tasks: Mapping[str, SuiteTask]
    minimal_pairs: Mapping[str, MinimalPairs]

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the order of the table."""
        return [*self.tasks, *self.minimal_pairs]

    def only(self, names: Sequence[str]) -> Suite:
        """Return the suite with only the parts of these names."""
        return replace(
            self,
            tasks={name: task for name, task in self.tasks.items() if name in names},
            minimal_pairs={name: pairs for name, pairs in self.minimal_pairs.items() if name in names},
        )


NO_SUITE = Suite("", "", {}, {})


def suite_names() -> list[str]:
    return sorted(path.stem for path in SUITES.glob(f"*{TOML}"))


def open_suite(name: str, only: Sequence[str], changes: Sequence[str], data: str | None = None) -> Suite:
    """Return a suite with its tasks.

    name: of a shipped suite, or the path of a suite file. only: the parts to keep, and the tasks that these start from
    are kept too; if empty, all parts.
    changes: the values of --set. "KEY=VALUE" changes every task, "TASK:KEY=VALUE" one of them. data: the folder of all
    files; if None, those of a task are in the folder of its file, and minimal pairs in that of the suite file.
    Raises UsageError that names each wrong key.
    """
    path = path_of(name)
    table = read_toml(str(path), "--suite", "suite", suite_names())
    content = parse_section(SuiteFile, table, Origin(str(path)))
    entries = entries_of(content, path)
    pairs = {}
    for part, table in content.minimal_pairs.items():
        pairs[part] = parse_section(MinimalPairs, table, Origin(f"{path}: minimal_pairs.{part}"))
    check_part_names(path, entries, pairs)

    names = [*entries, *pairs]
    for part in only:
        if part not in names:
            raise UsageError(
                f"--only {part}: the suite {content.name} has no such task.{nearest_name(part, names)} Its tasks are "
                f"{', '.join(names)}."
            )
    check_changes(content, changes)

    kept = with_sources(entries, only or names)
    tasks = {name: open_task(content, path, name, entry, changes) for name, entry in entries.items() if name in kept}
    if data is not None:
        tasks = {name: replace(task, folder=data) for name, task in tasks.items()}
    return Suite(content.name, data or str(path.parent), tasks, {name: pairs[name] for name in pairs if name in kept})


def path_of(name: str) -> Path:
    """Return the path of a suite's file. Shipped names come before paths. Raises UsageError for a URL."""
    if "://" in name:
        raise UsageError(f"--suite {name} is a URL. Give a file of this machine; --data may be a URL.")
    return SUITES / f"{name}{TOML}" if name in suite_names() else Path(name)


def entries_of(content: SuiteFile, path: Path) -> dict[str, TaskEntry]:
    """Return what the suite needs to know of each task. Raises UsageError for a task that starts from a later one."""
    entries: dict[str, TaskEntry] = {}
    known = [*TaskEntry.model_fields, *Task.model_fields]
    places = {"defaults": content.defaults} | {f"tasks.{name}": table for name, table in content.tasks.items()}
    for place, key in ((place, key) for place, table in places.items() for key in table):
        if key not in known:
            hint = nearest_name(key, known) or f" A task of a suite has {', '.join(known)}."
            raise UsageError(f"{path}: {place}: unknown key {key}.{hint}")
    if "starts_from" in content.defaults:
        raise UsageError(f"{path}: defaults: starts_from is for single tasks. The first one has none to start from.")

    for name, table in content.tasks.items():
        keys = {key: value for key, value in (content.defaults | table).items() if key in TaskEntry.model_fields}
        entry = parse_section(TaskEntry, keys, Origin(f"{path}: tasks.{name}"))
        if entry.starts_from is not None and entry.starts_from not in entries:
            raise UsageError(
                f"{path}: {name} starts from {entry.starts_from}, which is not an earlier task of this suite. Earlier "
                f"tasks: {', '.join(entries) or 'none'}."
            )
        entries[name] = entry
    return entries


def check_part_names(path: Path, tasks: Mapping[str, Any], pairs: Mapping[str, Any]) -> None:
    """Raise UsageError unless the names of all parts are valid, free and unique."""
    names = [*tasks, *pairs]
    if not names:
        raise UsageError(f"{path}: the suite has neither tasks nor minimal pairs.")
    for name in names:
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"{path}: {name!r} is no valid name, because it also names a folder. Use letters, digits, and _ . - "
                "after the first."
            )
        if name in RESERVED_NAMES:
            raise UsageError(f"{path}: the name {name} is reserved: the suite itself uses it. Choose another.")
        if name in tasks and name in pairs:
            raise UsageError(f"{path}: two parts of the suite have the name {name}.")


def with_sources(entries: Mapping[str, TaskEntry], names: Sequence[str]) -> set[str]:
    """Return some names, and those of all tasks that these tasks start from, directly or indirectly."""
    kept = set(names)
    for name, entry in reversed(list(entries.items())):
        if name in kept and entry.starts_from is not None:
            kept.add(entry.starts_from)
    return kept


def open_task(content: SuiteFile, path: Path, name: str, entry: TaskEntry, changes: Sequence[str]) -> SuiteTask:
    """Return a task of a suite, with --set applied. path: of the suite file. Raises UsageError."""
    place, folder = f"{path}: tasks.{name}", path.parent
    of_file: dict[str, Any] = {}
    if entry.file is not None:
        file = path.parent / entry.file
        of_file = task_content(str(file), f"{path}: the task file")
        place, folder = f"{place} with {file}", file.parent
    defaults, of_task = (
        {key: value for key, value in table.items() if key not in TaskEntry.model_fields}
        for table in (content.defaults, content.tasks[name])
    )

    values = merged({"name": name}, defaults, of_file, of_task)
    # The error names the task's place, because a suite has several tasks, and --set may change all of them.
    of_files = f"{place} and [defaults]" if defaults else place
    task = task_of(values, Origin(of_files, changes_of(name, changes), f"{place}: --set"))

    if entry.metric is not None and entry.metric not in task.metrics:
        raise UsageError(
            f"{path}: {name} reports {entry.metric}, but it has the metrics {', '.join(task.metrics)}. Add it to "
            "metrics of the task."
        )
    _, *scored = set_names(task.data)  # the first is the training set
    unknown = [reported for reported in entry.sets if reported not in scored]
    if unknown:
        raise UsageError(f"{path}: {name} reports the set {unknown[0]}, but it has only {', '.join(scored)}.")
    if len(set(entry.sets)) < len(entry.sets):
        raise UsageError(f"{path}: {name} names a set twice: sets = {', '.join(entry.sets)}. Name each once.")
    return SuiteTask(entry, task, str(folder))


def changes_of(name: str, changes: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that apply to a task, as KEY=VALUE: first those for all tasks, then its own."""
    own = [change.removeprefix(f"{name}:") for change in changes if change.startswith(f"{name}:")]
    return (*changes_for_all(changes), *own)


def changes_for_all(changes: Sequence[str]) -> tuple[str, ...]:
    """Return the changes that apply to every task. Only a colon before "=" names a task: a value may be a URL."""
    return tuple(change for change in changes if ":" not in change.partition("=")[0])


def check_changes(suite: SuiteFile, changes: Sequence[str]) -> None:
    """Raise UsageError if a change is for a task that the suite does not have."""
    for change in changes:
        task, colon, _ = change.partition("=")[0].partition(":")
        if colon and task not in suite.tasks:
            raise UsageError(
                f"--set {change}: the suite {suite.name} has no task {task}.{nearest_name(task, suite.tasks)} Write "
                "KEY=VALUE for all tasks, or TASK:KEY=VALUE for one, as in rte:training.epochs=10."
            )
