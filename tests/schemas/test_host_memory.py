"""How much memory is available: on the machine, or in the smallest of the groups that this process is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import host_memory
from schemas.host_memory import available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n"
MACHINE = 1024 * 5_000_000
UNLIMITED = 9223372036854771712  # in version 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path / "cgroup")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path


def add_group(machine: Path, path: str, limit: int | str, used: int, cache: int = 0) -> None:
    group = machine / "cgroup" / path
    group.mkdir(parents=True, exist_ok=True)
    names = ("limit_in_bytes", "usage_in_bytes", "total_") if path.startswith("memory") else ("max", "current", "")
    (group / f"memory.{names[0]}").write_text(f"{limit}\n")
    (group / f"memory.{names[1]}").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\n{names[2]}inactive_file {cache}\n")


@pytest.mark.parametrize("top", ["", "memory"])
@pytest.mark.parametrize(
    ("limit", "used", "cache", "expected"),
    [
        ("max", 70, 0, MACHINE),
        (UNLIMITED, 70, 0, MACHINE),
        (1_000_000, 700_000, 0, 300_000),
        (1_000_000, 700_000, 500_000, 800_000),  # the page cache can be dropped
        (1_000_000, 1_000_500, 0, 0),
    ],
)
def test_the_smaller_limit_counts_in_both_versions(
    machine: Path, top: str, limit: int | str, used: int, cache: int, expected: int
) -> None:
    add_group(machine, top, limit, used, cache)
    assert available_bytes() == expected


@pytest.mark.parametrize(("top", "line"), [("", "0::"), ("memory", "4:cpu,memory:")])
def test_nested_groups_all_limit(machine: Path, top: str, line: str) -> None:
    """As under Slurm and systemd: the job, the step and the task each have a limit, the top none."""
    (machine / "proc" / "self" / "cgroup").write_text(f"9:pids:/other\n{line}/slurm/job_1/step_0\n")
    add_group(machine, f"{top}/slurm/job_1/step_0".lstrip("/"), 9_000_000, 1_000_000)
    assert available_bytes() == 8_000_000
    add_group(machine, f"{top}/slurm/job_1".lstrip("/"), 5_000_000, 4_500_000, cache=200_000)
    assert available_bytes() == 700_000
    add_group(machine, f"{top}/slurm/job_2".lstrip("/"), 10, 10)  # of others
    assert available_bytes() == 700_000


def test_a_container_that_sees_its_own_group_as_the_top(machine: Path) -> None:
    (machine / "proc" / "self" / "cgroup").write_text("4:memory:/docker/abc\n")
    add_group(machine, "memory", 1_000_000, 400_000)
    assert available_bytes() == 600_000


def test_without_these_files_free_pages_count(machine: Path) -> None:
    (machine / "proc" / "meminfo").unlink()
    assert available_bytes() > 0
