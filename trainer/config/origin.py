"""Says where a value of a file comes from: the file itself, or a `--set` flag that changed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Origin:
    """The sources of a file's values, for messages about wrong ones.

    path: the file. changes: each as section.key=value, in the order in which they were applied. flag: the flag or the
    key that has the changes. content: the file's content with the changes, without defaults.
    """

    path: str
    changes: Sequence[str] = ()
    flag: str = "--set"
    content: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *keys: str) -> str:
        """Return what messages about keys begin with: the last change of the first key that has one, or the file.

        keys: the most likely culprit first. A change of a key is also one of a key inside it, or of the table that
        holds it. Example: with the change "training.epochs=x", `of("training.epochs")` -> "--set training.epochs=x".
        """
        for key in keys:
            for change in reversed(self.changes):
                if _overlap(change.partition("=")[0].strip(), key):
                    return f"{self.flag} {change}"
        return self.path

    def has(self, key: str) -> bool:
        """Return whether the file or a change sets a key, so that its value is no default."""
        table: Any = self.content
        for part in key.split("."):
            if not isinstance(table, Mapping) or part not in table:
                return False
            table = table[part]
        return True


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
