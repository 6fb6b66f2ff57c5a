"""Finds the tasks that ship with Clozeline, such as glue/rte, which are the files in trainer/suite/suites."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from schemas.errors import UsageError, nearest_name
from trainer.finetune.near_file import TOML, nearest_file


def shipped_task_names() -> list[str]:
    """Return the names that `--task` takes, in alphabetical order."""
    return sorted(name for name, _ in _task_files())


def shipped_task_text(name: str) -> str:
    """Return the TOML text of a shipped task. Raises UsageError with the nearest name if there is none."""
    for known_name, file in _task_files():
        if known_name == name:
            return file.read_text(encoding="utf-8")
    raise UsageError(f"there is no task {name}.{nearest_task(name)} Known: {', '.join(shipped_task_names())}.")


def nearest_task(path: str) -> str:
    """Return a hint with the shipped task whose name is closest to a path, or an empty string."""
    return nearest_name(path.removesuffix(TOML), shipped_task_names())


def advice_on_missing(path: str) -> str:
    """Return how a message about a task file that does not exist ends: the nearest name, and what to give instead.

    Names of shipped tasks are listed only for a path without ".toml", which may have been meant as one.
    """
    hint = nearest_file(path, TOML) or nearest_task(path)
    if path.endswith(TOML):
        return f"{hint} Give the path of a task file."
    return f"{hint} Give a task file, or the name of a shipped task: {', '.join(shipped_task_names())}."


def _task_files() -> Iterator[tuple[str, Traversable]]:
    for suite in files("trainer").joinpath("suite", "suites").iterdir():
        if not suite.is_dir():
            continue
        for file in suite.iterdir():
            if file.name.endswith(TOML):
                yield f"{suite.name}/{file.name.removesuffix(TOML)}", file
