"""Finds, reads and checks task files, those of users and those that ship, and writes the resolved task back as TOML.

`--task` names a file or a task that ships with Clozeline, such as glue/rte. Each file in trainer/finetune/tasks has the
tasks of a suite: the table [tasks.rte] of glue.toml is the content of a task file, with the values of [defaults] where
it has none. What only a suite needs to know of a task, such as the task that it starts from, is in the same table.
"""

from __future__ import annotations

import difflib
import posixpath
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError, nearest_name
from trainer.config.parse import Origin, apply_overrides, parse_section
from trainer.finetune.metrics.metric_table import unsuitable
from trainer.finetune.task import DEV, TEST, TRAIN, Task
from trainer.finetune.task_kinds import RULES

TOML = ".toml"

NO_SMOOTHING = ("choice", "span")
"""Kinds whose loss is not the one that Trainer smooths the labels of."""

SUITES = Path(str(files("trainer") / "finetune" / "tasks"))
"""The folder of the suites that ship with Clozeline."""


def read_task(path: str, overrides: list[str], flag: str = "--task") -> Task:
    """Return the task of a task file or a shipped task, with `--set` overrides applied and every default filled in.

    flag: the one that names the task.
    Raises UsageError that names each wrong key and the file or the override that has it, or StorageError for a file
    that cannot be read.
    """
    return task_of(task_content(path, flag), Origin(path, overrides))


def task_of(content: dict[str, Any], origin: Origin) -> Task:
    """Return the task of a task file's content, to which this applies the changes of its origin.

    Raises UsageError as `read_task` does.
    """
    apply_overrides(content, origin.changes, Task)
    task = parse_section(Task, content, origin)
    for fault, keys in faults_of(task):
        raise UsageError(f"{origin.of(*keys)}: {fault}")
    return task


def dump_task(task: Task) -> str:
    """Return a task as TOML with every default written out. `read_task` reads it back as the same task."""
    import tomli_w  # not needed for --help

    return tomli_w.dumps(task.model_dump(exclude_none=True))


def data_folder(path: str, data: str | None, flag: str = "--task") -> str:
    """Return the folder that the paths of a task are relative to: `--data`, or without it the task file's folder.

    flag: the one that names the task. Raises UsageError for a shipped task without --data.
    """
    if data is not None:
        return data
    if is_shipped(path):
        raise UsageError(f"{flag} {path} ships with Clozeline without data. Give the folder of its files with --data.")
    return posixpath.dirname(path) or "."


def task_content(path: str, name: str) -> dict[str, Any]:
    """Return the content of a task file or of a shipped task. A file takes precedence over a shipped task's name.

    name: what messages call the choice of the task.
    """
    if is_shipped(path):
        return merged({"name": path.rpartition("/")[2]}, *_shipped_tables()[path])

    return read_toml(path, name, "task", shipped_task_names())


def read_toml(path: str, name: str, what: str, shipped: list[str]) -> dict[str, Any]:
    """Return the content of a TOML file. Raises UsageError.

    name: what messages call the choice of the file. what: it is of, and shipped: those that could be chosen instead.
    """
    try:
        return tomllib.loads(storage.read(path).decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} {path} is not TOML: {error}.") from error
    except DataError:
        hint = nearest_file(path, TOML) or nearest_name(path.removesuffix(TOML), shipped)
        advice = f"Give a {what} file, or the name of a shipped {what}: {', '.join(shipped)}."
        if path.endswith(TOML):
            advice = f"Give the path of a {what} file."
        raise UsageError(f"{name} {path} does not exist.{hint} {advice}") from None


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of several tables as one. Values of later tables replace earlier ones; inner tables are merged."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            earlier = result.get(key)
            if isinstance(value, dict):
                value = merged(earlier, value) if isinstance(earlier, dict) else merged(value)
            result[key] = value
    return result


# ---- Shipped tasks ----


def shipped_task_names() -> list[str]:
    return sorted(_shipped_tables())


def is_shipped(path: str) -> bool:
    """Return whether a path names a task that comes with Clozeline, and no file."""
    return path in _shipped_tables() and not storage.exists(path)


