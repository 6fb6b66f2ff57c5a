"""Ranks of a node read a folder of pairs together: each shard once, and the same rows as a rank alone."""

from __future__ import annotations

import gc
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.trainer.data.generated_pairs import Generated, write_pairs
from tests.trainer.data.shard_cache.test_files import mounted
from tests.trainer.data.shared_blocks.ranks import FORK, finish, start
from trainer.data.block import Block
from trainer.data.dataset import PairFolder
from trainer.data.mixture import order_of
from trainer.data.shared_blocks import node_folder
from trainer.data.shared_blocks.node_blocks import to_arrays

PAIRS = Generated((37, 0, 61, 90, 12, 48, 55, 70, 3, 81, 29, 44, 0, 66, 58, 21, 77, 9, 33), seed=4, static_masks=2)
RANKS = 3
BATCHES = 12


class NotingFolder(PairFolder):
    """A folder that notes which shards it has read."""

    log = Path()

    def read_shard(self, number: int) -> pa.Table:
        with open(self.log, "a") as file:
            file.write(f"{number}\n")
        return super().read_shard(number)


def read_batches(folder: PairFolder, per_batch: int, barrier: Any = None) -> list[bytes]:
    """Return every array of the blocks of some batches, in their order; ranks take each batch together."""
    order = order_of(folder, 6, False)
    size = order.epoch_size // per_batch
    folder.expect_blocks(order.blocks_touched(size))

    found = []
    for batch in range(BATCHES):
        for row_range in order.row_ranges(batch * size, (batch + 1) * size):
            block = folder.block(row_range.shards)
            folder.read_ahead(order.blocks_after(row_range, folder.blocks_ahead))
            found.append(b"".join(np.asarray(a).tobytes() for s in block.shards for a in to_arrays(s).values()))
        if barrier is not None:
            barrier.wait(60)
    return found


def be_a_rank(pairs: Path, place: Path, rank: int, barrier: Any, per_batch: int) -> None:
    node_folder.SHARED_MEMORY = str(place / "memory")
    os.environ |= {"LOCAL_WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    NotingFolder.log = place / "log"
    with closing(NotingFolder(str(pairs), run="run")) as shared:
        found = read_batches(shared, per_batch, barrier)

    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with closing(PairFolder(str(pairs), run="run")) as alone:
        assert found == read_batches(alone, per_batch)


@pytest.mark.parametrize("per_batch", [1, 5])
def test_three_ranks_read_each_shard_once_an_epoch(tmp_path: Path, per_batch: int) -> None:
    """In batches of a whole epoch, and of a fifth of one."""
    pairs = write_pairs(tmp_path / "pairs", PAIRS)
    (tmp_path / "memory").mkdir()
    barrier = FORK.Barrier(RANKS)
    finish([start(be_a_rank, pairs, tmp_path, rank, barrier, per_batch) for rank in range(RANKS)])

    # Those of the epochs that the batches cover, and what was read ahead: at most as many blocks as a batch touches.
    shards = len(PAIRS.rows_per_shard)
    read = len((tmp_path / "log").read_text().splitlines())
    epochs = BATCHES / per_batch
    assert epochs * shards <= read + 8 and read <= (epochs + 1) * shards + 8
    assert os.listdir(tmp_path / "memory") == []


@pytest.mark.parametrize(("size", "kept"), [("64m", 3 * 2 + 1), ("64k", 2 + 2)])
def test_a_rank_that_cannot_share_keeps_no_more_than_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, kept: int
) -> None:
    """What is kept for ranks that are behind is memory of this process then, three times as much."""
    pairs = write_pairs(tmp_path / "pairs", PAIRS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(node_folder, "SHARED_MEMORY", str(tmp_path / "memory"))
    with mounted(tmp_path / "memory", f"size={size}"), closing(PairFolder(str(pairs), run="run")) as folder:
        folder.expect_blocks(2)
        for first in range(12):
            assert folder.block((first,)).rows is not None

        gc.collect()
        # The thread that reads ahead may hold one more.
        assert kept <= sum(isinstance(thing, Block) for thing in gc.get_objects()) <= kept + 1
