"""Which tasks a linear probe can be fitted to."""

from __future__ import annotations

from schemas.errors import UsageError
from trainer.finetune.task import Task

KINDS = ("sentence", "pair", "tags")


def check_probed(task: Task) -> None:
    """Raise UsageError if a task cannot be probed."""
    if task.kind not in KINDS or task.is_regression:
        what = "whose labels are numbers" if task.is_regression else f"of kind {task.kind!r}"
        raise UsageError(
            f"--probe: {task.name} is a task {what}. A linear probe needs classes of texts or of words: one of the "
            f"kinds {', '.join(KINDS)}."
        )
