"""RUN/micro_batches.json: each micro-batch that was chosen, what it was chosen for, and whether it proved too large.

A list of objects with the fields of Choice, in the order in which they were added.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from schemas import storage

RECORD = "micro_batches.json"

MEMORY_TOLERANCE = 0.1
"""Relative change in free memory within which a recorded choice is used again. Another process's context causes such
changes, and so do NCCL's buffers, which exist in a second phase but not in the first. A choice leaves this share free
(SAFETY_MARGIN in trainer/memory.py)."""


@dataclass(frozen=True)
class Choice:
    """A micro-batch that was chosen.

    micro_tokens: tokens that each rank computes at once. made_for: the circumstances that it depends on
    (`micro_batches.circumstances`). ran_out_of_memory: whether training ran out of memory with it.
    """

    micro_tokens: int
    made_for: dict[str, Any]
    ran_out_of_memory: bool = False


def recorded(run: str, made_for: dict[str, Any]) -> list[Choice]:
    """Return the choices that were made under these circumstances, oldest first."""
    return [choice for choice in _choices(run) if _are_alike(choice.made_for, made_for)]


def _are_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether circumstances are equal, except that free memory may differ by MEMORY_TOLERANCE."""
    free_before = before.get("free_bytes", 0)
    difference = abs(now["free_bytes"] - free_before)
    return before | {"free_bytes": 0} == now | {"free_bytes": 0} and difference <= MEMORY_TOLERANCE * free_before


def record(run: str, choice: Choice) -> None:
    """Add a choice to RUN/micro_batches.json. Raises StorageError."""
    choices = [asdict(each) for each in (*_choices(run), choice)]
    storage.publish(str(Path(run) / RECORD), (json.dumps(choices, indent=2) + "\n").encode())


def _choices(run: str) -> list[Choice]:
    """Return all recorded choices. A damaged file counts as empty, so the choice is made again."""
    try:
        return [Choice(**fields) for fields in json.loads((Path(run) / RECORD).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
