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
"""Difference of free memory, as a share, within which a choice is taken again: another process's context, or NCCL's
buffers, which are there in a second phase and not in the first. A choice leaves as much free (SAFETY_MARGIN in
trainer/memory.py)."""


@dataclass(frozen=True)
class Choice:
    """A micro-batch that was chosen.

    micro_tokens: tokens that each rank computes at once. made_for: what it depends on; "free_bytes" in it are those of
    the device that has the least, 0 on CPUs. ran_out_of_memory: training did with it.
    """

    micro_tokens: int
    made_for: dict[str, Any]
    ran_out_of_memory: bool = False


def recorded(run: str, made_for: dict[str, Any]) -> list[Choice]:
    """Return the choices that were made under these circumstances, the oldest first."""
    return [choice for choice in _choices(run) if _are_alike(choice.made_for, made_for)]


def _are_alike(before: dict[str, Any], now: dict[str, Any]) -> bool:
    free_before = before.get("free_bytes", 0)
    difference = abs(now["free_bytes"] - free_before)
    return before | {"free_bytes": 0} == now | {"free_bytes": 0} and difference <= MEMORY_TOLERANCE * free_before


def record(run: str, choice: Choice) -> None:
    """Add a choice to RUN/micro_batches.json. Raises StorageError."""
    choices = [asdict(each) for each in (*_choices(run), choice)]
    storage.publish(str(Path(run) / RECORD), (json.dumps(choices, indent=2) + "\n").encode())


def _choices(run: str) -> list[Choice]:
    """Return all recorded choices. A file that is damaged holds none: the choice is then made again."""
    try:
        return [Choice(**fields) for fields in json.loads((Path(run) / RECORD).read_text())]
    except (OSError, ValueError, TypeError):
        return []
