"""Reads each batch one step early, because a step's counts are summed over all ranks during the step before it."""

from __future__ import annotations

from schemas.errors import ClozelineError
from trainer.data.loader import Stream
from trainer.models.batch import PackedBatch


class Lookahead:
    """Reads the batches of a stream one step early.

    If a batch cannot be read, the error is raised in its own step, so the step before it can complete and be saved.
    """

    def __init__(self, stream: Stream):
        self._stream = stream
        self._number: int | None = None
        self._batch: list[PackedBatch] = []
        self._error: ClozelineError | None = None

    def look(self, number: int) -> list[PackedBatch]:
        """Read batch `number`, counted from 0, and return its micro-batches; an empty list if it cannot be read."""
        self._number = number
        self._batch = []
        self._error = None
        try:
            self._batch = self._stream.batch(number)
        except ClozelineError as error:
            self._error = error
        return self._batch

    def batch(self, number: int) -> list[PackedBatch]:
        """Return the micro-batches of batch `number`. Raises the error with which reading it failed."""
        if self._number != number:
            self.look(number)

        batch = self._batch
        error = self._error
        self._number = None
        self._batch = []
        if error is not None:
            raise error
        return batch
