"""Finds the files that a suite reads, and reports all missing ones before any job starts."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError
from trainer.finetune.files.sets import named_files, path_in, set_names
from trainer.finetune.task import TaskDataSection
from trainer.suite.suite_file import Suite


@dataclass(frozen=True)
class Missing:
    """A task or a set of minimal pairs whose files are missing.

    source: where to get the files. optional: whether the suite runs without this part.
    """

    name: str
    files: tuple[str, ...]
    source: str | None
    optional: bool = False


def missing_files(suite: Suite) -> list[Missing]:
    missing = []
    for name, task in suite.tasks.items():
        absent = [file for file in files_of(task.task.data) if not storage.exists(path_in(task.folder, file))]
        if absent:
            missing.append(Missing(name, tuple(absent), task.task.source))
    for name, pairs in suite.minimal_pairs.items():
        if not matching(suite.folder, pairs.files):
            missing.append(Missing(name, (pairs.files,), pairs.source, pairs.optional))
    return missing


def files_of(section: TaskDataSection) -> list[str]:
    """Return all files that a task names, each once, in the order of the task file."""
    files = [file for name in set_names(section) for file in named_files(section, name)]
    return list(dict.fromkeys(files))


def matching(data: str, pattern: str) -> list[str]:
    """Return the files that match a pattern such as "blimp/*.jsonl", sorted, as paths relative to `data`.

    Only the last part of the pattern may contain wildcards. As in a shell, they match no name that begins with a dot,
    such as macOS's ._x.jsonl.
    """
    folder, _, name_pattern = pattern.rpartition("/")
    location = path_in(data, folder) if folder else data
    if not storage.exists(location):
        return []

    visible = [name for name in storage.names(location) if not name.startswith(".") or name_pattern.startswith(".")]
    names = sorted(fnmatch.filter(visible, name_pattern))
    if not folder:
        return names
    return [f"{folder}/{name}" for name in names]


def without_missing(suite: Suite, skip: bool) -> tuple[Suite, list[Missing]]:
    """Return the suite without the parts whose files are missing, and the parts that were left out.

    skip: whether to leave out required parts as well. Otherwise only optional parts may be missing.
    A task that starts from a missing one is left out too.
    Raises DataError that names every missing file, also if `skip` leaves no part of the suite.
    """
    missing = missing_files(suite)
    # A task can only start from an earlier one, so a single pass also finds tasks at the end of a chain.
    left_out = {part.name: part for part in missing}
    for name, task in suite.tasks.items():
        source = task.entry.starts_from
        if source in left_out and name not in left_out:
            left_out[name] = Missing(name, left_out[source].files, left_out[source].source)

    kept = [name for name in suite.names if name not in left_out]
    required = [part for part in missing if not part.optional]
    if (required and not skip) or not kept:
        raise DataError(_message(suite, required or missing))
    return suite.only(kept), list(left_out.values())


def _message(suite: Suite, missing: list[Missing]) -> str:
    files: set[str] = set()
    lines = []
    for part in missing:
        files.update(part.files)
        source = f" (from {part.source})" if part.source else ""
        lines.append(f"  {part.name}: {', '.join(part.files)}{source}")

    plural = "s" if len(files) > 1 else ""
    lines.insert(0, f"{len(files)} file{plural} of the suite {suite.name} cannot be found:")

    some_are_there = len(missing) < len(suite.names)
    alternative = ", or run the other tasks with --skip_missing or --only" if some_are_there else ""
    lines.append(
        "Their paths are relative to --data, by default the folder of the file that names them. Put them "
        f"there{alternative}."
    )
    return "\n".join(lines)
