"""What a rank knows about whether the others are alive: their last messages, and the seconds since each kind of sign.

Only the judge thread of the watchdog changes it. That thread also says how much time passes, instead of a clock: if
this process itself was stopped for an hour, that hour must not count as the others' silence.
"""

from __future__ import annotations

from typing import Any

from trainer.distributed.background_work import PLACE, BackgroundWork


class SignsOfLife:
    """The latest message of each rank, and how many seconds ago the ranks and the store last showed signs of life.

    since_own_progress: since this rank has advanced. since_any_progress: since any rank has. since_store_answer: since
    the store was read.
    """

    def __init__(self, rank: int, world_size: int, background: BackgroundWork):
        self._rank = rank
        self._background = background
        self._since_heartbeat = [0.0] * world_size
        self.messages: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self.since_own_progress = 0.0
        self.since_any_progress = 0.0
        self.since_store_answer = 0.0

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass without a sign of life."""
        self.since_own_progress += seconds
        self.since_any_progress += seconds
        self.since_store_answer += seconds
        self._since_heartbeat = [since + seconds for since in self._since_heartbeat]
        self._background.pass_time(seconds)

    def note_own_progress(self) -> None:
        """Note that this rank has advanced."""
        self.since_own_progress = 0.0
        self.since_any_progress = 0.0

    def note_messages(self, messages: list[dict[str, Any]]) -> None:
        """Note the messages read from the store: which ranks sent a heartbeat since the last read, which advanced."""
        self.since_store_answer = 0.0
        for rank, message in enumerate(messages):
            before = self.messages[rank]
            if rank == self._rank or message == before:
                continue
            self._since_heartbeat[rank] = 0.0
            if message.get("advances") != before.get("advances"):
                self.since_any_progress = 0.0
            self._background.note(message, before)
            self.messages[rank] = message

    def silent_for(self, seconds: float) -> list[int]:
        """Return each other rank that has sent no heartbeat for longer than `seconds`, and has not left."""
        silent = []
        for rank, since in enumerate(self._since_heartbeat):
            if rank != self._rank and since > seconds and not self.messages[rank].get("left"):
                silent.append(rank)
        return silent


def described(rank: int, message: dict[str, Any]) -> str:
    """Return a readable description of a rank and of where it was according to its last message."""
    if not message:
        return f"rank {rank} (never reported)"
    work = f" and {message[PLACE]} in the background" if PLACE in message else ""
    return f"rank {rank} (process {message['process']} on {message['host']}, last seen in {message['place']}{work})"
