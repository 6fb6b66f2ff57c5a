"""Work that a thread does while the main thread trains, as the watchdog sees it: whether any rank's still advances.

Training advances whether or not a save in the background does, so the watchdog needs a count of its own for that. A
rank whose thread waits for the thread of another rank is left alone as long as that one advances.

Written by the working thread: the place and the count. Everything else belongs to the watchdog's judge thread.
"""

from __future__ import annotations

from typing import Any

PLACE = "background"
COUNT = "background_advances"
"""The keys of a rank's message to the others; both are absent where no work is done."""


class BackgroundWork:
    """The background work of this rank, and for how long that of no rank has advanced."""

    def __init__(self) -> None:
        self._place = ""
        self._advances = 0
        self._judged_advances = 0
        self._since_any_progress = 0.0

    # Working thread

    def begin(self, place: str) -> None:
        """Set what is being done, as in "saving step 7"."""
        self._advances += 1
        self._place = place

    def advance(self) -> None:
        self._advances += 1

    def end(self) -> None:
        self._place = ""

    # Watchdog

    @property
    def place(self) -> str:
        """What is being done; empty while there is no work."""
        return self._place

    def message(self) -> dict[str, Any]:
        """Return what the other ranks are told."""
        return {PLACE: self._place, COUNT: self._advances} if self._place else {}

    def note(self, message: dict[str, Any], before: dict[str, Any]) -> None:
        """Note another rank's message after the one before it."""
        if message.get(COUNT) != before.get(COUNT):
            self._since_any_progress = 0.0

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and note whether this rank's work has advanced meanwhile."""
        self._since_any_progress += seconds
        if not self._place or self._advances != self._judged_advances:
            self._judged_advances = self._advances
            self._since_any_progress = 0.0

    def is_stuck(self, seconds: float) -> bool:
        """Return whether this rank has work, and no rank's has advanced for `seconds`."""
        return bool(self._place) and self._since_any_progress > seconds
