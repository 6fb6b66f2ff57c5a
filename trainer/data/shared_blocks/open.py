"""Decides whether the ranks of this node share blocks, and opens the folder that they share."""

from __future__ import annotations

import os

from trainer.data.shared_blocks import node_folder
from trainer.data.shared_blocks.node_blocks import NodeBlocks, log_not_shared
from trainer.data.shared_blocks.node_folder import NodeFolder


def open_node_blocks(run: str) -> NodeBlocks | None:
    """Return the blocks that the ranks of this node share in a run. run: any name, the same on all of them.

    Returns None if the node has one rank, or no memory that its ranks can share, which is logged once per node.
    """
    if local_ranks() < 2:
        return None

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        return NodeBlocks(NodeFolder(run, node_folder.SHARED_MEMORY), local_rank)
    except OSError as error:
        if local_rank == 0:
            log_not_shared(error)
        return None


def local_ranks() -> int:
    """Return the number of ranks on this node: torchrun's LOCAL_WORLD_SIZE, DeepSpeed's LOCAL_SIZE, or all ranks."""
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        if name in os.environ:
            return int(os.environ[name])
    return 1
