"""Compares ranks: which one is the slowest, by how much, and on which machine.

RUN/ranks.json holds the last report of every rank; metrics.jsonl has the slowest rank's number and ratio. If a rank
stays far slower than the others, a line in the log names it once.
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
"""The least seconds between two writes of RANKS_FILE."""

SLOW_RATIO = 1.3
"""The ratio to the median rank's own seconds from which on a rank counts as slow."""

SLOW_INTERVALS = 3
"""A rank is named in the log after this many slow reports in a row, because a single one may be a brief disturbance."""


class RankReport(NamedTuple):
    """What a rank measured over its last log interval, which ended after `step`.

    step_seconds: mean of a whole step, which includes waiting for other ranks. own_seconds: mean of the step's forward
    passes and of waiting for data, without other ranks. peak_memory_bytes: so far, of its device or, on a CPU, of its
    process.
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
    """Return the report with the most own seconds, None without reports."""
    return max(reports, key=lambda report: report.own_seconds, default=None)


def ratio_to_median(report: RankReport, reports: list[RankReport]) -> float | None:
    """Return a rank's own seconds divided by the median of all ranks, or by the lower median of an even number.

    None if the median is 0.
    """
    median = median_low(one.own_seconds for one in reports)
    return report.own_seconds / median if median > 0 else None


def rank_figures(reports: list[RankReport]) -> dict[str, float | None]:
    """Return the metrics that compare ranks, None for those that are not known yet."""
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
        """Note the newest reports: log a rank that is slow, and write the file unless that was done a moment ago.

        If there are more reports than in the file, it is written right away: reports arrive with heartbeats, and a
        short run may end soon.
        """
        self._notice.add(reports)
        is_larger = len(reports) > self._written_ranks
        self._reports = reports
        if is_larger or monotonic() - self._written_at >= WRITE_EVERY:
            self.write()

    def write(self) -> None:
        """Write the last reports. A full disk does not end the run."""
        if not self._reports:
            return
        self._written_at = monotonic()
        self._written_ranks = len(self._reports)
        ranks = [report._asdict() for report in self._reports]
        with keep_running(RANKS_FILE):
            storage.publish(str(self._path), json.dumps({"ranks": ranks}, indent=1).encode(), durable=False)


def read_ranks(run: str) -> list[RankReport]:
    """Return the reports of RUN/ranks.json, an empty list if the file is missing or damaged."""
    try:
        ranks = json.loads(Path(run, RANKS_FILE).read_text(encoding="utf-8"))["ranks"]
        return [RankReport(**rank) for rank in ranks]
    except (OSError, ValueError, TypeError, KeyError):
        return []


class SlowRankNotice:
    """Names a rank in the log, once, if its reports keep showing that it is slow."""

    def __init__(self) -> None:
        self._last: RankReport | None = None
        self._reports_in_a_row = 0
        self._named: set[int] = set()

    def add(self, reports: list[RankReport]) -> None:
        """Note the newest reports of all ranks."""
        slowest = slowest_of(reports)
        if slowest is None or slowest == self._last:
            return  # no new report: log intervals may be shorter than the time between heartbeats

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
