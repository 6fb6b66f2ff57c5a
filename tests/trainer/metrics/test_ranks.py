"""Which rank is the slowest: measured on each, gathered at a logged line, named with its host."""

from __future__ import annotations

import socket
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import nn

from tests.trainer.conftest import logged
from tests.trainer.one_rank import group_of_one
from trainer.metrics import ranks, speed
from trainer.metrics.ranks import RankFile, RankReport, rank_figures, ratio_to_median, read_ranks
from trainer.metrics.run_page import report
from trainer.metrics.run_record import read_record
from trainer.metrics.speed import StepClock


def reports(*own_seconds: float, step: int = 7) -> list[RankReport]:
    """One of each rank; rank r is on host h0 or h1, and has taken r MB."""
    return [
        RankReport(step, 1.0, seconds, rank * 10**6, rank, f"h{rank % 2}") for rank, seconds in enumerate(own_seconds)
    ]


def test_the_slowest_rank_of_a_run_is_named_with_its_host(training, tmp_path: Path) -> None:
    """Rank 1 sleeps in each forward pass; rank 0 waits for it in the step's exchange, which is not its own time."""
    out = tmp_path / "run"
    training.trained(2, out, "sluggish:1:1:99")

    last = logged(out)[-1]
    assert last["slowest_rank"] == 1 and last["slowest_ratio"] > 1
    assert last["step_seconds"] > 0 and last["peak_memory_bytes"] > 10**7

    slow, fast = sorted(read_ranks(str(out)), key=lambda one: -one.own_seconds)
    assert (slow.rank, fast.rank) == (1, 0) and slow.host == fast.host == socket.gethostname()
    assert slow.own_seconds > 0.5, "it sleeps twice a step"

    page = (out / "report.html").read_text()
    for title in ("Slowest ranks", "Seconds a step", "Peak memory"):
        assert f"<h2>{title}</h2>" in page


def test_the_ratio_is_to_the_lower_median() -> None:
    assert rank_figures(reports(1.0, 1.5)) == {"slowest_rank": 1, "slowest_ratio": 1.5, "peak_memory_bytes": 10**6}
    of_five = reports(2.0, 9.0, 1.0, 3.0, 3.0)
    assert rank_figures(of_five)["slowest_rank"] == 1 and ratio_to_median(of_five[1], of_five) == 3.0
    assert rank_figures([]) == dict.fromkeys(("slowest_rank", "slowest_ratio", "peak_memory_bytes"))
    assert rank_figures(reports(0.0, 0.0))["slowest_ratio"] is None


def test_a_rank_is_named_once_and_only_if_it_stays_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = RankFile(str(tmp_path))
    for step in (1, 2):
        file.add(reports(1.0, 1.0, 5.0, step=step))
    for step in (3, 4, 5):
        file.add(reports(1.0, 1.0, 1.1, step=step))
    assert capsys.readouterr().out == ""

    for step in range(6, 12):
        file.add(reports(1.0, 1.0, 5.0, step=step))
    told = capsys.readouterr().out
    assert told.startswith("Rank 2 on h0 is slow: ") and "5.0 times as long" in told and told.count("\n") == 1


def test_the_file_holds_the_last_reports(tmp_path: Path) -> None:
    file = RankFile(str(tmp_path))
    file.add([])
    assert read_ranks(str(tmp_path)) == []

    for step in (1, 2):
        file.add(reports(1.0, 2.0, step=step))
    assert read_ranks(str(tmp_path)) == reports(1.0, 2.0, step=2)


@pytest.mark.parametrize("content", ["", "[]", '{"ranks": [{"step": 1}]}'])
def test_a_file_that_is_not_one_is_passed_over(tmp_path: Path, content: str) -> None:
    (tmp_path / ranks.RANKS_FILE).write_text(content)
    assert read_ranks(str(tmp_path)) == []


def test_the_report_shows_the_slowest_ranks(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    file = RankFile(str(tmp_path))
    file.add(reports(*[1.0] * 20, 2.5))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    page = report(read_record(str(tmp_path)), str(tmp_path))
    assert "<td>20</td>" in page and "<td>2.50</td>" in page and page.count("<td>h") == 8


class Event:
    """An event of a device's queue, passed when `done` reaches its place in the queue; each takes 10 ms."""

    recorded = 0
    done = 0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        Event.recorded += 1
        self.place = Event.recorded

    def synchronize(self) -> None:
        Event.done = max(Event.done, self.place)

    def elapsed_time(self, end: Any) -> float:
        assert end.place <= Event.done, "torch raises where the device has not passed the event"
        return 10.0 * (end.place - self.place)


def clock_of(monkeypatch: pytest.MonkeyPatch, device: str = "cpu") -> tuple[StepClock, Any]:
    """A clock, and a stand-in of the engine that it observes, in a group of one rank."""
    monkeypatch.setattr(Event, "recorded", 0)
    monkeypatch.setattr(Event, "done", 0)
    monkeypatch.setattr("torch.cuda.Event", Event)
    engine: Any = nn.Identity()
    engine.device = device
    return StepClock(engine), engine


def own_seconds(clock: StepClock, step: int) -> float:
    """What the clock measured up to a step, before it is gathered."""
    clock.end_interval(step)
    assert clock._measured is not None
    return clock._measured[1]


def test_a_rank_s_own_seconds_are_those_of_its_passes_and_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device, whose passes take 10 ms each here: two in each step. The next step's are not waited for."""
    with group_of_one():
        clock, engine = clock_of(monkeypatch, "cuda")
        for step in (1, 2, 3):
            clock.step_begins()
            for _ in range(2):
                engine(torch.zeros(1))
            if step == 3:
                Event.done = 11
                break
            clock.step_ended(stalled_seconds=0.5 * step)
        assert own_seconds(clock, 2) == pytest.approx(0.020 + 0.5)


def test_evaluations_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    with group_of_one():
        clock, engine = clock_of(monkeypatch)
        engine.eval()(torch.zeros(1))
        clock.step_ended(stalled_seconds=0.0)
        assert own_seconds(clock, 1) == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_end_of_a_step_is_known_by_the_host_s_clock(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """On a device each event takes 10 ms, of which there is one at the end of each step."""
    with group_of_one():
        before = perf_counter()
        clock, _engine = clock_of(monkeypatch, device)
        clock.step_ended(0.0)
        after = perf_counter()
        Event.done += 1
        queued = 0.010 if device == "cuda" else 0.0
        assert before + queued <= clock.end_interval(1).ended_at <= after + queued + 1e-3


def test_the_ranks_of_a_line_are_those_of_the_line_before() -> None:
    """They are gathered while the next steps are computed, so that no line waits for them."""
    with group_of_one():
        engine: Any = nn.Identity()
        engine.device = "cpu"
        clock = StepClock(engine)
        clock.step_ended(1.0)
        assert clock.end_interval(5).ranks == []
        assert clock.end_interval(5).ranks == [], "a rank may log a line alone"
        clock.step_begins()
        clock.step_ended(3.0)
        (report,) = clock.end_interval(10).ranks
    assert (report.step, report.own_seconds, report.rank, report.host) == (5, 0.0, 0, socket.gethostname())
    assert report.peak_memory_bytes > 10**7


def test_a_sandbox_whose_kernel_tells_no_peak_has_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("VmSize:\t 100 kB\nVmRSS:\t 50 kB\n")
    assert speed.peak_memory() > 10**7
