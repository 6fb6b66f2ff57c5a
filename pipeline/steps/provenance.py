"""What a finished folder was made from, as its manifest records it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.runtime.counters import add_ledgers
from schemas.manifest import Input, LedgerEntry


@dataclass(frozen=True)
class Provenance:
    """The options, inputs and seed of a job, known before it starts."""

    options: dict[str, Any]
    inputs: list[Input]
    seed: int


def ledger_entries(ledgers: Iterable[Iterable[tuple[str, str, int]]]) -> list[LedgerEntry]:
    """Add up ledgers into the manifest's entries: one for each reason and source, sorted."""
    added = add_ledgers(ledgers)
    return [LedgerEntry(reason=reason, source=source, count=count) for reason, source, count in added]
