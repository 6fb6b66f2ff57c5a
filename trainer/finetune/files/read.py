"""Reads the files of a task into examples, or raises the first error in them.

All files are read before training starts, so that an invalid line in the dev set cannot fail a run after an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from schemas.errors import DataError, UsageError, nearest_name
from schemas.terminal import counted
from trainer.finetune.examples import Example, TaskData, TextExample, is_labeled
from trainer.finetune.files.example_builder import ExampleBuilder, columns_of, tags_of, value_of
from trainer.finetune.files.json_files import read_c3, read_json_lines, read_json_list, read_questions
from trainer.finetune.files.labels import check_names, infer_names, is_number, name_of, warn_of_case
from trainer.finetune.files.parquet import read_parquet
from trainer.finetune.files.records import (
    BadRowError,
    Record,
    Wanted,
    check_unicode,
    listed,
    read_text,
    split_lines,
)
from trainer.finetune.files.sets import ExampleSet, example_sets
from trainer.finetune.files.tables import read_conll, read_table
from trainer.finetune.task import DEV, TEST, TRAIN, Column, Task
from trainer.finetune.task_kinds import RULES
from trainer.logs import logger

READERS: dict[str, Callable[[str, Wanted], list[Record]]] = {
    "jsonl": read_json_lines,
    "json": read_json_list,
    "conll": read_conll,
    "parquet": read_parquet,
    "c3": read_c3,
    "squad": read_questions,
}

SEPARATORS = {"tsv": "\t", "csv": ","}


def read_task_data(task: Task, folder: str) -> TaskData:
    """Return the examples of a task.

    folder: the folder that the task's paths are relative to.
    Raises DataError or UsageError that names the file, the line, the value and what was expected.
    """
    sets = example_sets(task, folder)
    records = {example_set.name: _records(task, example_set) for example_set in sets}
    infers_labels = task.kind not in ("choice", "span") and task.data.labels is None
    found = _found_labels(task, sets[0], records[TRAIN]) if infers_labels else None
    named = task.data.labels if isinstance(task.data.labels, tuple) else ()
    names = named if found is None else infer_names(found)
    positions = {name: position for position, name in enumerate(names)}

    examples: dict[str, list[Example]] = {}
    unmatched = set(task.data.skip_labels)
    for example_set in sets:
        builder = ExampleBuilder(task, example_set, positions)
        of_all_files = list(chain.from_iterable(records.pop(example_set.name)))
        examples[example_set.name] = _examples(builder, example_set, of_all_files)
        unmatched -= builder.skipped_labels
        # Afterwards, because an error in a line explains more than that the lines without one have too few labels.
        if example_set.name == TRAIN and found is not None:
            keys = "data.columns and data.skip_labels" if task.data.skip_labels else "data.columns"
            check_names(names, len(found), example_set.paths[0], keys)
            warn_of_case(names)

    for label in sorted(unmatched):
        logger.warning('No example has the label "%s" of data.skip_labels.%s', label, nearest_name(label, names))
    # For the kind choice, data.labels names positions of choices. Examples hold positions, so TaskData has no labels.
    labels = () if task.kind == "choice" else names
    extra = {name: examples[name] for name in task.data.extra}
    return TaskData(examples[TRAIN], examples[DEV], examples.get(TEST), labels, extra)


def _records(task: Task, example_set: ExampleSet) -> list[list[Record]]:
    """Return the records of each of a set's files. Raises DataError if a file cannot be read or all are empty."""
    wanted = _wanted_columns(task, example_set)
    records = []
    for path in example_set.paths:
        if task.data.format in SEPARATORS:
            separator = SEPARATORS[task.data.format]
            records.append(read_table(path, separator, task.data.quotes, example_set.header, wanted))
            _check_header(task, example_set, path)
        else:
            records.append(READERS[task.data.format](path, wanted))

    if not any(records):
        raise _no_examples(example_set)
    return records


def _check_header(task: Task, example_set: ExampleSet, path: str) -> None:
    """Raise UsageError if the first row of a table, by default its header, has a label where other rows have theirs."""
    column = example_set.columns.label
    of_test = example_set.name == TEST and task.data.test_header is not None
    if not isinstance(column, int) or of_test or "header" in task.data.model_fields_set:
        return
    rows = read_table(path, SEPARATORS[task.data.format], task.data.quotes, False, {column: False})
    first, *others = [str(row.values.get(column, "")).strip() for row in rows]
    names = split_lines(read_text(path))[0].split(SEPARATORS[task.data.format])
    if names == [str(number) for number in range(len(names))]:  # as pandas writes them
        return
    if (first and first in others) or (is_number(first) and all(map(is_number, others))):
        raise UsageError(
            f'{path} line 1: column {column}, which holds the label, has "{first}", so this line may be an example. '
            "Set data.header = false if the file has no line with the names of its columns, or true if it has."
        )


def _wanted_columns(task: Task, example_set: ExampleSet) -> dict[Column, bool]:
    """Return the columns to read from the files of a set, and whether the files must have them.

    In test sets the columns of labels are optional. So is an optional column with its default name.
    """
    wanted: dict[Column, bool] = {}
    for role, columns in example_set.columns:
        is_optional = example_set.is_test and role in ("label", "tags")
        is_optional |= role in RULES[task.kind].optional and columns == role
        for column in columns_of(columns):
            wanted[column] = wanted.get(column, False) or not is_optional
    return wanted


