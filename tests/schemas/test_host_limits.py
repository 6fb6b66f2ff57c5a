"""How much memory and how many cores can be used: of the machine, or in the smallest of the groups of this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import host_limits
from schemas.host_limits import available_bytes, core_quota, usable_cores

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n"
MACHINE = 1024 * 5_000_000
UNLIMITED = 9223372036854771712  # in version 1


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(host_limits, "CGROUP", tmp_path / "cgroup")
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
def test_page_cache_is_available_however_often_it_was_read(machine: Path, top: str) -> None:
    """A container of 8 GB with 6 GB of cache, of which the kernel calls active what was read twice."""
    (machine / "proc" / "meminfo").write_text("MemAvailable: 90000000 kB\n")
    add_group(machine, top, 8_000_000_000, 7_900_000_000)
    total = "total_" if top else ""
    stat = f"{total}inactive_file 2000000000\n{total}active_file 4000000000\n{total}shmem 500000000\n"
    (machine / "cgroup" / top / "memory.stat").write_text(f"active_file 9\ninactive_file 9\n{stat}" if top else stat)
    assert available_bytes() == 6_100_000_000


def test_a_group_is_throttled_above_its_high_mark(machine: Path) -> None:
    """systemd's MemoryHigh, and Slurm's soft limit: processes above it hardly run."""
    add_group(machine, "", "max", 700_000)
    (machine / "cgroup" / "memory.high").write_text("1000000\n")
    assert available_bytes() == 300_000


def add_quota(machine: Path, path: str, time: int | str, period: int | str) -> None:
    group = machine / "cgroup" / path
    group.mkdir(parents=True, exist_ok=True)
    if path.startswith("cpu"):
        (group / "cpu.cfs_quota_us").write_text(f"{time}\n")
        (group / "cpu.cfs_period_us").write_text(f"{period}\n")
    else:
        (group / "cpu.max").write_text(f"{time} {period}\n")


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


@pytest.mark.parametrize(
    ("time", "period", "quota", "cores"),
    [
        (150_000, 100_000, 1.5, 1),  # of 64 cores
        (50_000, 100_000, 0.5, 1),
        (1_000_000, 250_000, 4.0, 4),
        (9_000_000, 100_000, 90.0, 64),
        ("max", 100_000, None, 64),
        (-1, 100_000, None, 64),
        ("", "", None, 64),
    ],
)
@pytest.mark.parametrize("top", ["", "cpu"])
def test_the_time_of_a_group_limits_its_cores(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    top: str,
    time: int | str,
    period: int | str,
    quota: float | None,
    cores: int,
) -> None:
    monkeypatch.setattr(host_limits, "allowed_cores", lambda: 64)
    add_quota(machine, top, time, period)
    assert (core_quota(), usable_cores()) == (quota, cores)


@pytest.mark.parametrize(("top", "line"), [("", "0::"), ("cpu", "4:cpuacct,cpu:")])
def test_the_smallest_quota_of_nested_groups_counts(machine: Path, top: str, line: str) -> None:
    assert core_quota() is None
    (machine / "proc" / "self" / "cgroup").write_text(f"{line}/kubepods/pod7/container\n")
    add_quota(machine, f"{top}/kubepods/pod7".lstrip("/"), 250_000, 100_000)
    add_quota(machine, f"{top}/kubepods/pod7/container".lstrip("/"), 800_000, 100_000)
    add_quota(machine, f"{top}/kubepods/pod8".lstrip("/"), 100, 100_000)  # of others
    assert core_quota() == 2.5
