"""Cross-field validation of task files. Every check raises UsageError."""

from __future__ import annotations

import re

from schemas.errors import UsageError
from trainer.finetune.metrics.table import unsuitable
from trainer.finetune.task import ColumnsSection, Task
from trainer.finetune.task_defaults import format_of

REQUIRED_COLUMNS = {
    "sentence": ("text", "label"),
    "pair": ("text", "text_pair", "label"),
    "choice": ("context", "choices", "label"),
    "tags": ("words", "tags"),
    "span": (),
}
FURTHER_COLUMNS = {
    "sentence": ("id",),
    "pair": ("id",),
    "choice": ("id", "prefix"),
    "tags": ("id",),
    "span": (),
}

FORMATS = {
    "sentence": ("jsonl", "json", "tsv", "csv"),
    "pair": ("jsonl", "json", "tsv", "csv"),
    "choice": ("jsonl", "json", "tsv", "csv", "c3"),
    "tags": ("jsonl", "json", "conll"),
    "span": ("squad",),
}


def check_task(task: Task, path: str) -> None:
    """Check the keys of a task that depend on each other. path: the task file's name in messages."""
    check_format(task, path)
    check_columns(task, task.data.columns, f"{path}: data.columns", task.data.header)
    check_test(task, path)
    check_labels(task, path)
    check_metrics(task, path)
    check_names(task, path)

    training = task.training
    if task.kind == "span" and training.stride >= training.max_length:
        raise UsageError(
            f"{path}: training.stride is {training.stride}, expected less than training.max_length, "
            f"{training.max_length}."
        )


def check_format(task: Task, path: str) -> None:
    """Check that files in the task's format can hold examples of its kind."""
    formats = FORMATS[task.kind]
    if task.data.format not in formats:
        expected = 'SQuAD JSON (data.format = "squad")' if task.kind == "span" else " or ".join(formats)
        raise UsageError(
            f'{path}: data.format is "{task.data.format}"{origin_of_format(task)}, but a task of the kind {task.kind} '
            f"is read from {expected}."
        )
    if task.data.find_answers and task.kind != "span":
        raise UsageError(f"{path}: data.find_answers is for the kind span, and this task's kind is {task.kind}.")


def origin_of_format(task: Task) -> str:
    """Return where a format may come from, for messages: the training file's name, if its ending stands for it."""
    train = task.data.train
    if format_of(train, task.kind) != task.data.format:
        return ""
    first = train[0] if isinstance(train, list) else train
    return f", as the ending of {first} says"


def check_columns(task: Task, columns: ColumnsSection, name: str, header: bool, is_test: bool = False) -> None:
    """Check that the columns belong to the task's kind, and that each is a name or a number as the format requires."""
    required = REQUIRED_COLUMNS[task.kind]
    known = required + FURTHER_COLUMNS[task.kind]
    chosen = {key: value for key, value in columns if value is not None}

    for key in required:
        if key not in chosen and not (is_test and key in ("label", "tags")):
            raise UsageError(f"{name}.{key} is missing, which a task of the kind {task.kind} needs.")
    for key, value in chosen.items():
        if key not in known:
            raise UsageError(f"{name}.{key} is not for the kind {task.kind}, which has {', '.join(known)}.")
        for column in value if isinstance(value, list) else [value]:
            check_column(task, column, f"{name}.{key}", header)


def check_column(task: Task, column: str | int, name: str, header: bool) -> None:
    """Check that a column is a number if the file has no column names, and a key if the file is JSON."""
    file_format = task.data.format
    if file_format in ("tsv", "csv") and not header and isinstance(column, str):
        raise UsageError(f'{name} is "{column}", but without a header columns are numbers from 0.')
    if file_format == "conll" and isinstance(column, str):
        raise UsageError(f'{name} is "{column}", but columns of CoNLL files are numbers from 0 (from the end: -1).')
    if file_format in ("json", "jsonl") and isinstance(column, int):
        raise UsageError(f"{name} is {column}, but columns of JSON files are keys.")


def check_test(task: Task, path: str) -> None:
    """Check the keys of the test file."""
    data = task.data
    if data.test is None:
        if data.test_columns is not None or data.test_header is not None:
            raise UsageError(f"{path}: data.test_columns and data.test_header need data.test.")
        return

    header = data.header if data.test_header is None else data.test_header
    if data.test_columns is not None:
        check_columns(task, data.test_columns, f"{path}: data.test_columns", header, is_test=True)
    else:
        check_columns(task, data.columns, f"{path}: data.columns", header)


def check_labels(task: Task, path: str) -> None:
    """Check that the label keys fit the task's kind, and that the labels are two or more and distinct."""
    labels = task.data.labels
    if task.is_regression and task.kind not in ("sentence", "pair"):
        raise UsageError(f'{path}: data.labels is "number", which is for the kinds sentence and pair.')
    if isinstance(labels, tuple) and task.kind == "span":
        raise UsageError(f"{path}: data.labels is not for the kind span, whose answers are places in the context.")
    if task.data.skip_labels and task.kind not in ("sentence", "pair"):
        raise UsageError(f"{path}: data.skip_labels is for the kinds sentence and pair.")
    if not isinstance(labels, tuple):
        return

    repeated = [label for label in labels if labels.count(label) > 1]
    if repeated:
        raise UsageError(f'{path}: data.labels has "{repeated[0]}" twice.')
    if len(labels) < 2:
        raise UsageError(f"{path}: data.labels has {len(labels)} label, expected two or more.")
    skipped = [label for label in task.data.skip_labels if label in labels]
    if skipped:
        raise UsageError(f'{path}: "{skipped[0]}" is in data.labels and in data.skip_labels.')


def check_metrics(task: Task, path: str) -> None:
    """Check that the metrics exist and fit what the task predicts."""
    labels = task.data.labels
    number_of_labels = len(labels) if isinstance(labels, tuple) else None
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, number_of_labels)
        if reason is not None:
            raise UsageError(f'{path}: metrics has "{metric}", which {reason}.')


def check_names(task: Task, path: str) -> None:
    """Check the names of [data.extra], which become parts of file names, and the columns of [data.replace]."""
    for name in task.data.extra:
        if name in ("train", "dev", "test") or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UsageError(
                f'{path}: data.extra has a set "{name}". Expected letters, digits, - and _, and not train, dev or test.'
            )

    columns: list[str] = []
    for _, value in task.data.columns:
        columns += [str(column) for column in (value if isinstance(value, list) else [value])]
    for column in task.data.replace:
        if column not in columns:
            raise UsageError(f'{path}: data.replace has "{column}", which is not in data.columns.')