def _no_examples(example_set: ExampleSet) -> DataError:
    return DataError(
        f"{', '.join(example_set.paths)}: {example_set.title} has no examples. Check that the task names the right "
        "file, and that it was written completely."
    )


def _found_labels(task: Task, train: ExampleSet, records: list[list[Record]]) -> list[str]:
    """Return the label of each example of the training set, or the tag of each word. Lines with faults have none.

    Raises DataError if one of its files has numbers where another one has names.
    """
    found: list[str] = []
    kinds: dict[tuple[bool, ...], tuple[str, list[str]]] = {}
    for path, of_file in zip(train.paths, records, strict=True):
        labels = [name for record in of_file if record.fault is None for name in _labels_of(task, train, record)]
        found += labels
        kinds.setdefault(tuple(set(map(is_number, labels))), (path, labels))

    # Where one file has both, others may have either.
    if (True,) in kinds and (False,) in kinds and not any(len(of_kinds) > 1 for of_kinds in kinds):
        (with_numbers, numbers), (with_names, names) = kinds[True,], kinds[False,]
        raise DataError(
            f"{with_numbers} has numbers as labels ({listed(infer_names(numbers))}), but {with_names} has names "
            f"({listed(infer_names(names))}). Write the same labels in all files, or list all of them in data.labels "
            "if each is a class."
        )
    return found


def _labels_of(task: Task, train: ExampleSet, record: Record) -> list[str]:
    is_tagged = task.kind == "tags"
    values = tags_of(record, train.columns.tags) if is_tagged else [value_of(record, train.columns.label)]
    names = [name_of(value, record.place) for value in values]
    return [name for name in names if name is not None and name not in task.data.skip_labels]


def _examples(builder: ExampleBuilder, example_set: ExampleSet, records: list[Record]) -> list[Example]:
    from trainer.distributed.watchdog import progress  # loads torch: by now the files have been read

    may_drop = builder.data.bad_rows == "drop" and not builder.is_test
    examples: list[Example] = []
    dropped: list[BadRowError] = []
    places: dict[str, str] = {}
    for position, record in enumerate(records):
        progress()
        if not builder.is_test and builder.has_skipped_label(record):
            continue

        try:
            example = builder.example(record, _id_of(builder, record, position))
        except BadRowError as error:
            if not may_drop:
                raise BadRowError(f"{error}{_advice(builder)}") from error
            dropped.append(error)
            continue

        if example.id in places:
            advice = "Give each its own." if builder.task.kind == "span" else "Leave data.columns.id out to count them."
            raise DataError(f'{record.place}: the id "{example.id}" is already that of {places[example.id]}. {advice}')
        places[example.id] = record.place
        examples.append(example)

    _log_left_out(builder, example_set, dropped, len(records))
    if not examples:
        raise _no_examples(example_set)
    return _with_test_labels(builder.task, example_set, examples) if builder.is_test else examples


def _log_left_out(builder: ExampleBuilder, example_set: ExampleSet, dropped: list[BadRowError], records: int) -> None:
    what = example_set.title
    if dropped:
        logger.info("%d of %d examples of %s left out. The first: %s", len(dropped), records, what, dropped[0])
    if empty := builder.with_empty_answers:
        said = f"{counted(len(empty), 'empty answer')} of {what} left out"
        logger.info("%s; its question has others. The first: %s.", said, empty[0])


def _id_of(builder: ExampleBuilder, record: Record, position: int) -> str:
    """Return an example's id from its file, or its position in the set if the file or the task has none."""
    is_question = builder.task.kind == "span"
    columns = ["id"] if is_question else columns_of(builder.columns.id)
    values = [value_of(record, column) for column in columns]
    if not values or (is_question and values == [None]):
        return str(position)
    if not is_question and any(value is None or value == "" or isinstance(value, list | dict) for value in values):
        raise DataError(f"{record.place}: the id {values!r:.60} is empty or not text. Leave data.columns.id out.")
    id_ = "-".join(map(str, values))
    check_unicode(id_, record.place)
    return id_


def _advice(builder: ExampleBuilder) -> str:
    if builder.data.bad_rows == "drop":
        return ""
    if builder.is_test:
        return ' Correct it, or set data.bad_rows = "drop": a test set then keeps such rows with empty texts.'
    return ' Correct it, or leave such rows out with data.bad_rows = "drop".'


def _with_test_labels(task: Task, example_set: ExampleSet, examples: list[Example]) -> list[Example]:
    """Return the examples of a test set. Raises DataError unless either all of them have labels or none has.

    If all labels of a regression are -1, they are placeholders, as in files converted from Hugging Face's datasets.
    With data.skip_labels, unlabeled examples may be among labeled ones.
    """
    texts = [example for example in examples if isinstance(example, TextExample)]
    if task.is_regression and all(example.label == -1 for example in texts):
        return [replace(example, label=None) for example in texts]
    if task.data.skip_labels:
        return examples

    labeled = [example.id for example in examples if is_labeled(example)]
    unlabeled = [example.id for example in examples if not is_labeled(example)]
    if labeled and unlabeled:
        raise DataError(
            f"{', '.join(example_set.paths)}: {len(labeled)} examples have a label and {len(unlabeled)} have none, "
            f'such as those with the ids "{labeled[0]}" and "{unlabeled[0]}". Expected labels for all or for none.'
        )
    return examples
