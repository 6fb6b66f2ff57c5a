"""Other programs on the cores of a run on a CPU: found, told with what helps, and never an error."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from trainer.distributed import busy_cores
from trainer.distributed.busy_cores import threads_beside, warn_of_busy_cores
from trainer.doctor import device


@pytest.fixture
def eight_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@pytest.mark.parametrize(
    ("busy", "usable", "ranks", "threads"),
    [(0.0, 8, 1, 8), (0.4, 8, 2, 4), (0.6, 8, 1, 7), (1.9, 2, 1, 1), (3.0, 16, 4, 3), (64.0, 64, 2, 1), (0.0, 2, 4, 1)],
)
def test_each_rank_gets_threads_for_its_idle_cores(busy: float, usable: int, ranks: int, threads: int) -> None:
    assert threads_beside(busy, usable, ranks) == threads


@pytest.mark.usefixtures("eight_threads")
def test_busy_cores_are_told_with_what_helps(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(busy_cores, "busy_cores", lambda: 7.26)
    warn_of_busy_cores(usable=8, ranks=1)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Other programs keep 7.3 of the 8 cores busy. This run computes with 8 threads, ")
    assert "`OMP_NUM_THREADS=1 clozeline train ...`" in line


@pytest.mark.usefixtures("eight_threads")
@pytest.mark.parametrize(("busy", "threads", "variable"), [(0.3, 8, None), (7.0, 1, None), (7.0, 8, "8")])
def test_nothing_is_told_without_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys, busy: float, threads: int, variable: str | None
) -> None:
    monkeypatch.setattr(busy_cores, "busy_cores", lambda: busy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    warn_of_busy_cores(usable=8, ranks=1)
    assert capsys.readouterr().out == ""


def test_only_cores_that_this_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = SimpleNamespace(cpu_percent=lambda interval, percpu: [100.0, 50.0, 25.0, 100.0])
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    monkeypatch.setattr(busy_cores.os, "sched_getaffinity", lambda process: {1, 2}, raising=False)
    assert busy_cores.busy_cores() == 0.75


def test_a_platform_without_figures_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert busy_cores.busy_cores() == 0.0


def test_the_doctor_warns_of_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "device_kind", lambda: "cpu")
    monkeypatch.setattr(device, "cgroup_cores", lambda path: None)
    monkeypatch.setattr("trainer.distributed.process_group.available_cores", lambda: 4)
    monkeypatch.setattr(busy_cores, "busy_cores", lambda: 2.6)
    finding = device.check_cores()
    assert finding.state == "warning" and finding.value.endswith("but other programs keep 2.6 busy")
    assert "OMP_NUM_THREADS=1" in finding.advice

    monkeypatch.setattr(busy_cores, "busy_cores", lambda: 0.1)
    assert device.check_cores().state == "ok"
