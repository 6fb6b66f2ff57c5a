"""Which tasks a linear probe can be fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.finetune.task import Task
from trainer.finetune.task_file import read_task
from trainer.suite.needed_files import files_of, joined
from trainer.suite.suite_file import changes_for_all

KINDS = ("sentence", "pair", "tags")


@dataclass(frozen=True)
class OpenProbe:
    """A task to probe. path: of its file. data: the folder of its files, which may be a URL. changes: of --set."""

    path: str
    task: Task
    data: str
    changes: tuple[str, ...]


def open_probe(path: str, data: str, changes: Sequence[str]) -> OpenProbe:
    """Return the task to probe. changes: what --set gives; those for one task of a suite are not the probe's.

    Raises UsageError if the task is none or cannot be probed, and DataError that names all files that are missing.
    """
    own = changes_for_all(changes)
    task = read_task(path, list(own))
    check_probed(task)

    absent = [name for name in files_of(task.data) if not storage.exists(joined(data, name))]
    if absent:
        source = f" (from {task.source})" if task.source else ""
        raise DataError(
            f"--probe {path}: {len(absent)} of its files cannot be found in {data}: {', '.join(absent)}{source}. Put "
            "them there, or change data.train and the other paths."
        )
    return OpenProbe(path, task, data, own)


def check_changes_of_probe(changes: Sequence[str]) -> None:
    """Raise UsageError if a change is for one task of a suite, and only a probe was asked for."""
    others = [change for change in changes if change not in changes_for_all(changes)]
    if others:
        raise UsageError(
            f"--set {others[0]}: without --suite there is no task {others[0].partition(':')[0]}. Write KEY=VALUE for "
            "the task of --probe, as in training.max_length=64."
        )


def check_probed(task: Task) -> None:
    """Raise UsageError if a task cannot be probed."""
    if task.kind not in KINDS or task.is_regression:
        what = "whose labels are numbers" if task.is_regression else f"of kind {task.kind!r}"
        raise UsageError(
            f"--probe: {task.name} is a task {what}. A linear probe needs classes of texts or of words: one of the "
            f"kinds {', '.join(KINDS)}."
        )
