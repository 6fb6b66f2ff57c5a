"""Exchanges each rank's latest message through the key-value store with which the process group was created.

The store is a TCP server in rank 0 or in its launcher. Unlike a collective, it works with any backend, even while a
collective is blocked. Unlike a file on a shared file system, it is never stale, whereas NFS clients may see a change a
minute late.

Each rank has one key, which it overwrites with a JSON object. A call may block for hours when the store's process is
stopped or its machine is unreachable, so only one thread calls it, and nothing else depends on that thread.
"""

from __future__ import annotations

import json
import os
from typing import Any

from trainer.distributed.torch_internals import default_store


class StoreLostError(Exception):
    """The store does not answer: its process or machine is gone or unreachable."""


class Heartbeats:
    """Reads and writes the messages of all ranks.

    A single rank may have no process group, so it keeps its message in memory. Not thread-safe.
    """

    def __init__(self, rank: int, world_size: int):
        self._rank = rank
        self._world_size = world_size
        self._own_message: dict[str, Any] = {}

        # Reading a key that was never written would block until it is, so only these ranks are read.
        self._ranks_that_wrote: set[int] = set()

        # Use a separate connection, because the main thread may block the shared one while it waits for a key.
        self._store: Any = None
        if world_size > 1:
            self._store = default_store().clone()

    def write(self, message: dict[str, Any]) -> None:
        """Replace this rank's message. Raises StoreLostError."""
        if self._store is None:
            self._own_message = message
            return

        try:
            self._store.set(_key(self._rank), json.dumps(message))
        except RuntimeError as error:
            raise StoreLostError(address()) from error

    def read(self) -> list[dict[str, Any]]:
        """Return the message of each rank, empty if the rank has not written one yet. Raises StoreLostError."""
        if self._store is None:
            return [self._own_message]

        try:
            values = self._values_by_rank()
        except RuntimeError as error:
            raise StoreLostError(address()) from error

        messages: list[dict[str, Any]] = [{} for _ in range(self._world_size)]
        for rank, value in values.items():
            messages[rank] = json.loads(value)
        return messages

    def _values_by_rank(self) -> dict[int, bytes]:
        """Return the stored value of each rank that has written one."""
        for rank in set(range(self._world_size)) - self._ranks_that_wrote:
            if self._store.check([_key(rank)]):
                self._ranks_that_wrote.add(rank)
        if not self._ranks_that_wrote:
            return {}

        ranks = sorted(self._ranks_that_wrote)
        values = self._store.multi_get([_key(rank) for rank in ranks])
        return dict(zip(ranks, values, strict=True))


def address() -> str:
    """Return the store's host and port, for error messages."""
    host = os.environ.get("MASTER_ADDR", "?")
    port = os.environ.get("MASTER_PORT", "?")
    return f"{host}:{port}"


def _key(rank: int) -> str:
    return f"clozeline/heartbeats/{rank}"
