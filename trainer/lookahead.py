"""The batch of the step in progress, and the one after it, whose counts a step needs before it begins."""

from __future__ import annotations

from schemas.errors import ClozelineError
from trainer.data.loader import Stream
from trainer.models.batch import PackedBatch


class Lookahead:
    """Reads the batches of a stream one step early.

    A batch that cannot be read is an error of its own step, not of the one before: that one ends, and may be saved.
    """

    def __init__(self, stream: Stream):
        self._stream = stream
        self._number: int | None = None
        self._batch: list[PackedBatch] = []
        self._error: ClozelineError | None = None

    def look(self, number: int) -> list[PackedBatch]:
        """Return the micro-batches of a later step, counted from 0; none if they cannot be read."""
        self._number = number
        self._batch = []
        self._error = None
        try:
            self._batch = self._stream.batch(number)
        except ClozelineError as error:
            self._error = error
        return self._batch

    def batch(self, number: int) -> list[PackedBatch]:
        """Return the micro-batches of a step. Raises the error that was met when they were looked for."""
        if self._number != number:
            self.look(number)

        batch = self._batch
        error = self._error
        self._number = None
        self._batch = []
        if error is not None:
            raise error
        return batch
