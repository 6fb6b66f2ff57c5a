"""Saves and finds checkpoints by all ranks together. Each rank writes only the elements that it holds.

A checkpoint is saved in four steps. Each is collective, and an error on one rank is raised on all of them:

    1. Rank 0 creates a partial folder with state.json, evaluation.json and the tensor files, which have their header
       and full size, but no elements yet.
    2. All ranks write their float32 elements at their offsets and sync them   (tensor_writes.py)
    3. All ranks read the files back, compare and hash them                    (verification.py)
    4. Rank 0 writes the manifest, renames the folder to its final name and removes old checkpoints   (publication.py)

A kill before the rename in step 4 leaves the earlier checkpoints and a partial folder that is never read. After an
error, the partial folder is deleted. After the rename, the checkpoint is complete.

What is written is a snapshot (snapshot.py). The four steps need nothing else from the engine, so a thread may take them
while training continues (background.py).

Loading is in loading.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, StorageError
from trainer.checkpoint import layout, publication
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.layout import STATE
from trainer.checkpoint.manifest import Entry, seal
from trainer.checkpoint.node_folders import NodeFolders
from trainer.checkpoint.part_writes import save_parts
from trainer.checkpoint.snapshot import Snapshot, snapshot_of
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.checkpoint.tensor_writes import create_tensor_files, write_tensor_files
from trainer.checkpoint.verification import check_files, fault_found_together, merged_entries
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0


def save_checkpoint(
    engine: DeepSpeedEngine, run: str, state: TrainingState, keep: int, metrics: dict[str, Any]
) -> None:
    """Write, check and publish a checkpoint, then remove all but the newest `keep` and the best. A collective call.

    All ranks must see the same folder. run: the local folder of the run. metrics: of the evaluation of these weights,
    or empty.

    Raises StorageError on every rank if one of them cannot write, or reads back other bytes than were written. Earlier
    checkpoints are not affected.
    """
    write_snapshot(snapshot_of(engine, state, metrics), run, keep)


def write_snapshot(snapshot: Snapshot, run: str, keep: int, folders: NodeFolders | None = None) -> None:
    """Write, check and publish a snapshot, as `save_checkpoint` does. A collective call.

    folders: which ranks see the same folder; None if all do. If nodes have separate folders, each writes its part
    there, to be uploaded (parts.py).
    """
    nodes = nodes_of_ranks()

    try:
        partial = run_on_rank_0(lambda: _begin(run, snapshot))
        if folders is not None and folders.several:
            partial = layout.checkpoint_path(run, snapshot.state.step).with_name(partial.name)
            leads_other = folders.leads(dist.get_rank()) and dist.get_rank() > 0
            run_on_all_ranks(lambda: create_tensor_files(partial, snapshot) if leads_other else None)
            written = write_tensor_files(partial, snapshot, folders.of_ranks)
            save_parts(partial, run, written, folders, keep)
            return

        written = write_tensor_files(partial, snapshot, nodes)

        # Only rank 0 lists the folder: on a network file system, another machine's view may be seconds old.
        names = run_on_rank_0(lambda: _names_in(partial))
        shares = run_on_all_ranks(lambda: check_files(partial, names, written, nodes))
        entries = merged_entries(shares, written)
        run_on_rank_0(lambda: _publish(partial, run, snapshot.state.step, entries, keep))
    except ClozelineError:
        leads = dist.get_rank() == 0 if folders is None else folders.leads(dist.get_rank())
        run_on_all_ranks(lambda: publication.remove_partial(run) if leads else None)
        raise


def find_checkpoint(run: str, folders: NodeFolders | None = None) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if there is no checkpoint. A collective call.

    All ranks take the same one, from the list that rank 0 sees. The ranks that see rank 0's folder verify it together.
    folders: which ranks see the same folder; None if all do.

    Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    folder_of_rank = [0] * dist.get_world_size() if folders is None else folders.of_ranks
    readers = [rank for rank, folder in enumerate(folder_of_rank) if folder == folder_of_rank[0]]

    saved = run_on_rank_0(lambda: layout.saved_checkpoints(run))
    try:
        newest = layout.newest_sound(run, saved, lambda path: fault_found_together(path, readers))
    except CheckpointError as error:
        error.everywhere = True
        raise
    if newest is None:
        return None

    state = run_on_rank_0(lambda: layout.read_state(newest.path))
    # Nodes may have their folders at different paths, so each rank builds its own path.
    return FoundCheckpoint(layout.checkpoint_path(run, state.step), state, newest.faults)


# Saving


def _begin(run: str, snapshot: Snapshot) -> Path:
    """Create the partial folder with everything but the elements of the tensors. Only rank 0 calls this."""
    partial = publication.begin(run, snapshot.state.step)

    create_tensor_files(partial, snapshot)
    with write_errors_of(partial):
        storage.publish(str(partial / STATE), snapshot.state.model_dump_json().encode())

    if snapshot.metrics:
        layout.add_evaluation(partial, snapshot.metrics)
    return partial


def _names_in(partial: Path) -> list[str]:
    """Return the names of a checkpoint's files, except hidden ones, which a failed write may have left."""
    names = [path.name for path in partial.iterdir() if path.is_file()]
    return sorted(name for name in names if not name.startswith("."))


def _publish(partial: Path, run: str, step: int, entries: list[Entry], keep: int) -> None:
    """Write the manifest, publish the checkpoint and remove old ones.

    Raises StorageError if the folder's files are not exactly those that the ranks checked.
    """
    names = _names_in(partial)
    checked = sorted(entry["path"] for entry in entries)
    if checked != names:
        raise StorageError(f"{partial} holds {', '.join(names)}, but the ranks have checked {', '.join(checked)}.")

    seal(partial, entries)
    publication.publish_checkpoint(partial, layout.checkpoint_path(run, step))
    publication.prune(run, keep, step)
