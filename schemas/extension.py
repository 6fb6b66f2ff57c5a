"""Describes how each new token of an extended vocabulary is built from old ones, in a file next to tokenizer.json.

`vocab --extend` writes the file, and it travels with the pairs. A model that starts from the smaller vocabulary's
weights uses it to initialize the embeddings of the new tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import DataError

EXTENSION_FILE = "extension.json"
"""Name of the file in an extended vocabulary's folder."""


@dataclass(frozen=True)
class Extension:
    """How a vocabulary extends a smaller one. Ids from `base_size` up are new.

    base_fingerprint: the smaller vocabulary's fingerprint.
    rows: for each new id, the old ids whose mean embedding initializes it.
    """

    base_size: int
    base_fingerprint: str
    rows: dict[int, tuple[int, ...]]

    def to_json(self, tokens: Sequence[str]) -> bytes:
        """Return the bytes of EXTENSION_FILE for the extended vocabulary, whose tokens it names by their hash."""
        content = {
            "base_size": self.base_size,
            "base_fingerprint": self.base_fingerprint,
            "tokens_fingerprint": _fingerprint_of(tokens),
            "rows": {str(new): list(old) for new, old in self.rows.items()},
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, tokens: Sequence[str], url: str) -> Extension:
        """Parse EXTENSION_FILE of a vocabulary with these tokens.

        Raises DataError naming `url` if it is invalid or belongs to a vocabulary with other tokens.
        """
        try:
            content = json.loads(data)
            rows = {int(new): tuple(map(int, old)) for new, old in content["rows"].items()}
            extension = cls(int(content["base_size"]), str(content["base_fingerprint"]), rows)
            fingerprint = content["tokens_fingerprint"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{url} is not the JSON of an extension ({error!r}). Copy the vocabulary again.") from error

        if fingerprint != _fingerprint_of(tokens):
            raise DataError(
                f"{url} belongs to another vocabulary than the tokenizer.json next to it, so it would start new tokens "
                "from wrong ones. Copy the vocabulary again, or remove this file if the vocabulary extends no other."
            )

        are_new = sorted(rows) == list(range(extension.base_size, len(tokens)))
        are_old = all(old and min(old) >= 0 and max(old) < extension.base_size for old in rows.values())
        if not are_new or not are_old:
            raise DataError(
                f"{url} must give old ids below {extension.base_size} for each id from there to {len(tokens) - 1}, the "
                "last of the vocabulary next to it. Copy the vocabulary again."
            )
        return extension


def _fingerprint_of(tokens: Sequence[str]) -> str:
    """Return a hash of the tokens in the order of their ids. An export changes other rules of a vocabulary."""
    return hashlib.blake2b(json.dumps(list(tokens)).encode(), digest_size=16).hexdigest()
