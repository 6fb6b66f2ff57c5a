"""How much memory is available: on the machine, or in the control groups around this process if they have less."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import host_memory
from schemas.host_memory import available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n"
MACHINE = 1024 * 5_000_000
VERSION_2 = ("", "", ("memory.max", "memory.current", "inactive_file"))
VERSION_1 = ("cpu,memory", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /proc and /sys/fs/cgroup."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, path in (("MEMINFO", "meminfo"), ("OWN_GROUPS", "cgroup"), ("GROUPS", "groups")):
        monkeypatch.setattr(host_memory, name, tmp_path / path)
    return tmp_path


def limit(group: Path, names: tuple[str, str, str], limit: str, used: str, cache: str) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / names[0]).write_text(f"{limit}\n")
    (group / names[1]).write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\n")


@pytest.mark.parametrize("version", [VERSION_2, VERSION_1], ids=["cgroup-v2", "cgroup-v1"])
@pytest.mark.parametrize(
    ("path", "place"),
    [("/", "."), ("/slurm/job_7", "slurm/job_7"), ("/slurm/job_7/step_0", "slurm"), ("/docker/of_the_host", ".")],
    ids=["a-container", "a-job", "above-a-step", "a-path-of-the-host"],
)
@pytest.mark.parametrize(
    ("most", "used", "cache", "expected"),
    [
        ("max", "70", "0", MACHINE),
        ("1000000", "700000", "0", 300_000),
        ("1000000", "700000", "500000", 800_000),  # the page cache can be dropped
        ("1000000", "1000500", "0", 0),
        ("99999999999999", "70", "0", MACHINE),
    ],
)
def test_the_smallest_limit_counts(
    system: Path, version: tuple, path: str, place: str, most: str, used: str, cache: str, expected: int
) -> None:
    controllers, top, names = version
    (system / "cgroup").write_text(f"9:name=systemd:/\n4:{controllers}:{path}\n")
    limit(system / "groups" / top / place, names, most, used, cache)
    assert available_bytes() == expected


def test_without_these_files_free_pages_count(system: Path) -> None:
    (system / "meminfo").unlink()
    assert available_bytes() > 0
