"""Detects dead and hung ranks. A blocked collective cannot report which rank it waits for; these threads can.

Every rank runs a watchdog: two daemon threads next to the main thread, which trains.

    main thread         calls `at` and `progress`, which only set a place and count up. It may block in a collective.
    heartbeat thread    writes this rank's message and reads the others' every two seconds, through the key-value store
                        with which the process group was created. That works with any backend while a collective is
                        blocked, and is never stale as a shared file system may be. Only this thread talks to the store,
                        and it may block for hours if the store does not answer.
    judge thread        checks the clock and what the heartbeat thread read last. It waits for nothing but the clock,
                        and only this thread ends the process.

The threads share plain attributes without locks, because assignments are atomic in Python. Each attribute is written by
one kind of thread only, and a shared list is replaced as a whole, never changed. Threads that copy files call
`progress`, too, and may lose each other's increments of the count, but it only matters whether the count changed.

The judge thread ends its process, and the launcher then ends the other ranks,
- when this rank has not advanced for FEW_BEATS, and another rank or the store has been silent for half a minute, or for
  a tenth of `engine.timeout_seconds` if that is longer, and at most for `engine.timeout_seconds`: it has died or was
  stopped;
- when no rank has advanced for `engine.timeout_seconds`;
- when a thread of this rank works in the background, as a save does while training continues, and that work has not
  advanced on any rank for `engine.timeout_seconds`.

So a rank that waits while another one hashes or copies a checkpoint is left alone as long as that one advances.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from threading import Event, Thread, local
from time import monotonic
from typing import Any, NoReturn

import torch.distributed as dist

from schemas.errors import ClozelineError
from trainer.distributed.torch_internals import default_store
from trainer.logs import log_file, show_place

BEAT = 2.0
"""Seconds between two heartbeats, and between two runs of the judge thread."""
FEW_BEATS = 3
"""After this many heartbeats, every healthy rank has been read again and a healthy store has answered."""
HEARTBEAT_TIMEOUT = 30.0
"""Minimum number of seconds without a heartbeat after which a rank counts as dead; see `silence_limit`."""
LOG_SECONDS = 1.0
"""How long a process that ends waits for the disk of its log."""

_active: list[Watchdog] = []

_this_thread = local()


class RankLostError(ClozelineError):
    """A rank has died or does not respond, so the others cannot continue."""

    everywhere = False


def progress() -> None:
    """Report that long work, such as writing or hashing, has advanced. Does nothing if no watchdog is running."""
    works_in_background = getattr(_this_thread, "works_in_background", False)
    for watchdog in _active:
        watchdog.progress()
        if works_in_background:
            watchdog.background.advances += 1


@contextlib.contextmanager
def working_in_background(place: str) -> Iterator[None]:
    """Let the watchdog see whether this thread's work advances. place: what it does, as in "saving step 7"."""
    _this_thread.works_in_background = True
    for watchdog in _active:
        watchdog.background.begin(place)
    try:
        yield
    finally:
        _this_thread.works_in_background = False
        for watchdog in _active:
            watchdog.background.place = ""


class Work:
    """What a thread of this rank does, and for how many seconds it has not advanced: on this rank, and on any.

    The working thread writes `place`, which is empty while there is no work, and `advances`. The judge thread writes
    the rest.
    """

    def __init__(self, place: str = ""):
        self.place = place
        self.advances = 0
        self.idle_here = 0.0
        self.idle_everywhere = 0.0
        self._judged_advances = 0

    def begin(self, place: str) -> None:
        """Set what is being done."""
        self.advances += 1
        self.place = place

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass, and note whether this rank's work has advanced in that time or there is none."""
        self.idle_here += seconds
        self.idle_everywhere += seconds
        if not self.place or self.advances != self._judged_advances:
            self._judged_advances = self.advances
            self.idle_here = self.idle_everywhere = 0.0


