"""Writes a checkpoint: each rank a file with the elements that it holds, and rank 0 the manifest.

    1. Rank 0 names a partial folder, step-00000100.RANDOM.partial. Its name has a random part, because a rank of a
       killed run may still be writing into the folder of an earlier save.
    2. Each rank writes and syncs its file there, and hashes what it writes.
    3. Rank 0 writes state.json and the manifest, and renames the folder to its final name. From that rename on, the
       checkpoint exists.

Where run.output is a URL, each rank then uploads its file, and rank 0 the manifest (remote.py). Machines that do not
share a disk hold no whole checkpoint, so there the folder keeps its partial name until it is uploaded.

An error on one rank is raised on all of them. A kill leaves the earlier checkpoints and a partial folder that no reader
opens and the next save or start removes.

What is written is a snapshot (snapshot.py), so a thread may do all this while training continues (background.py).
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.checkpoint.format import (
    MANIFEST,
    STATE,
    ManifestEntry,
    checkpoint_path,
    describe,
    manifest_of,
    write_errors_of,
)
from trainer.checkpoint.publication import partial_path, publish, remove_partial
from trainer.checkpoint.rank_files import rank_file, write_rank_file
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.snapshot import Snapshot
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0


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