@cache
def _shipped_tables() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the defaults of each shipped task and its own table, by its name. Keys of suites are left out."""
    tables = {}
    for path in SUITES.glob(f"*{TOML}"):
        suite = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, table in suite.get("tasks", {}).items():
            of_task = {key: value for key, value in table.items() if key in Task.model_fields}
            tables[f"{path.stem}/{name}"] = (suite.get("defaults", {}), of_task)
    return tables


def nearest_file(path: str, ending: str = "", named: Collection[str] = ()) -> str:
    """Return a hint with the file in the same folder whose name is closest to a path's, or an empty string.

    ending: of the files that count, such as ".toml". The path may lack it. named: paths that are not to be suggested,
    because they already have another use.
    Example: `nearest_file("tasks/polarty", ".toml")` -> `" Did you mean tasks/polarity.toml?"`.
    """
    # Only the names are compared. With the folder, which is the same, any two paths would be alike.
    folder, name = posixpath.split(path)
    free = [found for found in storage.sizes(folder or ".") if posixpath.join(folder, found) not in named]
    known = [found for found in free if found.endswith(ending) and not found.startswith(".")]

    stems = [found.removesuffix(ending) for found in known]
    close = difflib.get_close_matches(name.removesuffix(ending), stems, n=1, cutoff=0.6)
    return f" Did you mean {posixpath.join(folder, close[0] + ending)}?" if close else ""


# ---- Keys that depend on each other ----

Fault = tuple[str, tuple[str, ...]]
"""What is wrong, and the keys that may be the reason, the most likely one first."""


def faults_of(task: Task) -> Iterator[Fault]:
    data = task.data
    formats = RULES[task.kind].formats
    if data.format not in formats:
        expected = 'SQuAD JSON (data.format = "squad") or parquet' if task.kind == "span" else " or ".join(formats)
        yield (
            f'data.format, or the ending of data.train, says "{data.format}", but a task of the kind {task.kind} is '
            f"read from {expected}.",
            ("data.format", "data.train", "kind"),
        )

    yield from faults_of_columns(task, "data.columns", data.header)
    if data.test is not None:
        name = "data.columns" if data.test_columns is None else "data.test_columns"
        yield from faults_of_columns(task, name, data.header if data.test_header is None else data.test_header)
    yield from faults_of_labels(task)

    number_of_labels = len(data.labels) if isinstance(data.labels, tuple) else None
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, number_of_labels)
        if reason is not None:
            yield f'metrics has "{metric}", which {reason}.', ("metrics", "kind", "data.labels")

    yield from faults_of_names(task)
    if task.trainer.label_smoothing_factor and (task.kind in NO_SMOOTHING or task.is_regression):
        what = "whose labels are numbers" if task.is_regression else f"of kind {task.kind}"
        yield (
            f"trainer.label_smoothing_factor is for classes of texts and words, and this is a task {what}. Remove the "
            "key.",
            ("trainer.label_smoothing_factor", "kind", "data.labels"),
        )


def faults_of_columns(task: Task, name: str, header: bool) -> Iterator[Fault]:
    """Yield columns that are not those of the task's kind, or not names or numbers as the format requires.

    name: data.columns or data.test_columns. header: whether the files that have these columns name them.
    """
    required = RULES[task.kind].columns
    known = (*required, "id", *RULES[task.kind].optional) if required else ()
    is_test = name == "data.test_columns"
    columns = task.data.test_columns if is_test else task.data.columns
    chosen = {key: value for key, value in columns or () if value is not None}

    for key in required:
        if key not in chosen and not (is_test and key in ("label", "tags")):
            keys = (f"{name}.{key}", "kind", "data.header", "data.format")
            yield f"{name}.{key} is missing, which a task of the kind {task.kind} needs.", keys

    for key, value in chosen.items():
        if key not in known:
            has = ", ".join(known) or "no columns"
            yield f"{name}.{key} is not for the kind {task.kind}, which has {has}.", (f"{name}.{key}", "kind")
        for column in value if isinstance(value, list) else [value]:
            reason = unsuitable_column(task, column, header)
            if reason is not None:
                keys = (f"{name}.{key}", "data.header", "data.test_header", "data.format", "data.train")
                yield f"{name}.{key} is {reason}.", keys


def unsuitable_column(task: Task, column: str | int, header: bool) -> str | None:
    """Return why a column cannot be found in files of the task's format, None if it can.

    Columns are numbers if the file has no column names, and names if the file is JSON or Parquet.
    """
    file_format = task.data.format
    if file_format in ("tsv", "csv") and not header and isinstance(column, str):
        return f'"{column}", but without a header columns are numbers from 0'
    if file_format == "conll" and isinstance(column, str):
        return f'"{column}", but columns of CoNLL files are numbers from 0 (from the end: -1)'
    if file_format in ("json", "jsonl", "parquet") and isinstance(column, int):
        return f"{column}, but columns of JSON and Parquet files have names"
    return None


def faults_of_labels(task: Task) -> Iterator[Fault]:
    """Yield label keys that the task's kind does not have, and labels that are not two or more, or not distinct."""
    rules = RULES[task.kind]
    labels = task.data.labels
    keys = ("data.labels", "kind")
    if task.is_regression and not rules.one_label:
        yield 'data.labels is "number", which is for the kinds sentence and pair.', keys
    if task.data.skip_labels and not rules.one_label:
        yield "data.skip_labels is for the kinds sentence and pair.", ("data.skip_labels", "kind")
    if not isinstance(labels, tuple):
        return

    if not rules.has_labels:
        yield "data.labels is not for the kind span, whose answers are places in the context.", keys
    repeated = [label for label in labels if labels.count(label) > 1]
    if repeated:
        yield f'data.labels has "{repeated[0]}" twice.', keys
    if len(labels) < 2:
        yield f"data.labels has {len(labels)} label, expected two or more.", keys


def faults_of_names(task: Task) -> Iterator[Fault]:
    """Yield names of [data.extra] that cannot be parts of file names, and wrong columns of [data.replace]."""
    for name in task.data.extra:
        if name in (TRAIN, DEV, TEST) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            what = "Expected letters, digits, - and _, and not train, dev or test."
            yield f'data.extra has a set "{name}". {what}', (f"data.extra.{name}",)

    roles: dict[str, str] = {}
    for role, value in task.data.columns:
        roles |= {str(column): role for column in (value if isinstance(value, list) else [value])}
    for column in task.data.replace:
        keys = (f"data.replace.{column}",)
        if column not in roles:
            yield f'data.replace has "{column}", which is not in data.columns.', keys
        elif roles[column] in ("label", "tags"):
            yield f'data.replace has "{column}", which holds labels. It replaces texts only.', keys
