"""How much memory is left on this machine, and within the control groups (cgroups) of Linux that limit this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

# The limit, what is used of it, and the entry of memory.stat for unused pages of the page cache, in both versions of
# control groups.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes() -> int:
    """Return the bytes that processes of this machine, or of this container, can still allocate without swapping.

    The page cache does not count as used, because the system frees it when memory is needed.
    """
    free_pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    on_machine = 1024 * _numbers_in(MEMINFO).get("MemAvailable:", 0) or free_pages
    return max(0, min([on_machine, *_left_in_groups()]))


def _left_in_groups() -> Iterator[int]:
    """Yield what each group with a limit leaves free: this process's own, and those around it (Slurm's, systemd's)."""
    for line in _text_of(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = GROUPS, _VERSION_2
        elif "memory" in controllers.split(","):
            top, names = GROUPS / "memory", _VERSION_1
        else:
            continue

        # In a container the path may be one of the host, and only the top is there.
        own = Path(os.path.normpath(f"/{path}"))
        for group in (own, *own.parents):
            yield from _left_in(top / str(group).lstrip("/"), names)


def _left_in(group: Path, names: tuple[str, str, str]) -> Iterator[int]:
    limit, used = (_text_of(group / name) for name in names[:2])
    if limit.isdecimal() and used.isdecimal():
        yield int(limit) - int(used) + _numbers_in(group / "memory.stat").get(names[2], 0)


def _text_of(path: Path) -> str:
    """Return a small file's text, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers_in(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a whole number."""
    lines = [line.split() for line in _text_of(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
