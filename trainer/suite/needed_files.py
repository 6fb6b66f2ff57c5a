"""The files that a suite reads: which are missing, and where they come from, before anything is started."""

from __future__ import annotations

import fnmatch
import posixpath
from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError
from trainer.finetune.task import TaskDataSection
from trainer.suite.schema import MinimalPairs
from trainer.suite.suite_file import OpenSuite, OpenTask


@dataclass(frozen=True)
class Missing:
    """The files that a part of the suite lacks. optional: whether the suite is whole without this part."""

    name: str
    files: tuple[str, ...]
    source: str | None
    optional: bool = False


def missing_files(suite: OpenSuite, data: str) -> list[Missing]:
    """Return what is missing in a folder, which may be a URL, by the parts of the suite."""
    found = [_missing_of_task(task, data) for task in suite.tasks]
    found += [_missing_of_pairs(pairs, data) for pairs in suite.minimal_pairs]
    return [missing for missing in found if missing.files]


def _missing_of_task(task: OpenTask, data: str) -> Missing:
    absent = [name for name in files_of(task.task.data) if not storage.exists(joined(data, name))]
    return Missing(task.entry.name, tuple(absent), task.task.source)


def _missing_of_pairs(pairs: MinimalPairs, data: str) -> Missing:
    absent = () if matching(data, pairs.files) else (pairs.files,)
    return Missing(pairs.name, absent, pairs.source, pairs.optional)


def files_of(section: TaskDataSection) -> list[str]:
    """Return all files that a task names, in the order of its file."""
    files: list[str] = []
    for value in (section.train, section.dev, section.test, *section.extra.values()):
        if value is not None:
            files += [value] if isinstance(value, str) else value
    return list(dict.fromkeys(files))


def joined(folder: str, name: str) -> str:
    """Return the path or URL of a task's file, as the task's readers find it."""
    is_complete = "://" in name or posixpath.isabs(name)
    return name if is_complete else storage.join(folder, name)


def matching(data: str, pattern: str) -> list[str]:
    """Return the files that a pattern such as "blimp/*.jsonl" stands for, sorted, as paths relative to `data`.

    Only the last part of a pattern has wildcards.
    """
    folder, _, last = pattern.rpartition("/")
    place = joined(data, folder) if folder else data
    if not storage.exists(place):
        return []
    names = sorted(fnmatch.filter(storage.names(place), last))
    return [f"{folder}/{name}" if folder else name for name in names]


def without_missing(suite: OpenSuite, missing: list[Missing], skip: bool) -> tuple[OpenSuite, list[Missing]]:
    """Return the suite without the parts whose files are missing, and those parts.

    Without `skip` only parts that are optional may be missing. A task that starts from a missing one is left out, too.
    Raises DataError that names every missing file.
    """
    required = [part for part in missing if not part.optional]
    if required and not skip:
        raise DataError(_message(suite, required))

    absent = {part.name: part for part in missing}
    for task in suite.tasks:
        source = task.entry.starts_from
        if source in absent and task.entry.name not in absent:
            absent[task.entry.name] = Missing(task.entry.name, absent[source].files, absent[source].source)

    kept = [name for name in suite.entry.names if name not in absent]
    if not kept:
        raise DataError(_message(suite, missing))
    tasks = tuple(task for task in suite.tasks if task.entry.name in kept)
    return OpenSuite(suite.entry.only(kept), tasks), list(absent.values())


def _message(suite: OpenSuite, missing: list[Missing]) -> str:
    count = len({file for part in missing for file in part.files})
    lines = [f"{count} file{'s' if count > 1 else ''} of the suite {suite.entry.name} cannot be found in --data:"]
    for part in missing:
        source = f" (from {part.source})" if part.source else ""
        lines.append(f"  {part.name}: {', '.join(part.files)}{source}")
    lines.append("Put them there, or run the other tasks with --skip_missing or --only.")
    return "\n".join(lines)
