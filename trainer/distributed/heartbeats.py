"""What every rank says of itself each second, kept in the store through which the process group was formed.

The store is a TCP server of rank 0 or of its launcher. It works with any backend, while a collective is blocked, and
without the delays of a shared file system, whose clients may see a file's new content a minute late.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch.distributed as dist


class StoreLostError(Exception):
    """The store does not answer: its process, its machine or the way there is gone."""


class Heartbeats:
    """The last message of every rank. A process without a group is the only rank and talks to itself."""

    def __init__(self, rank: int, world_size: int):
        self._rank = rank
        self._world_size = world_size
        self._known: set[int] = set()  # ranks that have written something; asking for others would block
        self._alone: dict[str, Any] = {}
        # A connection for this thread alone: the main thread's may be blocked while it waits for a key.
        self._store: Any = _connection() if world_size > 1 else None

    def write(self, message: dict[str, Any]) -> None:
        """Replace this rank's message. Raises StoreLostError."""
        if self._store is None:
            self._alone = message
            return
        try:
            self._store.set(_key(self._rank), json.dumps(message))
        except RuntimeError as error:
            raise StoreLostError(address()) from error

    def read(self) -> list[dict[str, Any]]:
        """Return the message of each rank, empty for one that has not written any. Raises StoreLostError."""
        if self._store is None:
            return [self._alone]
        try:
            for rank in set(range(self._world_size)) - self._known:
                if self._store.check([_key(rank)]):
                    self._known.add(rank)
            known = sorted(self._known)
            values = self._store.multi_get([_key(rank) for rank in known]) if known else []
        except RuntimeError as error:
            raise StoreLostError(address()) from error

        messages: list[dict[str, Any]] = [{} for _ in range(self._world_size)]
        for rank, value in zip(known, values, strict=True):
            messages[rank] = json.loads(value)
        return messages


def _connection() -> Any:
    store: Any = dist.distributed_c10d._get_default_store()
    return store.clone()


def _key(rank: int) -> str:
    return f"clozeline/beats/{rank}"


def address() -> str:
    """Where the store is."""
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
