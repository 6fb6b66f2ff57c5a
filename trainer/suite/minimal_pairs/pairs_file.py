"""Reads minimal pairs in BLiMP's format: JSON lines with sentence_good and sentence_bad (arXiv:1912.00582)."""

from __future__ import annotations

import io
import json
import posixpath
from dataclasses import dataclass

from schemas import storage
from schemas.errors import DataError

GOOD = "sentence_good"
BAD = "sentence_bad"
NAMES = ("UID", "linguistics_term")
"""Keys for the paradigm and the phenomenon of a pair. A missing paradigm defaults to the file's name, and a missing
phenomenon to the paradigm."""


@dataclass(frozen=True)
class Pair:
    """An acceptable and an unacceptable sentence, their paradigm, and the phenomenon that the paradigm belongs to."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


def read_pairs(path: str) -> list[Pair]:
    """Return the pairs of a file, a path or a URL. Raises DataError that names the line and what is wrong with it."""
    name = posixpath.splitext(posixpath.basename(path))[0]
    pairs = []
    number = 0
    with storage.open_input(path) as file:
        try:
            for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig", errors="strict"), start=1):
                if line.strip():
                    pairs.append(_pair(line, name, f"{path}, line {number}"))
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8, after line {number}: {error}. Convert it to UTF-8.") from error

    if not pairs:
        raise DataError(f"{path} has no pairs. Expected lines with {GOOD} and {BAD}.")
    return pairs


def _pair(line: str, name: str, place: str) -> Pair:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: {line.strip()[:60]!r} is not JSON. Expected an object on each line.") from error
    if not isinstance(content, dict):
        raise DataError(f"{place}: {line.strip()[:60]!r} is not an object. Expected one with {GOOD} and {BAD}.")

    for key in (GOOD, BAD):
        if not isinstance(content.get(key), str) or not content[key].strip():
            raise DataError(f"{place}: {key} is {content.get(key)!r}. Expected a sentence.")

    paradigm = content.get("UID")
    phenomenon = content.get("linguistics_term")
    paradigm = paradigm if isinstance(paradigm, str) else name
    return Pair(content[GOOD], content[BAD], paradigm, phenomenon if isinstance(phenomenon, str) else paradigm)
