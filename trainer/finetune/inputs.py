"""Records what the results in a folder were made from, so that results of different inputs are never mixed.

The record is a JSON object: names of inputs, and their values or hashes. The error for another folder names those that
differ. Does not import torch, because the process of a suite stays small.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError
from trainer.checkpoint.run_lock import LOCK_FILES

INPUTS_FILE = "inputs.json"

MAX_NAMED = 3
"""The maximum number of differing inputs that a message names."""

MAX_SHOWN = 60
"""The maximum length of a value in a message."""


def record_inputs(folder: Path, inputs: dict[str, Any]) -> None:
    """Write the inputs of a folder's results. What is recorded under other names at the top level stays."""
    content = (read_inputs_of(folder) or {}) | inputs
    storage.publish(str(folder / INPUTS_FILE), (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def check_inputs(folder: Path, inputs: dict[str, Any], remedy: str) -> None:
    """Raise UsageError if a folder holds results of other inputs, or files of something else.

    inputs: by name; values that are tables are compared key by key. A name at the top level that only one side has is
    no difference, so that inputs can be added. remedy: what to do, as a sentence.
    """
    names = sorted(name for name in storage.names(str(folder)) if not name.startswith(".") and name not in LOCK_FILES)
    if not names:
        return
    if INPUTS_FILE not in names:
        raise UsageError(
            f"--output {folder} holds files that belong to something else, such as {names[0]}: it has no "
            f"{INPUTS_FILE}. Choose another folder."
        )

    recorded = read_inputs_of(folder)
    if recorded is None:
        raise UsageError(f"{folder / INPUTS_FILE} is damaged, so it is not known what its results belong to. {remedy}")

    inputs = json.loads(json.dumps(inputs))  # as they are read back
    shared = [name for name in inputs if name in recorded]
    there = flattened({name: recorded[name] for name in shared})
    here = flattened({name: inputs[name] for name in shared})
    changes = [
        f"{key} = {_shown(there, key)} instead of {_shown(here, key)}"
        for key in (*here, *(key for key in there if key not in here))
        if there.get(key) != here.get(key)
    ]
    if changes:
        more = len(changes) - MAX_NAMED
        raise UsageError(
            f"--output {folder} holds results with {', '.join(changes[:MAX_NAMED])}"
            f"{f' and {more} more differences' if more > 0 else ''}. {remedy}"
        )


def read_inputs_of(folder: Path) -> dict[str, Any] | None:
    """Return the recorded inputs of a folder, None if it has no readable record."""
    try:
        content = json.loads((folder / INPUTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def flattened(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted keys."""
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            values |= flattened(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def _shown(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "(unset)"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
