"""How much memory is available: on the machine, or in the container if that has less."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.models import host_memory
from trainer.models.host_memory import available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n"
MACHINE = 1024 * 5_000_000


@pytest.mark.parametrize(
    ("limit", "used", "cache", "expected"),
    [
        ("max", "70", "0", MACHINE),
        ("1000000", "700000", "0", 300_000),
        ("1000000", "700000", "500000", 800_000),  # the container's page cache can be dropped
        ("1000000", "1000500", "0", 0),
        ("99999999999999", "70", "0", MACHINE),
    ],
)
def test_the_smaller_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, cache: str, expected: int
) -> None:
    contents = {
        "meminfo": MEMINFO,
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 5\ninactive_file {cache}\n",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert available_bytes() == expected


def test_without_these_files_free_pages_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert available_bytes() > 0
