"""What the new tokens of an extended vocabulary stand for: a file next to its tokenizer.json.

`vocab --extend` writes it, it travels with the pairs, and a model that begins with the smaller vocabulary's weights
makes its new rows of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from schemas.errors import DataError

EXTENSION_FILE = "extension.json"
"""The file of an extended vocabulary that says what its new tokens stand for."""


@dataclass(frozen=True)
class Extension:
    """How a vocabulary was made from a smaller one: its ids from `base_size` on are new.

    base_fingerprint: of the smaller one. rows: the old ids whose embeddings a new one begins as the mean of.
    """

    base_size: int
    base_fingerprint: str
    rows: dict[int, tuple[int, ...]]

    def to_json(self) -> bytes:
        """Return the bytes of EXTENSION_FILE."""
        content = {
            "base_size": self.base_size,
            "base_fingerprint": self.base_fingerprint,
            "rows": {str(new): list(old) for new, old in self.rows.items()},
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, size: int, url: str) -> Extension:
        """Read EXTENSION_FILE of a vocabulary of `size` tokens. Raises DataError naming `url` when it is not that."""
        try:
            content = json.loads(data)
            rows = {int(new): tuple(map(int, old)) for new, old in content["rows"].items()}
            extension = cls(int(content["base_size"]), str(content["base_fingerprint"]), rows)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{url} is not the JSON of an extension ({error!r}). Copy the vocabulary again.") from error

        are_new = sorted(rows) == list(range(extension.base_size, size))
        are_old = all(old and min(old) >= 0 and max(old) < extension.base_size for old in rows.values())
        if not are_new or not are_old:
            raise DataError(
                f"{url} must give old ids below {extension.base_size} for each id from there to {size - 1}, the last "
                "of the vocabulary next to it. Copy the vocabulary again."
            )
        return extension
