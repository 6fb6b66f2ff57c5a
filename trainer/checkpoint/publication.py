"""Publishes and removes checkpoints in such a way that a kill never leaves one that only looks complete.

A checkpoint is written into a folder step-00000100.RANDOM.partial, and gets its final name by a single rename. What a
kill leaves:

    before the rename        a partial folder, which no reader opens and the next save or start removes
    after the rename         a complete checkpoint
    during a removal         a partial folder, too: a checkpoint is renamed before its files are deleted
    during a replacement     at worst neither copy, and the run resumes from an older checkpoint. Only a damaged
                             checkpoint, or one that differs from the URL's, is ever replaced.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from schemas import storage
from trainer.checkpoint.format import (
    CHECKPOINTS_FOLDER,
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    fault_of_sizes,
    steps_saved,
    write_errors_of,
)


def publish(partial: Path, final: Path) -> None:
    """Rename a folder with a manifest to its final name. Raises StorageError.

    If a checkpoint of that step exists and verifies, it is kept and the new folder is deleted, because both hold the
    same training state. If it does not verify, it is replaced.
    """
    with write_errors_of(partial):
        if final.exists():
            if fault_of_checkpoint(final) is None:
                shutil.rmtree(partial)
                return
            discard(final)
        os.replace(partial, final)
        storage.sync_folder(str(final.parent))


def prune(run: str, keep: int, newest: int) -> None:
    """Remove old checkpoints and what unfinished saves left behind.

    Keeps the newest `keep` complete checkpoints, everything newer than the oldest of those, and the best one.

    newest: the step that was just saved or resumed from. Checkpoints after it do not count as complete: they were
    passed over when the run began, and may be damaged even if their files have the right sizes.
    """
    # Comparing sizes is enough here: hashing every checkpoint at each save would take minutes for a large model.
    saved = steps_saved(run)
    complete = [step for step in saved if step <= newest and fault_of_sizes(checkpoint_path(run, step)) is None]
    kept = complete[-keep:]
    step_to_keep = best_step(run)

    for step in saved:
        is_old = bool(kept) and step < kept[0]
        if is_old and step != step_to_keep:
            discard(checkpoint_path(run, step))
    remove_partial(run)


def discard(path: Path) -> None:
    """Remove a checkpoint. If that fails, it stays, and the next save tries again.

    The folder is renamed first: a kill during the deletion must not leave a damaged checkpoint that looks published.
    """
    with contextlib.suppress(OSError):
        renamed = partial_path(path)
        path.rename(renamed)
        shutil.rmtree(renamed)


def remove_partial(run: str) -> None:
    """Delete what unfinished saves and removals left behind, if possible."""
    for path in Path(run, CHECKPOINTS_FOLDER).glob(f"*{storage.PARTIAL_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def partial_path(path: Path) -> Path:
    """Return a path for the files of a checkpoint before they are published, or while they are removed.

    It has a random part, because a rank of a killed run may still be writing into the folder of an earlier save.
    """
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{storage.PARTIAL_SUFFIX}")