class Watchdog:
    """Watches over this rank and ends its process when a rank it waits for is dead, or no rank advances."""

    def __init__(self, rank: int, world_size: int, timeout: float):
        """Start both threads. timeout: engine.timeout_seconds."""
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout

        # Written by the working threads.
        self._main = Work("starting")
        self.background = Work()
        self._left = False
        self._closed = Event()

        # Written by the heartbeat thread. Reading a key that was never written would block until it is, so only ranks
        # that have written theirs are read.
        self._store = open_store(world_size)
        self._ranks_that_wrote: set[int] = set()
        self._beats = 0
        self._latest: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._reads = 0

        # Written by the judge thread: each rank's last message, and seconds without a sign of life.
        self._messages: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._silence = [0.0] * world_size
        self._silence_of_store = 0.0

        _active.append(self)
        self._heartbeat_thread = Thread(target=self._beat_until_closed, name="watchdog's store", daemon=True)
        self._heartbeat_thread.start()
        self._judge_thread = Thread(target=self._judge_until_closed, name="watchdog", daemon=True)
        self._judge_thread.start()

    # ---- Main thread ----

    def at(self, place: str) -> None:
        """Set what this rank is doing, as in "step 7, saving". Other ranks see it with the next heartbeat.

        A terminal shows it, too.
        """
        self._main.begin(place)
        show_place(place)

    def progress(self) -> None:
        """Report that this rank has advanced within the current place."""
        self._main.advances += 1

    def close(self, left: bool = True) -> None:
        """Stop both threads. Returns within a few seconds, even if the store does not answer.

        left: True if all ranks end now, so the others ignore this rank's silence; False if it ends by an error.
        """
        _active.remove(self)
        self._left = left
        self._closed.set()
        self._judge_thread.join(FEW_BEATS * BEAT)
        self._heartbeat_thread.join(FEW_BEATS * BEAT)

    def lost(self) -> list[str]:
        """Wait for two heartbeats and return a description of each other rank that sent none in that time.

        If the store does not answer, returns a description of the store instead.
        """
        if self._world_size == 1:
            return []

        before = self._next_read()
        self._closed.wait(2 * BEAT)
        after = self._next_read()
        if before is None or after is None:
            return [describe_store()]

        others = [rank for rank in range(self._world_size) if rank != self._rank]
        silent = [rank for rank in others if after[rank] == before[rank] and not after[rank].get("left")]
        return [describe(rank, after[rank]) for rank in silent]

    def _next_read(self) -> list[dict[str, Any]] | None:
        """Wait for the heartbeat thread's next read and return it; None if the store does not answer."""
        reads_before = self._reads
        deadline = monotonic() + FEW_BEATS * BEAT
        while self._reads == reads_before:
            if monotonic() > deadline or self._closed.wait(BEAT / 10):
                return None
        return self._latest

    # ---- Heartbeat thread ----

    def _beat_until_closed(self) -> None:
        closed = False
        while not closed:
            # A store that does not answer raises RuntimeError. The judge thread sees that nothing more is read.
            with contextlib.suppress(RuntimeError):
                self._write(self._message())
                # Increment _reads last, so that a thread that sees the new count also sees the new messages.
                self._latest = self._read()
                self._reads += 1
            self._beats += 1
            closed = self._closed.wait(BEAT)

        if self._left:
            with contextlib.suppress(RuntimeError):
                self._write(self._message() | {"left": True})

    def _message(self) -> dict[str, Any]:
        return {
            "beat": self._beats,
            "place": self._main.place,
            "advances": self._main.advances,
            "background": self.background.place,
            "background_advances": self.background.advances,
            "process": os.getpid(),
            "host": socket.gethostname(),
        }

    def _write(self, message: dict[str, Any]) -> None:
        self._store.set(_key(self._rank), json.dumps(message))

    def _read(self) -> list[dict[str, Any]]:
        """Return the message of each rank, empty if the rank has not written one yet."""
        for rank in set(range(self._world_size)) - self._ranks_that_wrote:
            if self._store.check([_key(rank)]):
                self._ranks_that_wrote.add(rank)

        ranks = sorted(self._ranks_that_wrote)
        values = dict(zip(ranks, self._store.multi_get([_key(rank) for rank in ranks]), strict=True))
        return [json.loads(values.get(rank, b"{}")) for rank in range(self._world_size)]

    # ---- Judge thread ----

    def _judge_until_closed(self) -> None:
        last_time = monotonic()
        judged_reads = 0

        while not self._closed.wait(BEAT):
            # If this process itself was stopped for an hour, that hour must not count as the others' silence.
            now = monotonic()
            self._pass_time(min(now - last_time, 2 * BEAT))
            last_time = now

            if self._reads != judged_reads:
                judged_reads = self._reads
                self._note_messages(self._latest)

            self._judge()

    def _pass_time(self, seconds: float) -> None:
        """Let `seconds` pass without a sign of life from the other ranks."""
        self._silence_of_store += seconds
        self._silence = [silence + seconds for silence in self._silence]
        self._main.pass_time(seconds)
        self.background.pass_time(seconds)

    def _note_messages(self, messages: list[dict[str, Any]]) -> None:
        """Note which ranks sent a heartbeat since the last read, and which of them advanced."""
        self._silence_of_store = 0.0
        for rank, message in enumerate(messages):
            before = self._messages[rank]
            if rank == self._rank or message == before:
                continue
            self._silence[rank] = 0.0
            if message.get("advances") != before.get("advances"):
                self._main.idle_everywhere = 0.0
            if message.get("background_advances") != before.get("background_advances"):
                self.background.idle_everywhere = 0.0
        self._messages = messages

    def _judge(self) -> None:
        """End the process if a rank that this one waits for is dead, or if no rank advances."""
        few_beats = FEW_BEATS * BEAT
        dead = self._silent_for(silence_limit(self._timeout))
        if dead and self._main.idle_here > few_beats:
            self._end(f"waiting for {self._main.idle_here:.0f} s in {self._main.place}", dead)

        places = {self._main: self._main.place, self.background: f"the background: {self.background.place}"}
        for work, place in places.items():
            if work.place and work.idle_everywhere > self._timeout:
                silent = self._silent_for(min(few_beats, self._timeout))
                self._end(f"nothing has happened for {self._timeout:g} s in {place}", silent)

    def _silent_for(self, seconds: float) -> list[str]:
        """Describe each other rank that has sent no heartbeat for longer than `seconds` and has not left."""
        silent = []
        for rank, message in enumerate(self._messages):
            if rank != self._rank and self._silence[rank] > seconds and not message.get("left"):
                silent.append(describe(rank, message))

        # Without the store nothing is known about the ranks.
        if silent and self._silence_of_store > FEW_BEATS * BEAT:
            return [describe_store()]
        return silent

    def _end(self, waited: str, dead: list[str]) -> NoReturn:
        """Print the reason and end the process; the main thread is blocked where no exception could reach it."""
        messages = list(self._messages)
        messages[self._rank] = self._message()
        everyone = ", ".join(describe(rank, message) for rank, message in enumerate(messages))
        reason = f"No sign of life from {', '.join(dead)}." if dead else f"All ranks are alive: {everyone}."
        advice = (
            "The same command resumes from the last checkpoint; in a pretraining, engine.timeout_seconds controls this "
            "timeout."
        )

        # Not with the logger, because the blocked thread may hold its lock. Neither a closed stderr nor a disk that
        # does not answer must prevent the exit.
        line = f"clozeline: rank {self._rank}: {waited}. {reason} {advice}"
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
        note = Thread(target=log_file.add, args=(line,), daemon=True)
        note.start()
        note.join(LOG_SECONDS)
        os._exit(1)


