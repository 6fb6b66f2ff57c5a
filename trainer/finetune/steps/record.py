"""What a folder of steps holds: which steps are done, and what each was made with.

    DIR/steps.json      {"domain": {"made_with": {"encoder": HASH, "recipe": HASH, ...}, "finished": true}, ...}

What a step was made with includes the step before it, so a change shows in all steps that follow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import DataError, UsageError

RECORD_FILE = "steps.json"

MadeWith = dict[str, str]
"""Hashes of what decides a step's result, by what to call it in a message."""


class StepRecord:
    """DIR/steps.json. A step whose folder was removed counts as not begun."""

    def __init__(self, output: Path):
        """Read the record. Raises DataError if the file is damaged."""
        self._output = output
        self._entries = _read(output / RECORD_FILE)

    def check(self, steps: Mapping[str, MadeWith]) -> None:
        """Raise UsageError if a step's folder was made with something else, or from a folder that was removed.

        steps: all steps by name, in their order.
        """
        for name, made_with in steps.items():
            entry = self._entry(name)
            if entry is None:
                self._check_removed(name, list(steps))
                continue

            before = entry["made_with"]
            differs = [what for what in {**before, **made_with} if before.get(what) != made_with.get(what)]
            if differs:
                folders = [str(self._output / name), *self._later_folders(name, list(steps))]
                raise UsageError(
                    f"{self._output / name} was made with another {' and another '.join(differs)}. Choose another "
                    f"--output, or remove {' and '.join(folders)} to do it again."
                )

    def _check_removed(self, name: str, names: list[str]) -> None:
        """Raise UsageError if a step's folder was removed, but not those of later steps, which were made from it."""
        later = self._later_folders(name, names)
        if name in self._entries and later:
            raise UsageError(
                f"{self._output / name} was removed, and what was made from it was not. Remove {' and '.join(later)} "
                "as well to do these steps again, or choose another --output."
            )

    def _later_folders(self, name: str, names: list[str]) -> list[str]:
        """Return the folders of the steps after a step, as far as there are any. names: of all steps, in order."""
        later = names[names.index(name) + 1 :]
        return [str(self._output / step) for step in later if self._entry(step)]

    def is_finished(self, name: str) -> bool:
        """Return whether a step is done."""
        entry = self._entry(name)
        return entry is not None and bool(entry["finished"])

    def write(self, name: str, made_with: MadeWith, finished: bool) -> None:
        """Note that a step begins, or that it is done."""
        (self._output / name).mkdir(parents=True, exist_ok=True)
        self._entries[name] = {"made_with": made_with, "finished": finished}
        storage.publish(str(self._output / RECORD_FILE), (json.dumps(self._entries, indent=1) + "\n").encode())

    def _entry(self, name: str) -> Any:
        return self._entries.get(name) if (self._output / name).is_dir() else None


def hash_of(*values: Any) -> str:
    """Return a short hash of values that JSON can hold."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text())
        for entry in entries.values():
            if not isinstance(entry["made_with"], dict) or not isinstance(entry["finished"], bool):
                raise ValueError("an entry is not what this file has")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} is damaged ({error}). Remove the folder of this output, or choose another.") from error
    return entries
