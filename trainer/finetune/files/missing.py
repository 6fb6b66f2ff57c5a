"""Reports files of a task that do not exist. Needs neither torch nor transformers, whose imports take seconds."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError
from trainer.config.parse import Origin
from trainer.finetune.files.sets import ExampleSet, example_sets
from trainer.finetune.near_file import nearest_file
from trainer.finetune.task import Task


@dataclass(frozen=True)
class Naming:
    """What names the files of a task, for messages.

    origin: of the task's values. is_shipped: whether the task comes with Clozeline, so that only the folder can be
    wrong. data: the flag or the key that names the folder.
    """

    origin: Origin
    is_shipped: bool = False
    data: str = "--data"


UNNAMED = Naming(Origin("the task file"))
"""For callers that do not know the task file."""


def check_task_files(task: Task, folder: str, naming: Naming = UNNAMED) -> None:
    """Raise DataError that names the first file of a task that does not exist, and what to correct.

    folder: the folder that the task's paths are relative to.
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
                f"{path}, the {example_set.name} set of {task.name}, does not exist.{source}"
                f"{nearest_file(path, named=named)} {_correction(task, example_set, naming)}"
            )


def _correction(task: Task, example_set: ExampleSet, naming: Naming) -> str:
    """Return what to do about a missing file, as a sentence."""
    folder = f"the folder that holds the task's files with {naming.data}"
    key = f"data.extra.{example_set.name}" if example_set.name in task.data.extra else f"data.{example_set.name}"

    named_by = naming.origin.of(key)
    if named_by != naming.origin.path:
        return f"Correct {named_by}, or give {folder}."
    if naming.is_shipped:
        return f"Give {folder}."
    return f"Correct {key} of {named_by}, or give {folder}."
