"""Writes, publishes and removes checkpoints, so that a kill never leaves one that only looks complete.

    1. Rank 0 names a partial folder, step-00000100.RANDOM.partial. Its name has a random part, because a rank of a
       killed run may still be writing into the folder of an earlier save.
    2. Each rank writes and syncs its file there, and hashes what it writes.
    3. Rank 0 writes state.json and the manifest, and renames the folder to its final name. From that rename on, the
       checkpoint exists.

Where run.output is a URL, each rank then uploads its file, and rank 0 the manifest (remote.py). Machines that do not
share a disk hold no whole checkpoint, so there the folder keeps its partial name until it is uploaded.

An error on one rank is raised on all of them. What a kill leaves:

    before the rename        a partial folder, which no reader opens and the next save or start removes
    after the rename         a complete checkpoint
    during a removal         a partial folder, too: a checkpoint is renamed before its files are deleted
    during a replacement     at worst neither copy, and the run resumes from an older checkpoint. Only a damaged
                             checkpoint, or one that differs from the URL's, is ever replaced.

What is written is a snapshot (snapshot.py), so a thread may do all this while training continues (background.py).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.checkpoint.format import (
    CHECKPOINTS_FOLDER,
    MANIFEST,
    STATE,
    ManifestEntry,
    best_step,
    checkpoint_path,
    describe,
    fault_of_checkpoint,
    fault_of_sizes,
    manifest_of,
    steps_saved,
    write_errors_of,
)
from trainer.checkpoint.rank_files import rank_file, write_rank_file
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0

if TYPE_CHECKING:  # exports remove and publish checkpoints without DeepSpeed
    from trainer.checkpoint.run_folder import NodeFolders
    from trainer.checkpoint.snapshot import Snapshot


def write_snapshot(snapshot: Snapshot, run: str, folders: NodeFolders) -> Path:
    """Write a checkpoint and return its folder. A collective call. run: the local folder of the run.

    If all ranks share a disk, it is then published. Otherwise each machine has the files of its ranks in a partial
    folder, which is to be uploaded.

    Raises StorageError on every rank if one of them cannot write. Earlier checkpoints are not affected.
    """
    step = snapshot.state.step
    rank = dist.get_rank()
    leads = folders.leads(rank)
    final = checkpoint_path(run, step)

    # Machines may have their folders at different paths, so only the name is the same on all ranks.
    partial = final.with_name(run_on_rank_0(lambda: partial_path(final).name))
    try:
        run_on_all_ranks(lambda: _make(partial) if leads else None)
        entries = run_on_all_ranks(lambda: write_rank_file(partial / rank_file(rank), snapshot.slices, snapshot.shapes))
        run_on_rank_0(lambda: _seal(partial, snapshot, entries))
        if folders.several:
            return partial
        run_on_rank_0(lambda: publish(partial, final))
        return final
    except ClozelineError:
        run_on_all_ranks(lambda: remove_partial(run) if leads else None)
        raise


def _make(partial: Path) -> None:
    with write_errors_of(partial):
        partial.mkdir(parents=True)


def _seal(partial: Path, snapshot: Snapshot, entries: list[ManifestEntry]) -> None:
    """Write state.json and the manifest into a folder with the ranks' files. Raises StorageError."""
    with write_errors_of(partial):
        storage.publish(str(partial / STATE), snapshot.state.model_dump_json().encode())
        storage.publish(str(partial / MANIFEST), manifest_of([*entries, describe(partial / STATE)]))


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
    """Return a path for the files of a checkpoint before they are published, or while they are removed."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{storage.PARTIAL_SUFFIX}")
