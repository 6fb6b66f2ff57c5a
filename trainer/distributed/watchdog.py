"""Detects dead and hung ranks. A blocked collective cannot report which rank it waits for; these threads can.

One thread of every rank says each second where its rank is and how far it has come, and reads every three seconds what
the others say. It alone speaks with the store, which may be frozen or out of reach, and then it waits for hours.
Another thread judges by the clock what was last read. It ends its process, and the launcher ends the rest,
- when this rank waits and another one, or the store, has been silent for half a minute, or for a tenth of
  `engine.timeout_seconds` where that is longer: that one has died or was stopped;
- when no rank has come any further for `engine.timeout_seconds`.
A rank that waits while another hashes or copies a checkpoint is therefore left alone for as long as that one advances.
No thread touches a disk, for a shared file system may stall for minutes under ranks that are well.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from threading import Event, Thread
from time import monotonic
from typing import Any

from schemas.errors import ClozelineError
from trainer.distributed.heartbeats import Heartbeats, StoreLostError, address

BEAT = 1.0  # seconds
LOOK = 3  # beats between two looks at the other ranks
SILENCE = 30.0  # seconds without a beat after which a rank counts as dead, at least
ANSWER = 5  # beats that the end of a run waits for a store that may not answer

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

        # What the thread of the store has found, for the other thread to take.
        self._latest: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._looks = 0  # at the other ranks, which the store has answered
        self._look_always = False
        self._store_lost = ""

        # What only the judging thread changes.
        self._others: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._silent = [0.0] * world_size  # seconds since each rank's last new beat
        self._unanswered = 0.0  # seconds since the store's last answer
        self._waiting = 0.0  # seconds since this rank last advanced
        self._idle = 0.0  # seconds since any rank last advanced

        self._beats = Heartbeats(rank, world_size)
        self._closed = Event()
        self._left = False
        _active.append(self)
        self._speaking = Thread(target=self._speak, name="watchdog's store", daemon=True)
        self._speaking.start()
        self._judging = Thread(target=self._watch, name="watchdog", daemon=True)
        self._judging.start()

    def at(self, place: str) -> None:
        """Where the rank is now, as in "step 7, saving". Others learn of it with the next beat."""
        self._place = place
        self._advances += 1

    def progress(self) -> None:
        """The rank is where it was and has come further there."""
        self._advances += 1

    def close(self, left: bool = True) -> None:
        """left: this rank ends as all do, so its silence means nothing; False when it ends because of an error.

        Returns within a few seconds, also when the store does not answer.
        """
        _active.remove(self)
        self._left = left
        self._closed.set()
        self._judging.join(ANSWER * BEAT)
        self._speaking.join(ANSWER * BEAT)

    def lost(self) -> list[str]:
        """In words, the other ranks that say nothing for three beats, and where they were."""
        if self._world_size == 1:
            return []
        self._look_always = True
        before = self._next_look()
        self._closed.wait(3 * BEAT)
        now = self._next_look()
        if before is None or now is None:
            return [_words_of_store(self._store_lost or address())]
        silent = [rank for rank in range(self._world_size) if rank != self._rank and now[rank] == before[rank]]
        return [f"rank {rank} ({_words(now[rank])})" for rank in silent if not now[rank].get("left")]

    def _next_look(self) -> list[dict[str, Any]] | None:
        """What the ranks say from now on; None when the store does not answer."""
        looks = self._looks
        end = monotonic() + ANSWER * BEAT
        while self._looks == looks:
            if monotonic() > end or self._closed.wait(BEAT / 10):
                return None
        return self._latest

    def _speak(self) -> None:
        """The thread that waits for the store."""
        closed = False
        while not closed:
            try:
                self._beats.write(self._message())
                if self._look_always or self._count % LOOK == 0:
                    self._latest = self._beats.read()
                    self._looks += 1
                self._store_lost = ""
            except StoreLostError as error:
                self._store_lost = str(error)
            self._count += 1
            closed = self._closed.wait(BEAT)

        with contextlib.suppress(StoreLostError):
            if self._left:
                self._beats.write(self._message() | {"left": True})

    def _watch(self) -> None:
        """The thread that judges. It must never wait for anything but the clock."""
        advances, looks, last = self._advances, 0, monotonic()
        while not self._closed.wait(BEAT):
            now = monotonic()
            # A process that was stopped for an hour must not take the hour for the others' silence.
            passed = min(now - last, 2 * BEAT)
            last = now

            self._waiting += passed
            self._idle += passed
            self._unanswered += passed
            self._silent = [seconds + passed for seconds in self._silent]
            if self._advances != advances:
                advances = self._advances
                self._waiting = 0.0
                self._idle = 0.0

            if self._looks != looks:
                looks = self._looks
                self._unanswered = 0.0
                self._take(self._latest)
            self._judge()

    def _take(self, messages: list[dict[str, Any]]) -> None:
        """Note which ranks have beaten and advanced since the look before."""
        for rank, message in enumerate(messages):
            if rank == self._rank or message == self._others[rank]:
                continue
            self._silent[rank] = 0.0
            if message.get("advances") != self._others[rank].get("advances"):
                self._idle = 0.0
            self._others[rank] = message

    def _judge(self) -> None:
        dead = self._silent_for(silence_limit(self._timeout))
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
        if silent and (self._store_lost or self._unanswered > 2 * LOOK * BEAT):
            return [_words_of_store(self._store_lost or address())]  # nothing is known of the ranks
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


def silence_limit(timeout: float) -> float:
    """Seconds of silence after which a rank counts as dead, by engine.timeout_seconds.

    Where a run is given long timeouts, machines swap and networks stall for long, too.
    """
    return min(timeout, max(SILENCE, timeout / 10))


def _words(message: dict[str, Any]) -> str:
    if not message:
        return "never reported"
    return f"process {message['process']} on {message['host']}, last seen in {message['place']}"


def _words_of_store(place: str) -> str:
    why = "rank 0, its launcher or their machine has ended, was stopped, or is out of reach"
    return f"the store of the ranks at {place} ({why})"
