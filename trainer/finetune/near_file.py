"""Suggests a file that exists for a path that does not."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Collection

from schemas import storage

TOML = ".toml"


def nearest_file(path: str, ending: str = "", named: Collection[str] = ()) -> str:
    """Return a hint with the file in the same folder whose name is closest to a path's, or an empty string.

    ending: of the files that count, such as ".toml". The path may lack it. named: paths that are not to be suggested,
    because they already have another use.
    Example: `nearest_file("tasks/polarty", ".toml")` -> `" Did you mean tasks/polarity.toml?"`.
    """
    # Only the names are compared. With the folder, which is the same, any two paths would be alike.
    folder, name = posixpath.split(path)
    files = [found for found in storage.sizes(folder or ".") if posixpath.join(folder, found) not in named]
    known = [found for found in files if found.endswith(ending) and not found.startswith(".")]

    stems = [found.removesuffix(ending) for found in known]
    close = difflib.get_close_matches(name.removesuffix(ending), stems, n=1, cutoff=0.6)
    return f" Did you mean {posixpath.join(folder, close[0] + ending)}?" if close else ""
