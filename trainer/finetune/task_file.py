"""Reads a task file and writes the resolved task back as TOML.

`--task` names a file or a task that ships with Clozeline, such as glue/rte (shipped.py). `--set key=value` overrides
values, as it does for recipes.
"""

from __future__ import annotations

import posixpath
import tomllib
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.config.parse import Origin, apply_overrides, parse_section
from trainer.finetune.arguments import check_trainer_names
from trainer.finetune.shipped import advice_on_missing, shipped_task, shipped_task_names
from trainer.finetune.task import Task
from trainer.finetune.task_checks import check_has_format, check_task


def read_task(path: str, overrides: list[str], flag: str = "--task") -> Task:
    """Return the task of a task file or a shipped task, with `--set` overrides applied and every default filled in.

    flag: the one that names the task.
    Raises UsageError that names each wrong key and the file or the override that has it, or StorageError for a file
    that cannot be read.
    """
    content = task_content(path, flag)
    return task_of(content, Origin(path, overrides, content=content))


def task_of(content: dict[str, Any], origin: Origin) -> Task:
    """Return the task of a task file's content, to which this applies the changes of its origin.

    Raises UsageError as `read_task` does.
    """
    apply_overrides(content, origin.changes, Task)
    check_has_format(content, origin)
    check_trainer_names(content, origin)
    task = parse_section(Task, content, origin)
    check_task(task, origin)
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


def is_shipped(path: str) -> bool:
    """Return whether a path names a task that comes with Clozeline, and no file."""
    return path in shipped_task_names() and not storage.exists(path)


def task_content(path: str, name: str) -> dict[str, Any]:
    """Return the content of a task file or of a shipped task. A file takes precedence over a shipped task's name.

    name: what messages call the choice of the task.
    """
    if is_shipped(path):
        return shipped_task(path)

    try:
        return tomllib.loads(storage.read(path).decode("utf-8-sig"))
    except DataError:
        raise UsageError(f"{name} {path} does not exist.{advice_on_missing(path)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} {path} is not TOML: {error}.") from error
