"""Finds the tasks that ship with Clozeline, such as glue/rte. Each file in trainer/finetune/tasks has those of a suite.

The table [tasks.rte] of glue.toml is the content of a task file, with the values of [defaults] where it has none. What
only a suite needs to know of a task, such as the task that it starts from, is in the same table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from schemas.errors import nearest_name
from trainer.finetune.near_file import TOML, nearest_file
from trainer.finetune.task import Task

SUITES = Path(str(files("trainer") / "finetune" / "tasks"))
"""The folder of the suites that ship with Clozeline."""


def shipped_task_names() -> list[str]:
    """Return the names that `--task` takes, in alphabetical order."""
    return sorted(_tables())


def shipped_task(name: str) -> dict[str, Any]:
    """Return the content of a shipped task's file. name: one of `shipped_task_names`."""
    return merged({"name": name.rpartition("/")[2]}, *_tables()[name])


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of several tables as one. Values of later tables replace earlier ones; inner tables are merged."""
    result: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            earlier = result.get(key)
            if isinstance(value, dict):
                value = merged(earlier, value) if isinstance(earlier, dict) else merged(value)
            result[key] = value
    return result


def advice_on_missing(path: str) -> str:
    """Return how a message about a task file that does not exist ends: the nearest name, and what to give instead.

    Names of shipped tasks are listed only for a path without ".toml", which may have been meant as one.
    """
    hint = nearest_file(path, TOML) or nearest_name(path.removesuffix(TOML), shipped_task_names())
    if path.endswith(TOML):
        return f"{hint} Give the path of a task file."
    return f"{hint} Give a task file, or the name of a shipped task: {', '.join(shipped_task_names())}."


@cache
def _tables() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the defaults of each shipped task and its own table, by its name. Keys of suites are left out."""
    tables = {}
    for path in SUITES.glob(f"*{TOML}"):
        suite = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, table in suite.get("tasks", {}).items():
            of_task = {key: value for key, value in table.items() if key in Task.model_fields}
            tables[f"{path.stem}/{name}"] = (suite.get("defaults", {}), of_task)
    return tables
