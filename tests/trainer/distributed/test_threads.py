"""Other programs on the cores of a run on a CPU: it leaves these to them, says so, and resumes with the same bits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from schemas import host_limits
from tests.trainer.one_rank import group_of_one
from trainer.distributed import threads as module
from trainer.distributed.threads import (
    Threads,
    cores_of_rank,
    kept_threads,
    spare_busy_cores,
    take_free_cores,
    take_share_of_cores,
)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eight threads, which the trainer may change; afterwards as many as before."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(8)
    with group_of_one():
        torch.set_num_threads(8)
        yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("busy", "ranks", "variable", "used"),
    [
        (7.26, 1, None, 1),
        (7.26, 1, "", 1),
        (7.26, 1, "all", 1),
        (64.0, 2, None, 1),
        (2.6, 1, None, 5),
        (2.6, 2, None, 2),
        (0.4, 1, None, 8),
        (7.26, 1, "8", 8),
    ],
)
def test_a_run_takes_the_cores_that_are_free(
    monkeypatch: pytest.MonkeyPatch, capsys, busy: float, ranks: int, variable: str | None, used: int
) -> None:
    monkeypatch.setattr(module, "busy_cores", lambda: busy)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    take_free_cores(cores=8, ranks=ranks)

    assert torch.get_num_threads() == used
    told = capsys.readouterr().out
    if busy == 7.26 and used == 1:
        assert told == (
            "Other programs keep 7.3 of the 8 cores busy, so this run computes with 1 thread instead of 8. "
            "OMP_NUM_THREADS=N sets another number.\n"
        )
    assert (told == "") == (used == 8)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("recorded", "cores", "used", "told"),
    [
        (0, 0, 8, ""),  # a new run
        (8, 8, 8, ""),
        (3, 8, 3, "keeps the 3 threads that it began with, so that losses stay the same to the last bit"),
        (12, 8, 8, "began with 12 threads. With 8, losses differ in rounding"),
        (3, 16, 8, ""),  # on another machine
    ],
)
def test_a_resume_takes_no_more_threads_than_the_run_began_with(
    capsys, recorded: int, cores: int, used: int, told: str
) -> None:
    resumed = kept_threads(Threads(recorded, cores), share=8)
    assert torch.get_num_threads() == used
    printed = capsys.readouterr().out
    assert told in printed and bool(printed) == bool(told)
    assert resumed == (recorded if told else 8, 8)


def test_only_cores_that_this_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = SimpleNamespace(cpu_percent=lambda interval, percpu: [100.0, 50.0, 25.0, 100.0])
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {1, 2}, raising=False)
    assert module.busy_cores() == 0.75


def test_a_platform_without_figures_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert module.busy_cores() == 0.0


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the quota of a container on an idle machine of 64 cores: it gets the time of 9.5 of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    monkeypatch.setattr(host_limits, "CGROUP", tmp_path)
    monkeypatch.setattr(host_limits, "PROC", tmp_path / "proc")
    monkeypatch.setattr(module, "busy_cores", lambda: 0.0)
    quota = tmp_path / "cpu.max"
    quota.write_text("950000 100000\n")
    return quota


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("quota", "ranks", "used"), [("150000", 1, 1), ("950000", 1, 9), ("950000", 4, 2), ("max", 2, 32)]
)
def test_a_container_gets_threads_for_the_time_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys, container: Path, quota: str, ranks: int, used: int
) -> None:
    container.write_text(f"{quota} 100000\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    begin()

    assert torch.get_num_threads() == cores_of_rank() == used
    told = capsys.readouterr().out
    if quota == "150000":
        assert told == (
            "This container or service gets the time of 1.5 of 64 cores, so the run computes with 1 thread a rank. "
            "OMP_NUM_THREADS=N sets another number.\n"
        )
    assert bool(told) == (quota != "max")


def begin() -> None:
    """What a start of training does about threads."""
    take_share_of_cores()
    spare_busy_cores()


@pytest.mark.usefixtures("threads", "container")
@pytest.mark.parametrize(("busy", "used"), [(50.0, 9), (59.8, 4)])
def test_other_programs_matter_only_if_they_leave_less_than_the_quota(
    monkeypatch: pytest.MonkeyPatch, busy: float, used: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(module, "busy_cores", lambda: busy)
    begin()
    assert torch.get_num_threads() == used


@pytest.mark.usefixtures("threads", "container")
def test_threads_that_torchrun_has_set_stay_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    torch.set_num_threads(1)
    begin()
    assert torch.get_num_threads() == 1
    assert capsys.readouterr().out == (
        "OMP_NUM_THREADS is 1, as torchrun sets it for several ranks, so each rank computes with 1 of its 4 cores. To "
        "use all of them: OMP_NUM_THREADS=4 torchrun ...\n"
    )


@pytest.mark.usefixtures("threads")
def test_a_smaller_machine_that_is_idle_limits_no_other(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(module, "busy_cores", lambda: 0.0)
    take_free_cores(cores=2, ranks=1)
    assert torch.get_num_threads() == 8
    assert capsys.readouterr().out == ""
