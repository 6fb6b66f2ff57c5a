"""Who has died and who hangs. A rank that waits for another waits for ever, and cannot tell for whom: this tells it.

A thread of every rank writes every second where its rank is into RUN/ranks/. When nothing has happened in its own rank
for too long, it looks which others have stopped writing, says so, and ends its process; the launcher ends the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

from schemas.errors import ClozelineError

BEAT = 1.0  # seconds
FOLDER = "ranks"


class RankLostError(ClozelineError):
    """A rank has died or does not respond, so the others cannot go on."""

    everywhere = False


class Watchdog:
    """Tells of one rank, and ends it once nothing has happened for `timeout` seconds."""

    def __init__(self, run: str, rank: int, world_size: int, timeout: float):
        self._folder, self._rank, self._world_size, self._timeout = Path(run, FOLDER), rank, world_size, timeout
        self._place, self._since, self._beats = "starting", monotonic(), 0
        self._closed = Event()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Where the rank is now, as in "step 7, saving". Others learn of it with the next beat."""
        self._place, self._since = place, monotonic()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._file(self._rank).unlink()
            self._folder.rmdir()  # by the last one

    def lost(self) -> list[str]:
        """In words, the ranks that have written nothing for three beats, and where they were."""
        before = self._told()
        self._closed.wait(3 * BEAT)
        now = self._told()
        silent = [rank for rank in range(self._world_size) if rank != self._rank and now[rank] == before[rank]]
        return [f"rank {rank} ({self._words(now[rank])})" for rank in silent]

    def _watch(self) -> None:
        while not self._closed.wait(BEAT):
            self._beat()
            if monotonic() - self._since > self._timeout:
                self._end()

    def _beat(self) -> None:
        self._beats += 1
        told = {"beat": self._beats, "place": self._place, "process": os.getpid(), "host": socket.gethostname()}
        partial = self._file(self._rank).with_suffix(".partial")
        with contextlib.suppress(OSError):  # a full disk must not end a run that can go on
            partial.write_text(json.dumps(told))
            partial.replace(self._file(self._rank))

    def _end(self) -> None:
        waited = f"nothing has happened for {self._timeout:g} s in {self._place}"
        told = self._told()
        lost = self._lost_while_beating()
        why = f"No sign of life from {', '.join(lost)}." if lost else f"All ranks live: {self._all(told)}."
        advice = "The same command goes on from the last checkpoint; engine.timeout_seconds sets the patience."
        print(f"clozeline: rank {self._rank}: {waited}. {why} {advice}", file=sys.stderr, flush=True)
        os._exit(1)

    def _lost_while_beating(self) -> list[str]:
        """Others look at this rank's beats too."""
        found: list[list[str]] = []
        look = Thread(target=lambda: found.append(self.lost()))
        look.start()
        while look.is_alive():
            self._beat()
            look.join(BEAT)
        return found[0]

    def _told(self) -> list[dict[str, Any]]:
        return [_read(self._file(rank)) for rank in range(self._world_size)]

    def _all(self, told: list[dict[str, Any]]) -> str:
        return ", ".join(f"rank {rank} ({self._words(words)})" for rank, words in enumerate(told))

    @staticmethod
    def _words(told: dict[str, Any]) -> str:
        if not told:
            return "never heard of"
        return f"process {told['process']} on {told['host']}, last seen in {told['place']}"

    def _file(self, rank: int) -> Path:
        return self._folder / f"{rank:05d}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
