"""Compares ranks: which one is the slowest, by how much, and on which machine.

RUN/ranks.json holds the last report of every rank; metrics.jsonl has the slowest rank's number and ratio. Where a rank
stays far slower than the others, a line of the log names it once.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median_low
from time import monotonic
from typing import Any, NamedTuple

from schemas import storage
from trainer.logs import logger
from trainer.metrics.presentation import keep_running

RANKS_FILE = "ranks.json"

WRITE_EVERY = 10.0
"""Seconds between two writes of RANKS_FILE, at least."""

SLOW_RATIO = 1.3
"""A rank this many times slower than the median is named in the log,"""

SLOW_INTERVALS = 3
"""once this many of its reports in a row say so: a single one may be a moment's disturbance."""


class RankReport(NamedTuple):
    """What a rank measured over its last log interval, which ended after `step`.

    step_seconds: mean of a whole step, in which ranks wait for each other. own_seconds: of its forward passes and its
    waiting for data, in which they do not. peak_memory_bytes: of its device or, on a CPU, of its process, so far.
    """

    step: int
    step_seconds: float
    own_seconds: float
    peak_memory_bytes: int
    rank: int = 0
    host: str = ""


def reports_of(messages: list[dict[str, Any]]) -> list[RankReport]:
    """Return the reports of the ranks that have sent one, by rank. messages: as Watchdog.reports returns them."""
    return [RankReport(**message) for message in messages if "step" in message]


def slowest_of(reports: list[RankReport]) -> RankReport | None:
    """Return the rank with the most seconds of its own, None without reports."""
    return max(reports, key=lambda report: report.own_seconds, default=None)


def ratio_to_median(report: RankReport, reports: list[RankReport]) -> float | None:
    """Return how many times the median's own seconds a rank takes; of an even number, the lower median."""
    median = median_low(one.own_seconds for one in reports)
    return report.own_seconds / median if median > 0 else None


def rank_figures(reports: list[RankReport]) -> dict[str, float | None]:
    """Return the metrics that compare ranks, None for what is not known yet."""
    slowest = slowest_of(reports)
    if slowest is None:
        return {"slowest_rank": None, "slowest_ratio": None, "peak_memory_bytes": None}
    return {
        "slowest_rank": slowest.rank,
        "slowest_ratio": ratio_to_median(slowest, reports),
        "peak_memory_bytes": max(report.peak_memory_bytes for report in reports),
    }


class RankFile:
    """RUN/ranks.json: {"ranks": [...]}, by rank, as the fields of RankReport. Read by report.html."""

    def __init__(self, run: str):
        self._path = Path(run, RANKS_FILE)
        self._reports: list[RankReport] = []
        self._written_at = -WRITE_EVERY
        self._written_ranks = 0
        self._notice = SlowRankNotice()

    def add(self, reports: list[RankReport]) -> None:
        """Replace the file by these reports, unless that was done a moment ago. Says which rank is slow.

        Reports of further ranks are written at once: they arrive with heartbeats, and a short run may end before long.
        """
        self._notice.add(reports)
        is_larger = len(reports) > self._written_ranks
        self._reports = reports
        if is_larger or monotonic() - self._written_at >= WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Write the last reports. A disk that is full ends nothing."""
        if not self._reports:
            return
        self._written_at = monotonic()
        self._written_ranks = len(self._reports)
        ranks = [report._asdict() for report in self._reports]
        with keep_running(RANKS_FILE):
            storage.publish(str(self._path), json.dumps({"ranks": ranks}, indent=1).encode(), durable=False)


def read_ranks(run: str) -> list[RankReport]:
    """Return the reports of RUN/ranks.json, none if there is no such file or it is not one."""
    try:
        ranks = json.loads(Path(run, RANKS_FILE).read_text())["ranks"]
        return [RankReport(**rank) for rank in ranks]
    except (OSError, ValueError, TypeError, KeyError):
        return []


class SlowRankNotice:
    """Names a rank in the log, once, if its reports keep saying that it is slow."""

    def __init__(self) -> None:
        self._last: RankReport | None = None
        self._reports_in_a_row = 0
        self._named: set[int] = set()

    def add(self, reports: list[RankReport]) -> None:
        """Note the newest reports of all ranks."""
        slowest = slowest_of(reports)
        if slowest is None or slowest == self._last:
            return  # log intervals may be shorter than heartbeats

        ratio = ratio_to_median(slowest, reports) or 1.0
        if ratio < SLOW_RATIO:
            self._reports_in_a_row = 0
        elif self._last is not None and self._last.rank == slowest.rank:
            self._reports_in_a_row += 1
        else:
            self._reports_in_a_row = 1
        self._last = slowest

        if self._reports_in_a_row >= SLOW_INTERVALS and slowest.rank not in self._named:
            self._named.add(slowest.rank)
            logger.info(
                "Rank %d on %s is slow: its forward passes and its waiting for data take %.1f times as long as the "
                "median rank's, and all ranks wait for it. Check that machine.",
                slowest.rank,
                slowest.host,
                ratio,
            )
