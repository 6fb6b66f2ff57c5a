"""Publishes checkpoint parts that an earlier run could not upload because the store was unreachable when it ended.

The parts of its last checkpoints are then still on the nodes' disks. When a run begins, rank 0 collects which node has
which parts, and chooses the checkpoints that are newer than the URL's and all of whose parts are either on their node's
disk or at the URL. The nodes upload these and remove all others. Nodes must have the same numbers as before, because a
part belongs to a node by its number.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from schemas import storage
from schemas.errors import CheckpointError
from trainer.checkpoint.layout import steps_saved
from trainer.checkpoint.parts import PARTS_FOLDER, is_of_node, parts_of_node, remove_parts, step_of_parts
from trainer.checkpoint.remote_parts import RemotePartOfRun
from trainer.checkpoint.url_checkpoints import remove_unfinished
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.logs import logger


def send_what_is_left(remote: RemotePartOfRun | None, number: int) -> None:
    """Publish the checkpoints that an earlier run left on the nodes' disks, if they are complete. A collective call.

    remote: None on ranks that do not lead in their folder. number: of the folder that this rank sees.
    """
    rank = dist.get_rank()
    left_by_rank = run_on_all_ranks(lambda: (number, left_in(remote)) if remote is not None else None)
    left = dict(found for found in left_by_rank if found is not None)

    # Rank 0 comes last, because it publishes what the others have uploaded.
    chosen = run_on_rank_0(lambda: choose_left(remote, left) if remote is not None else [])
    run_on_all_ranks(lambda: _send(remote, chosen) if remote is not None and rank > 0 else None)
    run_on_rank_0(lambda: _send(remote, chosen) if remote is not None else None)
    run_on_rank_0(lambda: _give_up_rest(remote) if remote is not None else None)


def left_in(remote: RemotePartOfRun) -> list[str]:
    """Return the names of the folders of parts that an earlier run left on this node, oldest first."""
    return parts_of_node(remote.folder, remote.number)


def choose_left(remote: RemotePartOfRun, left: dict[int, list[str]]) -> list[str]:
    """Return the names of folders left on nodes that make a complete checkpoint newer than the URL's.

    left: the names of the folders on each node, by node number. Removes unfinished uploads of other checkpoints from
    the URL. Only rank 0 calls this. Raises StorageError.
    """
    with storage.storage_errors_of(remote.url):
        newest_at_url = max(steps_saved(remote.url), default=-1)
        chosen = []
        for name in left[0]:
            folder = Path(remote.folder, PARTS_FOLDER, name)
            holders = [number for number, names in left.items() if name in names]
            if step_of_parts(folder) > newest_at_url and _can_be_completed(remote, folder, holders):
                chosen.append(name)

        remove_unfinished(remote.url, [step_of_parts(Path(name)) for name in chosen])
    return chosen


def _can_be_completed(remote: RemotePartOfRun, folder: Path, holders: list[int]) -> bool:
    """Return whether each part of a checkpoint is on one of the nodes that hold the folder, or at the URL."""
    try:
        manifest, target = remote.read_parts(folder)
    except (OSError, ValueError, CheckpointError):
        return False

    sizes = storage.sizes(target)
    for file in manifest.assembled:
        for part in file.parts:
            is_on_a_node = any(is_of_node(part, number) for number in holders)
            if not is_on_a_node and sizes.get(part.path) != part.bytes:
                return False
    return True


def _send(remote: RemotePartOfRun, names: list[str]) -> None:
    """Upload the named folders of parts and remove all others. Raises StorageError.

    Rank 0 also uploads its metrics, which are newer than those at the URL, as the checkpoints are.
    """
    remove_parts(remote.folder, names)
    if names:
        logger.info("Sending what an earlier run could not: %s.", ", ".join(names))
        remote.upload_all()


def _give_up_rest(remote: RemotePartOfRun) -> None:
    """Remove checkpoints of an earlier run that could not be published. Only rank 0 calls this."""
    if remote.unpublished():
        logger.warning("%s Resuming from an older checkpoint.", remote.unpublished())
        remove_parts(remote.folder)
