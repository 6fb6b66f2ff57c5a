"""Cross-field validation of task files. Every check raises UsageError."""

from __future__ import annotations

import re

from schemas.errors import UsageError
from trainer.config.parse import Origin
from trainer.finetune.arguments import check_trainer
from trainer.finetune.metrics.metric_table import unsuitable
from trainer.finetune.task import DEV, TEST, TRAIN, Task
from trainer.finetune.task_kinds import RULES


def check_task(task: Task, origin: Origin) -> None:
    """Check the keys of a task that depend on each other. origin: names the task file, or a change of it."""
    check_format(task, origin)
    check_columns(task, "data.columns", task.data.header, origin)
    if task.data.test is not None:
        header = task.data.header if task.data.test_header is None else task.data.test_header
        name = "data.columns" if task.data.test_columns is None else "data.test_columns"
        check_columns(task, name, header, origin)
    check_labels(task, origin)
    check_metrics(task, origin)
    check_names(task, origin)
    check_trainer(task, origin)


def check_format(task: Task, origin: Origin) -> None:
    """Check that files in the task's format can hold examples of its kind."""
    formats = RULES[task.kind].formats
    if task.data.format not in formats:
        expected = 'SQuAD JSON (data.format = "squad") or parquet' if task.kind == "span" else " or ".join(formats)
        source = origin.of("data.format", "data.train", "kind")
        raise UsageError(
            f'{source}: data.format, or the ending of data.train, says "{task.data.format}", but a task of the kind '
            f"{task.kind} is read from {expected}."
        )


def check_columns(task: Task, name: str, header: bool, origin: Origin) -> None:
    """Check that the columns belong to the task's kind, and that each is a name or a number as the format requires.

    name: data.columns or data.test_columns. header: whether the files that have these columns name them.
    """
    required = RULES[task.kind].columns
    known = (*required, "id", *RULES[task.kind].optional) if required else ()
    is_test = name == "data.test_columns"
    columns = task.data.test_columns if is_test else task.data.columns
    chosen = {key: value for key, value in columns or () if value is not None}

    for key in required:
        if key not in chosen and not (is_test and key in ("label", "tags")):
            source = origin.of(f"{name}.{key}", "kind", "data.header", "data.format")
            raise UsageError(f"{source}: {name}.{key} is missing, which a task of the kind {task.kind} needs.")

    for key, value in chosen.items():
        source = origin.of(f"{name}.{key}", "kind")
        if key not in known:
            has = ", ".join(known) or "no columns"
            raise UsageError(f"{source}: {name}.{key} is not for the kind {task.kind}, which has {has}.")
        for column in value if isinstance(value, list) else [value]:
            reason = unsuitable_column(task, column, header)
            if reason is not None:
                source = origin.of(f"{name}.{key}", "data.header", "data.test_header", "data.format", "data.train")
                raise UsageError(f"{source}: {name}.{key} is {reason}.")


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


def check_labels(task: Task, origin: Origin) -> None:
    """Check that the label keys fit the task's kind, and that the labels are two or more and distinct."""
    rules = RULES[task.kind]
    labels = task.data.labels
    skipped = task.data.skip_labels
    source = origin.of("data.labels", "kind")
    if task.is_regression and not rules.one_label:
        raise UsageError(f'{source}: data.labels is "number", which is for the kinds sentence and pair.')
    if skipped and not rules.one_label:
        raise UsageError(
            f"{origin.of('data.skip_labels', 'kind')}: data.skip_labels is for the kinds sentence and pair."
        )
    if not isinstance(labels, tuple):
        return

    if not rules.has_labels:
        raise UsageError(f"{source}: data.labels is not for the kind span, whose answers are places in the context.")
    repeated = [label for label in labels if labels.count(label) > 1]
    if repeated:
        raise UsageError(f'{source}: data.labels has "{repeated[0]}" twice.')
    if len(labels) < 2:
        raise UsageError(f"{source}: data.labels has {len(labels)} label, expected two or more.")


def check_metrics(task: Task, origin: Origin) -> None:
    """Check that the metrics exist and fit what the task predicts."""
    labels = task.data.labels
    number_of_labels = len(labels) if isinstance(labels, tuple) else None
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, number_of_labels)
        if reason is not None:
            source = origin.of("metrics", "kind", "data.labels")
            raise UsageError(f'{source}: metrics has "{metric}", which {reason}.')


def check_names(task: Task, origin: Origin) -> None:
    """Check the names of [data.extra], which become parts of file names, and the columns of [data.replace]."""
    for name in task.data.extra:
        if name in (TRAIN, DEV, TEST) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            source = origin.of(f"data.extra.{name}")
            raise UsageError(
                f'{source}: data.extra has a set "{name}". Expected letters, digits, - and _, and not train, dev or '
                "test."
            )

    roles: dict[str, str] = {}
    for role, value in task.data.columns:
        roles |= {str(column): role for column in (value if isinstance(value, list) else [value])}
    for column in task.data.replace:
        source = origin.of(f"data.replace.{column}")
        if column not in roles:
            raise UsageError(f'{source}: data.replace has "{column}", which is not in data.columns.')
        if roles[column] in ("label", "tags"):
            raise UsageError(f'{source}: data.replace has "{column}", which holds labels. It replaces texts only.')
