"""The record of a folder of steps: which steps are finished, and what each was made with.

    DIR/steps.json      {"domain": {"made_with": {"encoder": HASH, "recipe": HASH, ...}, "finished": true}, ...}

What a step was made with includes the step before it, so a change shows in all steps that follow. A step whose folder
was removed is done again, and so the folders of all later steps must be removed as well.
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
"""Hashes of what a step's result depends on, by their names in messages."""


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
        """Raise UsageError if the folder of a step was made with something else, or with a step that was removed.

        steps: all steps by name, in their order.
        """
        names = list(steps)
        for position, name in enumerate(names):
            differences = self._differences(name, steps[name])
            if differences:
                raise UsageError(
                    f"{self._output / name} was made with another {' and another '.join(differences)}. Choose another "
                    f"--output, or remove {self._existing(names[position:])} to do it again."
                )

        # A step that is done again may have another result: a corpus, for example, is known by its path alone.
        for position, name in enumerate(names):
            later = self._existing(names[position + 1 :])
            if name not in self._entries and later:
                raise UsageError(
                    f"{self._output / name} is gone, but later steps were made with it. Choose another --output, or "
                    f"remove {later} to do these steps again."
                )

    def _differences(self, name: str, made_with: MadeWith) -> list[str]:
        """Return what a step would be made with now that differs from what its folder was made with."""
        if name not in self._entries:
            return []
        before = self._entries[name]["made_with"]
        return [what for what in {**before, **made_with} if before.get(what) != made_with.get(what)]

    def _existing(self, names: list[str]) -> str:
        """Return the folders of those steps that have one, for a message; an empty string if there are none."""
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
