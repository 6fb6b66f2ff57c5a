"""Compares ranks: which one is the slowest, by how much, and on which machine.

RUN/ranks.json holds the last report of every rank; metrics.jsonl has the slowest rank's number and ratio. If a rank
stays far slower than the others, a line in the log names it once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from schemas import storage
from trainer.logs import logger
from trainer.metrics.presentation import keep_running

RANKS_FILE = "ranks.json"

SLOW_RATIO = 1.3
"""The ratio to the median rank's own seconds from which on a rank counts as slow."""

SLOW_INTERVALS = 3
"""A rank is named in the log after this many slow reports in a row, because a single one may be a brief disturbance."""


class RankReport(NamedTuple):
    """What a rank measured over a log interval, which ended after `step`.

    step_seconds: mean of a whole step, which includes waiting for other ranks. own_seconds: mean of the step's forward
    passes and of waiting for data, without other ranks. peak_memory_bytes: so far, of its device or, on a CPU, of its
    process.
    """

    step: int
    step_seconds: float
    own_seconds: float
    peak_memory_bytes: int
    rank: int
    host: str


def slowest_of(reports: Sequence[RankReport]) -> RankReport:
    return max(reports, key=lambda report: report.own_seconds)


def ratio_to_median(report: RankReport, reports: Sequence[RankReport]) -> float | None:
    """Return a rank's own seconds divided by the median of all ranks, or by the lower median of an even number.

    None if the median is 0.
    """
    median = median_low(one.own_seconds for one in reports)
    return report.own_seconds / median if median > 0 else None


def rank_figures(reports: list[RankReport]) -> dict[str, float | None]:
    """Return the metrics that compare ranks, None for those that are not known yet."""
    if not reports:
        return {"slowest_rank": None, "slowest_ratio": None, "peak_memory_bytes": None}
    slowest = slowest_of(reports)
    return {
        "slowest_rank": slowest.rank,
        "slowest_ratio": ratio_to_median(slowest, reports),
        "peak_memory_bytes": max(report.peak_memory_bytes for report in reports),
    }


class RankFile:
    """RUN/ranks.json: {"ranks": [...]}, by rank, as the fields of RankReport. Read by report.html."""

    def __init__(self, run: str):
        self._path = Path(run, RANKS_FILE)

        # The slow rank of the last reports, in how many in a row it was that, and the ranks that the log has named.
        self._slow_rank: int | None = None
        self._slow_reports = 0
        self._named: set[int] = set()

    def add(self, reports: list[RankReport]) -> None:
        """Write the reports, and name a rank that stays slow in the log. A full disk does not end the run."""
        if not reports:
            return
        ranks = [report._asdict() for report in reports]
        with keep_running(RANKS_FILE):
            storage.publish(str(self._path), json.dumps({"ranks": ranks}, indent=1).encode(), durable=False)
        self._name_slow_rank(reports)

    def _name_slow_rank(self, reports: list[RankReport]) -> None:
        slowest = slowest_of(reports)
        ratio = ratio_to_median(slowest, reports) or 1.0
        slow_rank = slowest.rank if ratio >= SLOW_RATIO else None
        self._slow_reports = self._slow_reports + 1 if slow_rank == self._slow_rank else 1
        self._slow_rank = slow_rank

        if slow_rank is not None and self._slow_reports >= SLOW_INTERVALS and slow_rank not in self._named:
            self._named.add(slow_rank)
            logger.info(
                "Rank %d on %s is slow: its forward passes and its waiting for data take %.1f times as long as the "
                "median rank's, and all ranks wait for it. Check that machine.",
                slow_rank,
                slowest.host,
                ratio,
            )


def read_ranks(run: str) -> list[RankReport]:
    """Return the reports of RUN/ranks.json, an empty list if the file is missing or damaged."""
    try:
        ranks = json.loads(Path(run, RANKS_FILE).read_text(encoding="utf-8"))["ranks"]
        return [RankReport(**rank) for rank in ranks]
    except (OSError, ValueError, TypeError, KeyError):
        return []
