"""Keeps a run going if something that only displays it fails: report, model card, TensorBoard, other monitors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainer.logs import logger


@contextlib.contextmanager
def keep_running(what: str) -> Iterator[None]:
    """Log one line instead of raising an error if the block fails to write `what`.

    Nothing is lost, because metrics.jsonl and the checkpoints hold everything that is displayed elsewhere.
    """
    try:
        yield
    except Exception as error:
        logger.info(
            "%s could not be written (%s: %s). Nothing else is affected.",
            what,
            type(error).__name__,
            error,
        )
