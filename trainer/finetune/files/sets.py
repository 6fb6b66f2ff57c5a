"""The sets of a task (train, dev, test and extra ones): their files and columns, and errors for files that are missing.

Needs neither torch nor transformers, whose imports take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError
from trainer.config.parse import Origin
from trainer.finetune.task import DEV, TEST, TRAIN, ColumnsSection, Task, TaskDataSection
from trainer.finetune.task_file import is_shipped, nearest_file


@dataclass(frozen=True)
class ExampleSet:
    """One set of a task: its name (train, dev, test or one of [data.extra]), its files and their columns.

    title: what messages call it, such as "the dev set of rte".
    """

    name: str
    title: str
    paths: list[str]
    header: bool
    columns: ColumnsSection

    @property
    def is_test(self) -> bool:
        """Whether every example needs a prediction, so that none is dropped and labels may be absent.

        True for the test set and for the sets of [data.extra].
        """
        return self.name not in (TRAIN, DEV)


def example_sets(task: Task, folder: str) -> list[ExampleSet]:
    """Return the sets of a task, the training set first. folder: the folder that relative paths start from."""
    data = task.data
    sets = []
    for name in set_names(data):
        paths = [path_in(folder, path) for path in named_files(data, name)]
        header, columns = data.header, data.columns
        if name == TEST:
            header = header if data.test_header is None else data.test_header
            columns = data.test_columns or columns
        sets.append(ExampleSet(name, f"the {name} set of {task.name}", paths, header, columns))
    return sets


def set_names(data: TaskDataSection) -> list[str]:
    """Return the names of a task's sets: train, dev, test if it has one, and those of [data.extra]."""
    test = [TEST] if data.test else []
    return [TRAIN, DEV, *test, *data.extra]


def named_files(data: TaskDataSection, set_name: str) -> list[str]:
    """Return the files of a set as the task file names them."""
    named = data.extra[set_name] if set_name in data.extra else getattr(data, set_name)
    return named if isinstance(named, list) else [named]


def path_in(folder: str, name: str) -> str:
    """Return the path or URL of a file that a task names. Absolute paths and URLs stay as they are."""
    is_complete = "://" in name or name.startswith("/")
    return name if is_complete else storage.join(folder, name)


def check_task_files(task: Task, folder: str, origin: Origin) -> None:
    """Raise DataError that names the first file of a task that does not exist, and what to correct.

    folder: the folder that the task's paths are relative to. origin: of the task's values.
    """
    sets = example_sets(task, folder)
    # No file is suggested that the task names already: the same examples would be trained on and scored.
    named = {path for example_set in sets for path in example_set.paths}

    for example_set in sets:
        for path in example_set.paths:
            if storage.exists(path):
                continue

            source = f" It comes from {task.source}." if task.source else ""
            raise DataError(
                f"{path}, {example_set.title}, does not exist.{source}{nearest_file(path, named=named)} "
                f"{_correction(task, example_set.name, origin)}"
            )


def _correction(task: Task, set_name: str, origin: Origin) -> str:
    folder = "the folder that holds the task's files with --data"
    key = f"data.extra.{set_name}" if set_name in task.data.extra else f"data.{set_name}"

    named_by = origin.of(key)
    if named_by != origin.path:
        return f"Correct {named_by}, or give {folder}."
    if is_shipped(origin.path):
        return f"Give {folder}."
    return f"Correct {key} of {named_by}, or give {folder}."
