"""Publishes and removes checkpoints in such a way that a kill never leaves one that only looks complete.

A checkpoint is written into a folder `step-00000100.RANDOM.partial` (`begin`), gets its manifest there (`seal`), and
then its final name by a single rename (`publish_checkpoint`). What a kill leaves:

    before the rename        a `.partial` folder, which no reader opens and the next save or resume removes
    after the rename         a complete checkpoint
    during a removal         a `.partial` folder, too: `discard` renames a checkpoint before deleting its files
    during a replacement     at worst neither copy, and the run resumes from an older checkpoint. Only a damaged
                             checkpoint is ever replaced.

This module handles one process and its disk. sharded.py handles how the ranks write a checkpoint together.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from schemas import storage
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.layout import CHECKPOINTS_FOLDER, best_step, checkpoint_path, steps_saved
from trainer.checkpoint.manifest import fault_of_checkpoint

# Publishing


def begin(run: str, step: int) -> Path:
    """Create and return an empty folder for the files of a new checkpoint.

    Its name has a random part, because a rank of a killed run may still be writing into the folder of an earlier save.

    Raises StorageError.
    """
    target = checkpoint_path(run, step)
    partial = _partial_name(target)
    with write_errors_of(partial):
        partial.mkdir(parents=True)
    return partial


def publish_checkpoint(partial: Path, target: Path) -> None:
    """Rename a sealed folder to its final name. Raises StorageError.

    If a checkpoint of that step exists and verifies, it is kept and the new folder is deleted, because both hold the
    same training state. If it does not verify, it is replaced.
    """
    with write_errors_of(partial):
        if target.exists():
            if fault_of_checkpoint(target) is None:
                shutil.rmtree(partial)
                return
            discard(target)

        os.replace(partial, target)
        storage.sync_folder(str(target.parent))


# Removing


def prune(run: str, keep: int, newest: int) -> None:
    """Remove old checkpoints and what unfinished saves left behind.

    Keeps the newest `keep` complete checkpoints, everything newer than the oldest of those, and the best one.

    newest: the step that was just saved or resumed from. Checkpoints after it do not count as complete: they were
    passed over when the run began, and may be damaged even if their files have the right sizes.
    """
    # Comparing sizes is enough here: hashing every checkpoint at each save would take minutes for a large model.
    candidates = [step for step in steps_saved(run) if step <= newest]
    complete = [step for step in candidates if fault_of_checkpoint(checkpoint_path(run, step), hashes=False) is None]
    kept = complete[-keep:]
    step_to_keep = best_step(run)

    for step in steps_saved(run):
        is_old = bool(kept) and step < kept[0]
        if is_old and step != step_to_keep:
            discard(checkpoint_path(run, step))
    remove_partial(run)


def discard(path: Path) -> None:
    """Remove a checkpoint. If that fails, it stays, and the next save tries again.

    The folder is renamed first: a kill during the deletion must not leave a damaged checkpoint that looks published.
    """
    with contextlib.suppress(OSError):
        renamed = _partial_name(path)
        path.rename(renamed)
        shutil.rmtree(renamed)


def remove_partial(run: str) -> None:
    """Delete what unfinished saves and removals left behind, and the file of an unfinished rehearsal, if possible."""
    for path in Path(run, CHECKPOINTS_FOLDER).glob(f"*{storage.PARTIAL_SUFFIX}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _partial_name(path: Path) -> Path:
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{storage.PARTIAL_SUFFIX}")
