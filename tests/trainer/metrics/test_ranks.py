"""Which rank is the slowest: measured on each, told through the watchdog, named with its host."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from trainer.metrics import ranks
from trainer.metrics.ranks import RankFile, RankReport, SlowRankNotice, rank_figures, ratio_to_median, read_ranks
from trainer.metrics.report import report
from trainer.metrics.step_clock import DevicePassTimer, HostPassTimer


def reports(*own_seconds: float, step: int = 7) -> list[RankReport]:
    """One of each rank; rank r is on host h0 or h1, and has taken r MB."""
    return [
        RankReport(step, 1.0, seconds, rank * 10**6, rank, f"h{rank % 2}") for rank, seconds in enumerate(own_seconds)
    ]


def test_the_slowest_rank_of_a_run_is_named_with_its_host(training, tmp_path: Path) -> None:
    """Rank 1 sleeps in each forward pass; rank 0 waits for it in the step's exchange, which is not its own time."""
    out = tmp_path / "run"
    done = training.warm(2, out, "sluggish:1:1:99")
    assert done.returncode == 0, done.stderr

    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
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


def test_a_rank_is_named_once_and_only_if_it_stays_slow(capsys: pytest.CaptureFixture[str]) -> None:
    notice = SlowRankNotice()
    for step in (1, 2):
        notice.add(reports(1.0, 1.0, 5.0, step=step))
    notice.add(reports(1.0, 1.0, 5.0, step=2))  # read again
    notice.add(reports(1.0, 1.0, 1.1, step=3))
    assert capsys.readouterr().out == ""

    for step in range(4, 12):
        notice.add(reports(1.0, 1.0, 5.0, step=step))
    told = capsys.readouterr().out
    assert told.startswith("Rank 2 on h0 is slow: ") and "5.0 times as long" in told and told.count("\n") == 1


def test_the_file_is_rewritten_seldom_and_at_the_end(tmp_path: Path) -> None:
    file = RankFile(str(tmp_path))
    file.write()
    assert read_ranks(str(tmp_path)) == []

    file.add(reports(1.0, 2.0, step=1))
    file.add(reports(1.0, 2.0, step=2))
    assert [one.step for one in read_ranks(str(tmp_path))] == [1, 1]
    file.write()
    assert read_ranks(str(tmp_path)) == reports(1.0, 2.0, step=2)


@pytest.mark.parametrize("content", ["", "[]", "5", '{"ranks": [{"step": 1}]}', '{"ranks": 3}', "\x00"])
def test_a_file_that_is_not_one_is_passed_over(tmp_path: Path, content: str) -> None:
    (tmp_path / ranks.RANKS_FILE).write_text(content)
    assert read_ranks(str(tmp_path)) == []


def test_the_report_shows_the_slowest_ranks(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    file = RankFile(str(tmp_path))
    file.add(reports(*[1.0] * 20, 2.5))
    page = report(str(tmp_path), [{"step": 1}], [])
    assert "<td>20</td>" in page and "<td>2.50</td>" in page and page.count("<td>h") == 8


def test_passes_are_counted_by_whole_steps() -> None:
    timer = HostPassTimer()
    timer.pass_begins()
    timer.pass_ends()
    assert timer.seconds_per_step() is None
    timer.step_ended()
    assert timer.seconds_per_step() is not None
    assert timer.seconds_per_step() is None


def test_a_step_ends_when_its_update_was_made() -> None:
    timer = HostPassTimer()
    before = perf_counter()
    timer.step_ended()
    after = perf_counter()
    timer.pass_begins()
    timer.pass_ends()
    assert before <= timer.ended_at() <= after


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

    def query(self) -> bool:
        return self.place <= Event.done

    def elapsed_time(self, end: Any) -> float:
        assert end.query(), "torch raises where the device has not passed the event"
        return 10.0 * (end.place - self.place)


def device_timer(monkeypatch: pytest.MonkeyPatch) -> DevicePassTimer:
    """A timer of a device that has passed the timer's first event, at place 1."""
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr(Event, "recorded", 0)
    monkeypatch.setattr(Event, "done", 0)
    return DevicePassTimer()


def test_a_device_is_never_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes a step; of the second step the device has done the first pass alone."""
    timer = device_timer(monkeypatch)
    monkeypatch.delattr(Event, "synchronize")
    for _ in range(2):
        for _ in range(2):
            timer.pass_begins()
            timer.pass_ends()
        timer.step_ended()

    assert timer.seconds_per_step() is None
    Event.done = 8
    assert timer.seconds_per_step() == pytest.approx(0.020)
    assert timer.seconds_per_step() is None
    Event.done = 10
    assert timer.seconds_per_step() == pytest.approx(0.020)


def test_a_device_says_when_it_ended_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the host's clock, although the host asks later; now if the device is still at it."""
    before = perf_counter()
    timer = device_timer(monkeypatch)
    after = perf_counter()
    for _ in range(2):
        timer.pass_begins()
        timer.pass_ends()
        timer.step_ended()
        Event.done += 3
        before += 0.030
        after += 0.030
        assert before <= timer.ended_at() <= after

    timer.step_ended()
    before = perf_counter()
    assert before <= timer.ended_at() <= perf_counter()
