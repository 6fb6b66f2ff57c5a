"""The identity of a fine-tuning: what its results depend on, and which fine-tuning an output folder belongs to."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError
from trainer.checkpoint.run_lock import LOCK_FILES
from trainer.distributed.threads import Threads
from trainer.finetune.examples import TaskData
from trainer.finetune.files.sets import named_files, set_names
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.task import Task
from trainer.finetune.task_file import dump_task

IDENTITY_FILE = "identity.json"
TASK_FILE = "task.toml"

NAMES = {
    "task": "the task file",
    "encoder": "the encoder's folder",
    "weights": "--random_weights or --new_head",
    "data": "the data of the task",
}
"""The input behind each value of `identity_of`, as messages name it.

The hashes of parts of the data are left out: "data" differs if one of them does, and is compared before them.
"""

WHAT_DIFFERS = {
    "task": "another task",
    "encoder": "another encoder",
    "weights": "other first weights",
}

FILES_OF_A_START = LOCK_FILES | {IDENTITY_FILE, TASK_FILE}
"""What a fine-tuning writes before it trains."""

UNIMPORTANT_KEY = "training.save_every"
"""The key of a task that changes no result."""

MAX_NAMED = 3
"""The maximum number of changed keys, and of changed files, that a message lists."""

LABELS = "labels"
"""The key of the labels in `identity_of`: a JSON list of their names, so that a message can tell which ones differ."""


def identity_of(task: Task, folder: str, data: TaskData, weights: str) -> dict[str, str]:
    """Return what results depend on, except the seed: hashes of the inputs, labels, and where the weights come from.

    weights: "of the encoder", "new head" or "random".
    """
    return {
        "task": _shortened(hashlib.sha256(dump_task(without_save_every(task)).encode())),
        "encoder": fingerprint_of(folder),
        "weights": weights,
        **hashes_of_data(data),
    }


def without_save_every(task: Task) -> Task:
    """Return a task with the default of training.save_every, which changes no result."""
    default = type(task.training).model_fields["save_every"].default
    return task.model_copy(update={"training": task.training.model_copy(update={"save_every": default})})


def _shortened(digest: Any) -> str:
    """Return the first 16 hex digits of a hash of hashlib."""
    return digest.hexdigest()[:16]


def hashes_of_data(data: TaskData) -> dict[str, str]:
    """Return a hash of all labels and examples, "data"; the labels; and a hash of each set, such as "data.train".

    Hashes one example at a time: building one string of a whole data set would double its memory.
    """
    sets = {"train": data.train, "dev": data.dev, "test": data.test or []} | dict(sorted(data.extra.items()))

    whole = hashlib.sha256(f"{data.labels!r}\n".encode())
    parts = {LABELS: json.dumps(data.labels, ensure_ascii=False)}
    for name, examples in sets.items():
        of_set = hashlib.sha256()
        whole.update(f"{name}: {len(examples)}\n".encode())
        for example in examples:
            line = f"{example!r}\n".encode()
            whole.update(line)
            of_set.update(line)
        parts[f"data.{name}"] = _shortened(of_set)

    return {"data": _shortened(whole)} | parts


def check_owner(output: Path, identity: dict[str, str], task: Task) -> None:
    """Raise UsageError if a folder is not empty and does not belong to this fine-tuning.

    A fine-tuning that failed before it trained anything, for example because of damaged weights, owns nothing.
    """
    names = {name for name in storage.names(str(output)) if not name.startswith(".")}
    if names <= LOCK_FILES:
        return

    found = _read_identity(output)
    if names <= FILES_OF_A_START:
        return

    keys = _changed_keys(output, task)
    differs = []
    for name, what in WHAT_DIFFERS.items():
        if found.get(name) != identity[name]:
            differs.append(keys if name == "task" and keys else what)

    # A change of [data], such as of its labels, also changes what is read from files that are the same.
    if found.get("data") != identity["data"] and "data." not in keys:
        differs.append(_changed_data(found, identity, task))
    if differs:
        raise UsageError(
            f"--output {output} holds a fine-tuning with {' and '.join(differs)}. Undo the change to continue it, "
            "choose another --output, or remove that folder."
        )


def threads_of(output: Path) -> Threads:
    """Return the threads that the fine-tuning in a folder began with; none in a new folder.

    They decide the last bits of results, so a fine-tuning that continues keeps them. A folder that belongs to something
    else is refused by `check_owner`.
    """
    try:
        found = json.loads((output / IDENTITY_FILE).read_text(encoding="utf-8"))
        return Threads(int(found["threads"]), int(found["cores"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Threads(0, 0)


def recorded(threads: Threads) -> dict[str, str]:
    """Return the entries of identity.json that `threads_of` reads."""
    return {"threads": str(threads.number), "cores": str(threads.cores)}


def _read_identity(output: Path) -> dict[str, str]:
    """Return the identity of the fine-tuning that a folder belongs to. Raises UsageError if it has none."""
    path = output / IDENTITY_FILE
    if not path.is_file():
        raise UsageError(f"--output {output} holds files that do not belong to a fine-tuning. Choose another folder.")

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        is_complete = all(isinstance(found[name], str) for name in NAMES)
        is_complete &= isinstance(json.loads(found.get(LABELS, "[]")), list)
    except (OSError, ValueError, TypeError, KeyError):
        is_complete = False

    if not is_complete:
        raise UsageError(
            f"{path} is damaged, so it is not known which fine-tuning {output} belongs to. Choose another --output, "
            "or remove that folder."
        )
    return found


def _changed_data(found: Mapping[str, str], identity: Mapping[str, str], task: Task) -> str:
    """Return how the data behind two identities of one task differ, such as "other examples in dev.jsonl"."""
    if LABELS not in found:
        # An earlier version wrote no hashes of the parts.
        return "other data"
    if found[LABELS] != identity[LABELS]:
        # Examples hold positions of labels, so those of files that are the same may differ, too.
        return _changed_labels(json.loads(found[LABELS]), json.loads(identity[LABELS]))

    files: list[str] = []
    for name in set_names(task.data):
        if found.get(f"data.{name}") != identity[f"data.{name}"]:
            files += named_files(task.data, name)

    # Two sets may share a file.
    files = list(dict.fromkeys(files))
    return f"other examples in {_listed(files, 'files')}" if files else "other data"


def _changed_labels(there: list[str], here: list[str]) -> str:
    """Return how the labels of a folder's fine-tuning differ from those of this one."""
    more = [json.dumps(label, ensure_ascii=False) for label in there if label not in here]
    fewer = [json.dumps(label, ensure_ascii=False) for label in here if label not in there]
    if not more and not fewer:
        return "labels in another order"

    parts = []
    if more:
        parts.append(f"with {_listed(more, 'labels')}")
    if fewer:
        parts.append(f"without {_listed(fewer, 'labels')}")
    return f"other labels ({', '.join(parts)})"


def _changed_keys(output: Path, task: Task) -> str:
    """Return how the task in an output folder differs from this one, "" if the folder's task cannot be read."""
    try:
        earlier = tomllib.loads((output / TASK_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return changes_of(earlier, tomllib.loads(dump_task(task)))


def changes_of(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    """Return how the values of nested tables differ, such as "training.epochs = 6 instead of 5"."""
    there = _flattened(earlier)
    here = _flattened(now)
    changes = []
    for key in sorted((there.keys() | here.keys()) - {UNIMPORTANT_KEY}):
        if _shown(there, key) != _shown(here, key):
            changes.append(f"{key} = {_shown(there, key)} instead of {_shown(here, key)}")

    return _listed(changes, "changes")


def _listed(items: list[str], noun: str) -> str:
    """Return the first MAX_NAMED items with commas, and how many more there are. noun: what they are, in the plural."""
    more = len(items) - MAX_NAMED
    return ", ".join(items[:MAX_NAMED]) + (f" and {more} more {noun}" if more > 0 else "")


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "(unset)"


def _flattened(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            values |= _flattened(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values
