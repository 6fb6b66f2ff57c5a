"""Reads the task of a linear probe, and checks that it can be probed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.finetune.task import Task
from trainer.finetune.task_file import TaskNames, read_task
from trainer.suite.needed_files import files_of, joined
from trainer.suite.suite_file import changes_for_all

KINDS = ("sentence", "pair", "tags")


@dataclass(frozen=True)
class OpenProbe:
    """A task to probe.

    path: of the task file. data: the folder of the task's files, which may be a URL. changes: --set flags that apply.
    """

    path: str
    task: Task
    data: str
    changes: tuple[str, ...]


def open_probe(path: str, data: str, changes: Sequence[str]) -> OpenProbe:
    """Return the task to probe.

    path: of the task file. data: the folder of its files. changes: the values of --set. Those for a single task of the
    suite do not apply to the probe.
    Raises UsageError if the file is not a task or cannot be probed, and DataError that names all missing files.
    """
    own = changes_for_all(changes)
    task = read_task(path, list(own), TaskNames(task="--probe"))
    check_probed(task)

    absent = [name for name in files_of(task.data) if not storage.exists(joined(data, name))]
    if absent:
        source = f" (from {task.source})" if task.source else ""
        raise DataError(
            f"--probe {path}: {len(absent)} of its files cannot be found in {data}: {', '.join(absent)}{source}. Put "
            "them there, or change data.train and the other paths."
        )
    return OpenProbe(path, task, data, own)


def check_probed(task: Task) -> None:
    """Raise UsageError unless a task has classes of texts or of words, which a linear probe needs."""
    if task.kind not in KINDS or task.is_regression:
        what = "whose labels are numbers" if task.is_regression else f"of kind {task.kind!r}"
        raise UsageError(
            f"--probe: {task.name} is a task {what}. A linear probe needs classes of texts or of words: one of the "
            f"kinds {', '.join(KINDS)}."
        )
