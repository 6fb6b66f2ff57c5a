"""Other programs on the cores of a run on a CPU: it leaves these to them, says so, and resumes with the same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.one_rank import group_of_one
from trainer.checkpoint.state import TrainingState
from trainer.distributed import busy_cores
from trainer.distributed.busy_cores import take_free_cores, threads_beside, warn_of_busy_cores, with_threads
from trainer.doctor import device


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


@pytest.mark.parametrize(
    ("busy", "usable", "ranks", "threads"),
    [(0.0, 8, 1, 8), (0.4, 8, 2, 4), (0.6, 8, 1, 7), (1.9, 2, 1, 1), (3.0, 16, 4, 3), (64.0, 64, 2, 1), (0.0, 2, 4, 1)],
)
def test_each_rank_gets_threads_for_its_idle_cores(busy: float, usable: int, ranks: int, threads: int) -> None:
    assert threads_beside(busy, usable, ranks) == threads


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("busy", "variable", "used"), [(7.26, None, 1), (2.6, None, 5), (0.3, None, 8), (7.26, "8", 8)]
)
def test_a_run_takes_the_cores_that_are_free(
    monkeypatch: pytest.MonkeyPatch, capsys, busy: float, variable: str | None, used: int
) -> None:
    monkeypatch.setattr(busy_cores, "busy_cores", lambda: busy)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    take_free_cores(usable=8, ranks=1)

    assert torch.get_num_threads() == used
    told = capsys.readouterr().out
    if used == 1:
        assert told == (
            "Other programs keep 7.3 of the 8 cores busy, so this run computes with 1 thread instead of 8. "
            "OMP_NUM_THREADS=N sets another number.\n"
        )
    assert (told == "") == (used == 8)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("busy", "told"), [(7.26, "Start it again with OMP_NUM_THREADS=1,"), (0.3, "")])
def test_a_fine_tuning_keeps_its_threads_and_says_what_is_faster(
    monkeypatch: pytest.MonkeyPatch, capsys, busy: float, told: str
) -> None:
    monkeypatch.setattr(busy_cores, "busy_cores", lambda: busy)
    warn_of_busy_cores(usable=8, ranks=1)
    assert torch.get_num_threads() == 8
    printed = capsys.readouterr().out
    assert told in printed and bool(printed) == bool(told)


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
    state = TrainingState(step=4, tokens=1, seconds=1.0, identity={}, threads=recorded, cores=cores)
    resumed = with_threads(state, share=8)
    assert torch.get_num_threads() == used
    printed = capsys.readouterr().out
    assert told in printed and bool(printed) == bool(told)
    assert resumed.threads == (recorded if told else 8) and resumed.cores == 8


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
