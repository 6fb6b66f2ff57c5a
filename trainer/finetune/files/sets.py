"""The sets of a task (train, dev, test and extra ones): finds the files of each and reads their rows or questions."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import storage
from trainer.finetune.files.c3 import read_c3
from trainer.finetune.files.conll import read_conll
from trainer.finetune.files.jsonl import read_json_lines, read_json_list
from trainer.finetune.files.records import Record, WantedColumns
from trainer.finetune.files.squad import Question, read_questions
from trainer.finetune.files.tables import TableLayout, read_table
from trainer.finetune.files.values import columns_of
from trainer.finetune.task import Column, ColumnsSection, Task, TaskDataSection
from trainer.finetune.task_defaults import OPTIONAL_ROLES
from trainer.logs import logger

SEPARATORS = {"tsv": "\t", "csv": ","}

TEXT_COLUMNS = ("id", "text", "text_pair", "context", "prefix", "choices", "words")
LABEL_COLUMNS = ("label", "tags")


@dataclass(frozen=True)
class ExampleSet:
    """One set of a task: its name (train, dev, test or one of [data.extra]), its files and their columns."""

    name: str
    paths: list[str]
    header: bool
    columns: ColumnsSection

    @property
    def is_train(self) -> bool:
        return self.name == "train"

    @property
    def is_test(self) -> bool:
        """Whether every example needs a prediction, so that none is dropped and labels may be absent.

        True for the test set and for the sets of [data.extra].
        """
        return self.name not in ("train", "dev")


def example_sets(task: Task, folder: str) -> list[ExampleSet]:
    """Return the sets of a task, the training set first. folder: the folder that relative paths start from."""
    return [_example_set(task, name, folder) for name in set_names(task.data)]


def set_names(data: TaskDataSection) -> list[str]:
    """Return the names of a task's sets: train, dev, test if it has one, and those of [data.extra]."""
    test = ["test"] if data.test else []
    return ["train", "dev", *test, *data.extra]


def named_files(data: TaskDataSection, set_name: str) -> list[str]:
    """Return the files of a set as the task file names them."""
    named = data.extra[set_name] if set_name in data.extra else getattr(data, set_name)
    return named if isinstance(named, list) else [named]


def _example_set(task: Task, name: str, folder: str) -> ExampleSet:
    data = task.data
    located = [
        path if "://" in path or path.startswith("/") else storage.join(folder, path)
        for path in named_files(data, name)
    ]

    if name == "test":
        header = data.header if data.test_header is None else data.test_header
        return ExampleSet(name, located, header, data.test_columns or data.columns)
    return ExampleSet(name, located, data.header, data.columns)


def read_contents(task: Task, example_set: ExampleSet) -> list[Record] | list[Question]:
    """Return the rows or questions of a set's files, in order. Raises DataError for a file that cannot be read."""
    contents: list = []
    empty: list[str] = []
    for path in example_set.paths:
        found = _read_file(task, example_set, path)
        contents += found
        if not found:
            empty.append(path)

    # A set with no examples at all is an error of the caller's.
    if contents and empty:
        what = f"the {example_set.name} set of {task.name}"
        logger.warning("%s: no examples. The other files of %s have %d.", ", ".join(empty), what, len(contents))
    return contents


def _read_file(task: Task, example_set: ExampleSet, path: str) -> list[Record] | list[Question]:
    file_format = task.data.format
    wanted = wanted_columns(example_set)

    if file_format in SEPARATORS:
        layout = TableLayout(SEPARATORS[file_format], task.data.quotes, example_set.header)
        return read_table(path, layout, wanted)
    if file_format == "jsonl":
        return read_json_lines(path, wanted)
    if file_format == "json":
        return read_json_list(path, wanted)
    if file_format == "conll":
        return read_conll(path, wanted)
    if file_format == "c3":
        return read_c3(path)
    return read_questions(path)


def wanted_columns(example_set: ExampleSet) -> WantedColumns:
    """Return the columns to read from the files of a set.

    In test sets the columns of labels are optional. So is a column that no task file names, if its role is optional.
    """
    columns = example_set.columns
    unnamed = tuple(role for role in OPTIONAL_ROLES if getattr(columns, role) == role)
    texts = _columns_named(columns, tuple(key for key in TEXT_COLUMNS if key not in unnamed))
    labels = _columns_named(columns, LABEL_COLUMNS)
    if example_set.is_test:
        return WantedColumns(texts, labels + unnamed)
    return WantedColumns(texts + labels, unnamed)


def _columns_named(columns: ColumnsSection, keys: tuple[str, ...]) -> tuple[Column, ...]:
    found: list[Column] = []
    for key in keys:
        found += columns_of(getattr(columns, key))
    return tuple(found)
