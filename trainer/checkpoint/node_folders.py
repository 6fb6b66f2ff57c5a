"""Finds out which ranks see the same run folder, and claims each folder for the run.

Usually all nodes share one folder. Without a shared file system, and with a URL as run.output, each node has a separate
folder: the node's first rank claims it and is its leader, and checkpoints go to the URL in parts (parts.py).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from schemas.errors import UsageError
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.parts import remove_parts
from trainer.checkpoint.run_dir import claim, is_unused, remove_beginnings, remove_empty
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0


@dataclass(frozen=True)
class NodeFolders:
    """Which ranks see the same run folder.

    of_ranks: the number of the folder that each rank sees. Rank 0 sees folder 0.
    """

    of_ranks: list[int]

    @property
    def several(self) -> bool:
        """Whether nodes have separate folders."""
        return max(self.of_ranks) > 0

    def leader(self, rank: int) -> int:
        """Return the leader of the folder that a rank sees: the lowest rank that sees it."""
        return self.of_ranks.index(self.of_ranks[rank])

    def leads(self, rank: int) -> bool:
        return self.leader(rank) == rank


def claim_folders(run: str, is_remote: bool, resources: contextlib.ExitStack) -> NodeFolders:
    """Lock the run's folder on every node until `resources` is closed. A collective call.

    is_remote: run.output is a URL, so nodes may have separate folders.

    Raises UsageError on every rank if a rank does not see the folder that it must share, and what `claim` raises.
    """
    rank = dist.get_rank()

    def claim_until_closed(mark_name: str) -> None:
        is_new = not Path(run).exists()
        was_unused = is_unused(run)
        lock = claim(run)

        # Callbacks run in reverse order: if the start is refused, they leave the folder as it was.
        if is_new:
            resources.callback(remove_empty, run)
        resources.callback(lock.close)
        if was_unused:
            resources.callback(remove_beginnings, run)

        mark = Path(run, mark_name)
        with write_errors_of(mark):
            mark.touch()
        resources.callback(mark.unlink, missing_ok=True)

    # Rank 0 creates a mark, and ranks that see it share rank 0's folder. Its name is random, because a folder that is
    # not shared may hold the mark of an earlier run. The dot keeps it from being mistaken for a user's file.
    mark_name = run_on_rank_0(lambda: f".seen-{secrets.token_hex(8)}")
    run_on_rank_0(lambda: claim_until_closed(mark_name))
    sees_rank_0 = run_on_all_ranks(lambda: Path(run, mark_name).exists())

    folders = NodeFolders(_numbers(sees_rank_0, nodes_of_ranks()))
    if folders.several and is_remote:
        run_on_all_ranks(lambda: claim_until_closed(mark_name) if rank > 0 and folders.leads(rank) else None)
    run_on_all_ranks(lambda: _check_shared(run, mark_name, rank, folders.leader(rank) if is_remote else 0))

    run_on_all_ranks(lambda: Path(run, mark_name).unlink(missing_ok=True) if folders.leads(rank) else None)
    if not (folders.several and is_remote):
        # With separate folders, an earlier run's parts are kept: they may complete a checkpoint (left_parts.py).
        run_on_all_ranks(lambda: remove_parts(run) if folders.leads(rank) else None)
    return folders


def _numbers(sees_rank_0: list[bool], nodes: list[int]) -> list[int]:
    """Return the number of each rank's folder: 0 if the rank sees rank 0's folder, otherwise one number per node."""
    numbers: dict[int, int] = {}
    folders = []
    for sees, node in zip(sees_rank_0, nodes, strict=True):
        folders.append(0 if sees else numbers.setdefault(node, len(numbers) + 1))
    return folders


def _check_shared(run: str, mark_name: str, rank: int, leader: int) -> None:
    """Raise UsageError on a rank that does not see the mark in the folder of `leader`."""
    if not Path(run, mark_name).exists():
        raise UsageError(
            f"Rank {rank} on {socket.gethostname()} does not see {run} of rank {leader}. Ranks write into one folder: "
            "give one that all machines share as run.output, or a URL, with which each machine may have a folder of "
            "its own (run.local)."
        )
