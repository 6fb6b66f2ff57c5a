"""The record of a folder of steps: which steps are finished, and the inputs of each.

    DIR/steps.json      {"domain": {"made_with": {"encoder": HASH, "recipe": {...}, ...}, "finished": true}, ...}

The inputs of a step include the previous step, so a change affects the hashes of all later steps. A step whose folder
was removed is run again, so the folders of all later steps must be removed as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError
from trainer.finetune.inputs import flattened

RECORD_FILE = "steps.json"

MadeWith = dict[str, Any]
"""A step's inputs by their names in messages: the values of its tables, and hashes of encoders and texts."""


class StepRecord:
    """DIR/steps.json. A step whose folder was removed counts as not started."""

    def __init__(self, output: Path):
        """Read the record. Raises DataError if the file is damaged."""
        self._output = output
        self._entries: dict[str, Any] = {}
        for name, entry in _read(output / RECORD_FILE).items():
            if (output / name).is_dir():
                self._entries[name] = entry

    def check(self, steps: Mapping[str, MadeWith]) -> None:
        """Raise UsageError if a step's folder was made with other inputs, or with a step whose folder was removed.

        steps: the inputs of all steps by name, in the order of the steps.
        """
        names = list(steps)
        for position, name in enumerate(names):
            differences = self._differences(name, steps[name])
            if differences:
                raise UsageError(
                    f"{self._output / name} was made with another {' and another '.join(differences)}. Choose another "
                    f"--output, or remove {self._existing(names[position:])} to do it again."
                )

        # A step that is run again may give another result: the hash of a corpus, for example, covers only its paths.
        for position, name in enumerate(names):
            later = self._existing(names[position + 1 :])
            if name not in self._entries and later:
                raise UsageError(
                    f"{self._output / name} is gone, but later steps were made with it. Choose another --output, or "
                    f"remove {later} to do these steps again."
                )

    def _differences(self, name: str, made_with: MadeWith) -> list[str]:
        """Return which of a step's inputs differ from those its folder was made with, with the values that do."""
        if name not in self._entries:
            return []
        before = self._entries[name]["made_with"]
        differences = []
        for what in {**before, **made_with}:
            there: Any = before.get(what)
            here: Any = made_with.get(what)
            if there != here:
                has_values = isinstance(there, dict) and isinstance(here, dict)
                differences.append(f"{what} ({changes_of(there, here)})" if has_values else what)
        return differences

    def _existing(self, names: list[str]) -> str:
        """Return the existing folders of the given steps for a message; an empty string if there are none."""
        return " and ".join(str(self._output / name) for name in names if name in self._entries)

    def is_finished(self, name: str) -> bool:
        """Return whether a step is finished."""
        return name in self._entries and bool(self._entries[name]["finished"])

    def write(self, name: str, made_with: MadeWith, finished: bool) -> None:
        """Record that a step begins, or that it is finished."""
        (self._output / name).mkdir(parents=True, exist_ok=True)
        self._entries[name] = {"made_with": made_with, "finished": finished}
        storage.publish(str(self._output / RECORD_FILE), (json.dumps(self._entries, indent=1) + "\n").encode())


def hash_of(*values: Any) -> str:
    """Return a hash of values that JSON can represent, as 16 hex digits."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        for entry in entries.values():
            if not isinstance(entry["made_with"], dict) or not isinstance(entry["finished"], bool):
                raise ValueError("an entry is not what this file has")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}). Remove the folder of this output, or choose another.") from error
    return entries


def changes_of(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Return the keys of nested tables whose values differ."""
    before, now = flattened(there), flattened(here)
    return ", ".join(sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)))
