"""Tracks for the watchdog whether background work, such as a save during training, still advances on any rank.

Training advances whether or not a save in the background does, so the watchdog needs a separate count for that. A rank
whose background thread waits for that of another rank is left alone as long as the other one advances.

The working thread writes the place and the count. Everything else belongs to the watchdog's judge thread.
"""

from __future__ import annotations

from typing import Any

PLACE = "background"
COUNT = "background_advances"
"""The keys in a rank's message to the others; both are absent while no work is done."""


class BackgroundWork:
    """The background work of this rank, and how long no rank's background work has advanced."""

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
        """Note that the work has advanced."""
        self._advances += 1

    def end(self) -> None:
        """Note that the work is done."""
        self._place = ""

    # Watchdog

    @property
    def place(self) -> str:
        """What is being done; empty while there is no work."""
        return self._place

    def message(self) -> dict[str, Any]:
        """Return this rank's part of the message to the other ranks."""
        return {PLACE: self._place, COUNT: self._advances} if self._place else {}

    def note(self, message: dict[str, Any], before: dict[str, Any]) -> None:
        """Compare another rank's message with its previous one, and note if that rank's work has advanced."""
        if message.get(COUNT) != before.get(COUNT):
            self._since_any_progress = 0.0

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass, and note whether this rank's work has advanced in that time or there is none."""
        self._since_any_progress += seconds
        if not self._place or self._advances != self._judged_advances:
            self._judged_advances = self._advances
            self._since_any_progress = 0.0

    def is_stuck(self, seconds: float) -> bool:
        """Return whether this rank has background work, and no rank's has advanced for `seconds`."""
        return bool(self._place) and self._since_any_progress > seconds
