"""Reads the files of a task into examples, or raises the first error in them.

All files are read before training starts, so that an invalid line in the dev set cannot fail a run after an epoch.
"""

from __future__ import annotations

from dataclasses import replace

from schemas.errors import DataError
from trainer.distributed.watchdog import progress
from trainer.finetune.examples import Example, TaskData, TextExample, is_labeled
from trainer.finetune.files.build import Building, example_of, tags_of
from trainer.finetune.files.labels import infer_names, name_of
from trainer.finetune.files.missing import check_task_files
from trainer.finetune.files.records import BadRowError, Record
from trainer.finetune.files.sets import ExampleSet, example_sets, read_contents
from trainer.finetune.files.squad import Question
from trainer.finetune.files.values import columns_of
from trainer.finetune.task import Task
from trainer.logs import logger


def read_task_data(task: Task, folder: str) -> TaskData:
    """Return the examples of a task.

    folder: the folder that the task's paths are relative to.
    Raises DataError or UsageError that names the file, the line, the value and what was expected.
    """
    check_task_files(task, folder)
    sets = example_sets(task, folder)
    contents = {example_set.name: read_contents(task, example_set) for example_set in sets}
    for example_set in sets:
        if not contents[example_set.name]:
            raise _no_examples(task, example_set)
    labels = _labels(task, sets[0], contents["train"])

    # For the kind choice, data.labels names positions of choices. Examples hold positions, so TaskData has no labels.
    names = task.data.labels if task.kind == "choice" and isinstance(task.data.labels, tuple) else labels
    positions = {name: position for position, name in enumerate(names)}

    examples: dict[str, list[Example]] = {}
    for example_set in sets:
        building = Building(task, example_set, positions)
        examples[example_set.name] = _examples(building, contents.pop(example_set.name))

    extra = {name: examples[name] for name in task.data.extra}
    return TaskData(examples["train"], examples["dev"], examples.get("test"), labels, extra)


def _labels(task: Task, train: ExampleSet, contents: list[Record] | list[Question]) -> tuple[str, ...]:
    """Return the names of a task's labels in the order of their ids, from the task file or else the training set."""
    if task.kind in ("choice", "span") or task.is_regression:
        return ()
    if isinstance(task.data.labels, tuple):
        return task.data.labels

    found: list[str] = []
    for record in contents:
        if isinstance(record, Record) and record.fault is None:
            found += _label_names(task, train, record)

    kept = [name for name in found if name not in task.data.skip_labels]
    return infer_names(kept, len(kept), train.paths[0])


def _label_names(task: Task, train: ExampleSet, record: Record) -> list[str]:
    """Return the label of a record or the tags of its words, without missing ones."""
    columns = train.columns
    if task.kind == "tags":
        values = tags_of(record.values.get(columns.tags or 0), record.place)
    else:
        values = [record.values.get(columns.label or 0)]

    names = [name_of(value, record.place) for value in values]
    return [name for name in names if name is not None]


def _examples(building: Building, contents: list[Record] | list[Question]) -> list[Example]:
    """Return the examples of a set. Raises DataError for the first error in it."""
    task = building.task
    what = _name_of_set(task, building.example_set)
    may_drop = task.data.bad_rows == "drop" and not building.is_test

    examples: list[Example] = []
    dropped: list[BadRowError] = []
    places: dict[str, str] = {}
    for position, content in enumerate(contents):
        progress()
        if _is_skipped(building, content):
            continue

        try:
            example = example_of(content, _id_of(building, content, position), building)
        except BadRowError as error:
            if not may_drop:
                raise BadRowError(f"{error}{_advice(building)}") from error
            dropped.append(error)
            continue

        if example.id in places:
            raise DataError(f'{content.place}: the id "{example.id}" is already that of {places[example.id]}.')
        places[example.id] = content.place
        examples.append(example)

    if dropped:
        logger.info("%d of %d examples of %s left out. The first: %s", len(dropped), len(contents), what, dropped[0])
    if not examples:
        raise _no_examples(task, building.example_set)
    return _with_test_labels(building, examples) if building.is_test else examples


def _name_of_set(task: Task, example_set: ExampleSet) -> str:
    return f"the {example_set.name} set of {task.name}"


def _advice(building: Building) -> str:
    """Return what to do about a bad row, as a further sentence."""
    if building.task.data.bad_rows == "drop":
        return ""
    if building.is_test:
        return ' Correct it, or set data.bad_rows = "drop": a test set then keeps such rows with empty texts.'
    return ' Correct it, or leave such rows out with data.bad_rows = "drop".'


def _no_examples(task: Task, example_set: ExampleSet) -> DataError:
    return DataError(
        f"{', '.join(example_set.paths)}: {_name_of_set(task, example_set)} has no examples. Check that the task names "
        "the right file, and that it was written completely."
    )


def _is_skipped(building: Building, content: Record | Question) -> bool:
    """Return whether an example of the training or dev set has one of the labels in data.skip_labels."""
    skipped = building.task.data.skip_labels
    if not skipped or building.is_test or isinstance(content, Question):
        return False
    return name_of(building.value(content, building.columns.label), content.place) in skipped


def _id_of(building: Building, content: Record | Question, position: int) -> str:
    """Return an example's id from its file, or its position in the set if the task names no id column."""
    if isinstance(content, Question):
        return str(content.content.get("id", position))

    columns = columns_of(building.columns.id)
    if not columns:
        return str(position)

    values = [content.values.get(column) for column in columns]
    if any(value is None or value == "" or isinstance(value, list | dict) for value in values):
        raise DataError(f"{content.place}: the id {values!r:.60} is empty or not text. Leave data.columns.id out.")
    return "-".join(str(value) for value in values)


def _with_test_labels(building: Building, examples: list[Example]) -> list[Example]:
    """Return the examples of a test set. Raises DataError unless either all of them have labels or none has.

    If all labels of a regression are -1, they are placeholders, as in files converted from Hugging Face's datasets.
    With data.skip_labels, unlabeled examples may be among labeled ones.
    """
    texts = [example for example in examples if isinstance(example, TextExample)]
    if building.task.is_regression and all(example.label == -1 for example in texts):
        return [replace(example, label=None) for example in texts]

    if building.task.data.skip_labels:
        return examples

    labeled = [example.id for example in examples if is_labeled(example)]
    unlabeled = [example.id for example in examples if not is_labeled(example)]
    if labeled and unlabeled:
        paths = ", ".join(building.example_set.paths)
        raise DataError(
            f"{paths}: {len(labeled)} examples have a label and {len(unlabeled)} have none, such as those with the ids "
            f'"{labeled[0]}" and "{unlabeled[0]}". Expected labels for all or for none.'
        )
    return examples
