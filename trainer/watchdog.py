"""Detects dead and hung ranks. A blocked collective cannot report which rank it waits for; this thread can.

A thread of every rank says each second where its rank is and how far it has come, and looks every three seconds what
the others say. It ends its process, and the launcher ends the rest,
- when this rank waits and another one has been silent for half a minute: that one has died or was stopped;
- when no rank has come any further for `engine.timeout_seconds`.
A rank that waits while another hashes or copies a checkpoint is therefore left alone for as long as that one advances.
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
from trainer.beats import Beats, StoreLostError

BEAT = 1.0  # seconds
LOOK = 3  # beats between two looks at the other ranks
SILENCE = 30.0  # seconds without a beat after which a rank counts as dead
FOLDER = "ranks"

_active: list[Watchdog] = []


class RankLostError(ClozelineError):
    """A rank has died or does not respond, so the others cannot go on."""

    everywhere = False


def progress() -> None:
    """Say that long work, such as writing or hashing, has come further. Costs nothing where no watchdog is on."""
    for watchdog in _active:
        watchdog.progress()


class Watchdog:
    """Watches over one rank and ends its process once nobody comes any further for `timeout` seconds."""

    def __init__(self, rank: int, world_size: int, timeout: float):
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout
        self._place = "starting"
        self._advances = 0
        self._count = 0
        self._folder: Path | None = None

        self._others: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._silent = [0.0] * world_size  # seconds since each rank's last new beat
        self._waiting = 0.0  # seconds since this rank last advanced
        self._idle = 0.0  # seconds since any rank last advanced
        self._store_lost = ""

        self._beats = Beats(rank, world_size)
        self._closed = Event()
        self._beat()
        _active.append(self)
        self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Where the rank is now, as in "step 7, saving". Others learn of it with the next beat."""
        self._place = place
        self._advances += 1

    def progress(self) -> None:
        """The rank is where it was and has come further there."""
        self._advances += 1

    def show_in(self, run: str) -> None:
        """From now on also keep the rank's place in RUN/ranks/, for people to look at."""
        folder = Path(run, FOLDER)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = folder

    def close(self, left: bool = True) -> None:
        """left: this rank ends as all do, so its silence means nothing; False when it ends because of an error."""
        _active.remove(self)
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(StoreLostError):
            if left:
                self._beats.write(self._message() | {"left": True})
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._file().unlink()
                self._folder.rmdir()  # by the last one

    def lost(self) -> list[str]:
        """In words, the other ranks that say nothing for three beats, and where they were."""
        try:
            before = self._beats.read()
            self._closed.wait(3 * BEAT)
            now = self._beats.read()
        except StoreLostError as error:
            return [_words_of_store(str(error))]
        silent = [rank for rank in range(self._world_size) if rank != self._rank and now[rank] == before[rank]]
        return [f"rank {rank} ({_words(now[rank])})" for rank in silent if not now[rank].get("left")]

    def _watch(self) -> None:
        advances, last = self._advances, monotonic()
        while not self._closed.wait(BEAT):
            now = monotonic()
            # A process that was stopped for an hour must not take the hour for the others' silence.
            passed = min(now - last, 2 * BEAT)
            last = now

            self._waiting += passed
            self._idle += passed
            self._silent = [seconds + passed for seconds in self._silent]
            if self._advances != advances:
                advances = self._advances
                self._waiting = 0.0
                self._idle = 0.0

            self._beat()
            if self._count % LOOK == 0:
                self._look()
            self._judge()

    def _beat(self) -> None:
        self._count += 1
        try:
            self._beats.write(self._message())
            self._store_lost = ""
        except StoreLostError as error:
            self._store_lost = str(error)

        if self._folder is not None:
            partial = self._file().with_suffix(".partial")
            with contextlib.suppress(OSError):  # a full disk must not end a run that can continue
                partial.write_text(json.dumps(self._message()))
                partial.replace(self._file())

    def _look(self) -> None:
        try:
            messages = self._beats.read()
        except StoreLostError as error:
            self._store_lost = str(error)
            return

        for rank, message in enumerate(messages):
            if rank == self._rank or message == self._others[rank]:
                continue
            self._silent[rank] = 0.0
            if message.get("advances") != self._others[rank].get("advances"):
                self._idle = 0.0
            self._others[rank] = message

    def _judge(self) -> None:
        patience = min(SILENCE, self._timeout)
        dead = self._silent_for(patience)
        if dead and self._waiting > 2 * LOOK * BEAT:
            self._end(f"waiting for {self._waiting:.0f} s in {self._place}", dead)
        if self._idle > self._timeout:
            dead = self._silent_for(min(2 * LOOK * BEAT, self._timeout))
            self._end(f"nothing has happened for {self._timeout:g} s in {self._place}", dead)

    def _silent_for(self, seconds: float) -> list[str]:
        """In words, who has said nothing for more than so long."""
        silent = [
            rank
            for rank in range(self._world_size)
            if rank != self._rank and self._silent[rank] > seconds and not self._others[rank].get("left")
        ]
        if silent and self._store_lost:
            return [_words_of_store(self._store_lost)]  # nothing is known of the ranks
        return [f"rank {rank} ({_words(self._others[rank])})" for rank in silent]

    def _end(self, waited: str, dead: list[str]) -> None:
        why = f"No sign of life from {', '.join(dead)}." if dead else f"All ranks live: {self._all()}."
        advice = "The same command resumes from the last checkpoint; engine.timeout_seconds controls this timeout."
        print(f"clozeline: rank {self._rank}: {waited}. {why} {advice}", file=sys.stderr, flush=True)
        os._exit(1)

    def _all(self) -> str:
        own = {self._rank: self._message()}
        messages = [own.get(rank, message) for rank, message in enumerate(self._others)]
        return ", ".join(f"rank {rank} ({_words(message)})" for rank, message in enumerate(messages))

    def _message(self) -> dict[str, Any]:
        return {
            "beat": self._count,
            "advances": self._advances,
            "place": self._place,
            "process": os.getpid(),
            "host": socket.gethostname(),
        }

    def _file(self) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._rank:05d}.json"


def _words(message: dict[str, Any]) -> str:
    if not message:
        return "never reported"
    return f"process {message['process']} on {message['host']}, last seen in {message['place']}"


def _words_of_store(address: str) -> str:
    return f"the store of the ranks at {address} (rank 0, its launcher or their machine has ended, or is out of reach)"
