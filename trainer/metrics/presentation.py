"""What shows a run may fail without ending it: report, model card, TensorBoard, other monitors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def keep_running(what: str) -> Iterator[None]:
    """Print one line instead of raising when `what` cannot be made. metrics.jsonl and checkpoints hold the truth."""
    try:
        yield
    except Exception as error:
        print(f"{what} could not be written ({type(error).__name__}: {error}). Nothing else is affected.", flush=True)
