"""How many bytes processes of this machine can still allocate: of its memory, and within each control group's limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux reports the memory of the machine, and that of control groups (containers, Slurm steps, services)."""

ASSUMED_BYTES = 4 << 30  # if the system does not say


@dataclass(frozen=True)
class _Version:
    """Names of a version of control groups: its memory controller in /proc/self/cgroup, its folder, its files."""

    controller: str
    folder: str
    limit: str
    usage: str
    inactive_file: str


_VERSIONS = (
    _Version("", "", "memory.max", "memory.current", "inactive_file"),
    _Version("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes() -> int:
    """Return the bytes that can still be allocated without swapping.

    Page cache that the system frees when memory is needed counts as available. Each control group above this process
    limits it, and they may be nested.
    """
    return max(0, min([_available_on_machine(), *_available_in_groups()]))


def _available_on_machine() -> int:
    kilobytes = _numbers_in(PROC / "meminfo").get("MemAvailable:")
    if kilobytes is not None:
        return 1024 * kilobytes
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError):
        return ASSUMED_BYTES


def _available_in_groups() -> Iterator[int]:
    """Yield what is left within the limit of each group that this process is in, its own and those above it."""
    paths = _paths_of_groups()
    for version in _VERSIONS:
        top = CGROUP / version.folder
        own = top / paths.get(version.controller, "").lstrip("/")
        # A container may see its own group as the top of the tree, and a path that exists only outside of it.
        for group in {own, *own.parents, top}:
            if group == top or top in group.parents:
                yield from _available_in(group, version)


def _paths_of_groups() -> dict[str, str]:
    """Return the path of this process's group for each controller; version 2 has one path and an empty name."""
    paths = {}
    for line in _text_of(PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _available_in(group: Path, version: _Version) -> Iterator[int]:
    limit = _text_of(group / version.limit)
    used = _text_of(group / version.usage)
    if limit.isdecimal() and used.isdecimal():  # not "max"
        yield int(limit) - int(used) + _numbers_in(group / "memory.stat").get(version.inactive_file, 0)


def _text_of(path: Path) -> str:
    """Return a small file's text, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a whole number."""
    lines = [line.split() for line in _text_of(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
