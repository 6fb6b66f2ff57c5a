"""Who is ended and when: dead ranks are named, and a rank that waits for one that advances is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from tests.forked import Command
from tests.trainer.data.node_cache.shards import until
from tests.trainer.ranks import environments
from trainer.distributed import watchdog
from trainer.distributed.watchdog import Watchdog, progress

BEAT = 0.05
TIMEOUT = 25 * BEAT


class Board:
    """The messages of the ranks of one process, as a store that may be lost or frozen."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.lost = False
        self.answers = Event()
        self.answers.set()

    def set(self, key: str, value: str) -> None:
        self._answer()
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[str]:
        self._answer()
        return [self.values[key] for key in keys]

    def _answer(self) -> None:
        self.answers.wait()
        if self.lost:
            raise RuntimeError("connection refused")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board()
    monkeypatch.setattr(watchdog, "open_store", lambda world_size: made)
    monkeypatch.setattr(watchdog, "BEAT", BEAT)
    monkeypatch.setattr(watchdog, "HEARTBEAT_TIMEOUT", 15 * BEAT)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    return made


@pytest.fixture
def start(board: Board, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[Watchdog, list[str]]]]:
    """Start a rank's watchdog; what it would end its process with is collected."""
    ends: dict[int, list[str]] = {0: [], 1: []}

    def end(self: Watchdog, waited: str, dead: list[str]) -> None:
        ends[self._rank].append(f"{waited}: {', '.join(dead) or 'all live'}")

    monkeypatch.setattr(Watchdog, "_end", end)
    made: list[Watchdog] = []

    def call(rank: int) -> tuple[Watchdog, list[str]]:
        made.append(Watchdog(rank, 2, TIMEOUT))
        return made[-1], ends[rank]

    yield call
    board.answers.set()
    for one in made:
        if not one._closed.is_set():
            one.close()


def test_a_rank_may_wait_as_long_as_another_advances(start) -> None:
    waiting, ends = start(0)
    waiting.at("step 4, saving")
    other, _ = start(1)
    for _ in range(80):  # three times the timeout
        time.sleep(BEAT)
        other.progress()
    assert ends == []
    until(lambda: bool(ends), 30)
    assert "nothing has happened for" in ends[0] and "step 4, saving: all live" in ends[0]


def test_progress_reaches_the_watchdog_of_the_process(start) -> None:
    _, ends = start(0)
    for _ in range(60):
        time.sleep(BEAT)
        progress()
    assert [end for end in ends if "nothing has happened" in end] == []


def test_a_save_in_the_background_that_is_stuck_is_found_while_training_advances(start) -> None:
    first, ends = start(0)
    second, _ = start(1)
    first.background.begin("saving step 4")
    second.background.begin("saving step 4")
    for _ in range(50):  # twice the timeout; rank 1's disk is slow
        time.sleep(BEAT)
        first.at("step 5, computing")
        second.at("step 5, computing")
        second.background.advances += 1
    assert ends == []

    end = time.monotonic() + 30
    while not ends and time.monotonic() < end:
        time.sleep(BEAT)
        first.at("step 6, computing")
        second.at("step 6, computing")
    assert "nothing has happened for" in ends[0] and "saving step 4: all live" in ends[0]


def test_a_save_that_has_ended_is_not_missed(start) -> None:
    first, ends = start(0)
    second, _ = start(1)
    first.background.begin("saving step 4")
    first.background.place = ""
    for _ in range(60):
        time.sleep(BEAT)
        first.progress()
        second.progress()
    assert ends == []


def test_a_rank_that_falls_silent_is_named_while_another_waits(start) -> None:
    first, ends = start(0)
    first.at("step 7, counting")
    second, _ = start(1)
    second.at("step 7, computing")
    time.sleep(8 * BEAT)
    second.close(left=False)
    until(lambda: bool(ends), 30)
    assert ends[0].startswith("waiting for ") and "in step 7, counting: rank 1 (process " in ends[0]
    assert "last seen in step 7, computing" in ends[0]


def test_a_rank_that_left_as_all_do_is_not_missed(start) -> None:
    first, ends = start(0)
    second, _ = start(1)
    time.sleep(8 * BEAT)
    second.close()
    for _ in range(60):
        time.sleep(BEAT)
        first.progress()
    assert ends == [] and first.lost() == []


def test_a_store_that_does_not_answer_is_named(start, board: Board) -> None:
    first, ends = start(0)
    start(1)
    time.sleep(8 * BEAT)
    board.lost = True
    until(lambda: bool(ends), 30)
    assert "the store of the ranks at 10.0.0.1:29500" in ends[0]
    assert "the store of the ranks at 10.0.0.1:29500" in first.lost()[0]


def test_a_store_that_is_frozen_is_named_and_holds_nobody_up(start, board: Board) -> None:
    """Each call to it blocks, as calls to a process that was stopped do."""
    first, ends = start(0)
    start(1)
    time.sleep(8 * BEAT)
    board.answers.clear()
    until(lambda: bool(ends), 30)
    assert "the store of the ranks at " in ends[0] and "was stopped" in ends[0]

    began = time.monotonic()
    assert "the store of the ranks at " in first.lost()[0]
    first.close()
    assert time.monotonic() - began < 10, "both wait 3 beats of 50 ms for each answer"


@pytest.mark.parametrize("stopped", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_rank_that_is_stopped_ends_the_other(stopped: int) -> None:
    """Real ranks; rank 0 holds the store of them both, so rank 1 gets no answer from anywhere."""
    command = ["python", "-m", "tests.trainer.distributed.watched", "12", stopped]
    ranks = [
        Command(command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for environment in environments(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
        os.kill(ranks[stopped].pid, signal.SIGSTOP)
        _, told = ranks[1 - stopped].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()

    assert ranks[1 - stopped].returncode == 1
    last = told.splitlines()[-1]
    named = "the store of the ranks at 127.0.0.1:" if stopped == 0 else "rank 1 (process "
    assert last.startswith("clozeline: ") and f"No sign of life from {named}" in last, told


@pytest.mark.parametrize("hangs", [False, True])
def test_the_end_of_rank_0_is_in_the_log_of_its_run(monkeypatch, capsys, hangs: bool) -> None:
    """Unless the disk of that log does not answer."""
    logged: list[str] = []
    ended: list[int] = []

    def add(line: str) -> None:
        logged.append(line)
        if hangs:
            Event().wait()

    monkeypatch.setattr(watchdog.log_file, "add", add)
    monkeypatch.setattr(os, "_exit", ended.append)
    alone = Watchdog(0, 1, 600)
    alone._end("waiting for 9 s", ["rank 1"])
    alone.close()
    assert ended == [1] and capsys.readouterr().err.splitlines() == logged


@pytest.mark.parametrize(("timeout", "seconds"), [(5, 5), (600, 60), (100, 30), (86_400, 8640)])
def test_the_silence_limit_grows_with_the_timeout(timeout: float, seconds: float) -> None:
    assert watchdog.silence_limit(timeout) == seconds


def test_a_single_rank_needs_no_process_group() -> None:
    alone = Watchdog(0, 1, 600)
    assert alone.lost() == []
    alone.close()