def silence_limit(timeout: float) -> float:
    """Return the seconds of silence after which a rank counts as dead, given engine.timeout_seconds.

    It grows with the timeout, because a run that needs a long timeout has machines that swap or networks that stall.
    """
    return min(timeout, max(HEARTBEAT_TIMEOUT, timeout / 10))


def open_store(world_size: int) -> Any:
    """Return a separate connection to the process group's store, because the main thread may block the shared one.

    A single rank may have no process group, so its store is in memory.
    """
    return default_store().clone() if world_size > 1 else dist.HashStore()


def address() -> str:
    """Return the store's host and port, for messages."""
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"


def _key(rank: int) -> str:
    return f"clozeline/heartbeats/{rank}"


def describe(rank: int, message: dict[str, Any]) -> str:
    """Return a readable description of a rank and of where it was according to its last message."""
    if not message:
        return f"rank {rank} (never reported)"
    work = f" and {message['background']} in the background" if message["background"] else ""
    return f"rank {rank} (process {message['process']} on {message['host']}, last seen in {message['place']}{work})"


def describe_store() -> str:
    """Return a readable description of a store that does not answer."""
    reason = "rank 0, its launcher or their machine has ended, was stopped, or is out of reach"
    return f"the store of the ranks at {address()} ({reason})"
