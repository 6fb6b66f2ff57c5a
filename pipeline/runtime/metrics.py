"""Counters that engines show while a job runs, and that equal the manifest's ledger and totals at the end.

They are incremented from the reports that steps return. The report of a piece that an earlier attempt finished is
counted too, and an engine drops the counts of a failed attempt, so each piece counts once. No output depends on the
counters: manifests are made from the reports themselves.
"""

from __future__ import annotations

from typing import Any, Literal

from apache_beam.metrics.metric import Metrics, MetricsFilter

from pipeline.runtime.beam_internals import current_metrics
from pipeline.runtime.counters import Report
from schemas.manifest import Shard

NAMESPACE = "clozeline"
PIECES = "pieces"
"""Prefix of the counters of finished pieces; the kind of report follows."""

_PROGRESS = ("pieces/run", "pieces/lot", "pieces/pairs")
"""For each job, the counter of the step that takes most of its time."""

Kind = Literal["run", "text", "pairs"]

_OF_SHARD: dict[Kind, dict[str, str]] = {
    "run": {},
    "text": {"rows": "documents", "bytes": "bytes"},
    "pairs": {"rows": "rows", "tokens": "tokens", "bytes": "bytes"},
}
"""For each kind of report: the counted fields of its shard's manifest entry, and the names of their counters."""

_OF_REPORT: dict[Kind, tuple[str, ...]] = {"run": (), "text": ("sentences", "text_bytes"), "pairs": ()}
"""For each kind of report: its own counted fields, whose counters have the same names."""

_OF_LOT = {"text": ("documents", "text_file_bytes"), "pairs": ("rows_read", "pair_file_bytes")}
"""For each kind of shards in a lot: the names of the counters of rows and of bytes. Of pairs, all rows are read, but
`statistics` may count only a sample of them."""


def count_report(kind: Kind, report: Report) -> None:
    """Count what a report says: its shard's rows, tokens and bytes, and what was dropped, by reason.

    Does nothing outside of a Beam step.
    """
    for field, name in _OF_SHARD[kind].items():
        count(name, report["shard"][field])
    for name in _OF_REPORT[kind]:
        count(name, report[name])
    for reason, _, dropped in report.get("ledger", ()):
        count(f"dropped/{reason}", dropped)


def count_lot(kind: Literal["text", "pairs"], entries: list[Shard]) -> None:
    """Count a lot, a group of shards that one worker reads: its rows and the bytes of its files."""
    rows, file_bytes = _OF_LOT[kind]
    count(f"{PIECES}/lot")
    count(rows, sum(entry.rows for entry in entries))
    count(file_bytes, sum(entry.bytes for entry in entries))


def count_all(amounts: dict[str, int]) -> None:
    """Count several amounts by name. Does nothing outside of a Beam step."""
    for name, amount in amounts.items():
        count(name, amount)


def count(name: str, amount: int = 1) -> None:
    """Add to a counter of the job. Does nothing outside of a Beam step."""
    Metrics.counter(NAMESPACE, name).inc(amount)


def read_counters(result: Any) -> dict[str, int]:
    """Return the counters of a job by name, summed over its steps; empty if it has none yet. `result` is Beam's."""
    found = current_metrics(result).query(MetricsFilter().with_namespace(NAMESPACE))
    counters: dict[str, int] = {}
    for counter in found["counters"]:
        name = counter.key.metric.name
        counters[name] = counters.get(name, 0) + (counter.result or 0)
    return dict(sorted(counters.items()))


def finished_pieces(result: Any) -> int:
    """Return how many pieces of the step that measures a job's progress are finished, as far as is known."""
    counters = read_counters(result)
    return next((counters[name] for name in _PROGRESS if name in counters), 0)
