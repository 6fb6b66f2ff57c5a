"""Suggests a file that exists for a path that does not."""

from __future__ import annotations

import difflib
from pathlib import Path

from schemas import storage

SUFFIX = ".toml"


def nearest_toml(path: str) -> str:
    """Return a hint with the TOML file in the same folder whose name is closest to a path's, or an empty string.

    The path may lack ".toml". Example: `nearest_toml("suites/polarty")` -> `" Did you mean suites/polarity.toml?"`.
    """
    if not storage.is_local(path):
        return ""

    missing = Path(path)
    # Only the names are compared. With the folder, which is the same, any two paths would be alike.
    beside = {file.stem: file for file in sorted(missing.parent.glob(f"*{SUFFIX}"))}
    close = difflib.get_close_matches(missing.name.removesuffix(SUFFIX), list(beside), n=1, cutoff=0.6)
    return f" Did you mean {beside[close[0]]}?" if close else ""
