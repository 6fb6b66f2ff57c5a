"""Ranks of a node decode each shard once between them, whoever dies, and get the rows that a rank alone gets."""

from __future__ import annotations

import gc
import os
import resource
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from schemas.errors import DataError
from tests.trainer.data.generated_pairs import Generated, write_pairs
from tests.trainer.data.node_cache.ranks import (
    FORK,
    KEYS,
    SHARDS,
    assert_are_made,
    enter,
    finish,
    made_shard,
    noted,
    noting,
    start,
)
from tests.trainer.data.node_cache.shards import until
from tests.trainer.data.node_cache.test_node_cache import mounted
from trainer.data import shared
from trainer.data.folder import PairFolder
from trainer.data.order import order_of
from trainer.data.rows import Block, ShardRows
from trainer.data.shared import SharedShards, open_shared, to_arrays


def test_masks_travel_with_their_rows(tmp_path: Path) -> None:
    first = enter(tmp_path, 0)
    second = enter(tmp_path, 1)
    made = first.read(KEYS, lambda place: made_shard(place, masks=3))
    taken = second.read(KEYS, lambda place: pytest.fail("it is there"))
    assert_are_made(made, masks=3)
    assert_are_made(taken, masks=3)
    assert not taken[0].rows.ids_T.flags.writeable


def shards_in(folder: Path) -> list[str]:
    """The files of a folder, without those by which ranks show that they use it."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".use")


def die_decoding(root: Path, log: Path) -> None:
    """Be a rank that is killed in the middle of shard 2, with half a file written."""

    def decode(place: int) -> ShardRows:
        if place == 2:
            (folder,) = root.glob("clozeline-*")
            (folder / f"{KEYS[2]}.partial").write_bytes(b"x" * 10_000)
            log.write_text("")
            signal.pause()
        return made_shard(place)

    enter(root, 0).read(KEYS, decode)


def test_a_rank_killed_while_it_decodes_is_replaced_by_one_that_waits(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    root.mkdir()
    dying = start(die_decoding, root, tmp_path / "begun")
    until((tmp_path / "begun").exists)
    waiting = start(read_one, root, tmp_path / "log")

    # The one that waits decodes all the others first.
    until(lambda: noted(tmp_path / "log") == [3, 4, 5, 6, 7])
    assert dying.pid is not None and waiting.is_alive()
    os.kill(dying.pid, signal.SIGKILL)
    finish([waiting])
    assert noted(tmp_path / "log") == [2, 3, 4, 5, 6, 7]
    assert os.listdir(root) == []


def read_one(root: Path, log: Path) -> None:
    blocks = enter(root, 3)
    read = blocks.read(KEYS, noting(log))
    assert_are_made(read)
    blocks.close()


def test_a_bad_shard_is_the_same_error_for_every_rank(tmp_path: Path) -> None:
    def decode(place: int) -> ShardRows:
        if place == 3:
            raise DataError("shard 3 is bad")
        return made_shard(place)

    ranks = [enter(tmp_path, rank) for rank in (0, 1)]
    for blocks in ranks:
        for _ in range(2):
            with pytest.raises(DataError, match="shard 3 is bad"):
                blocks.read(KEYS, decode)
    kept = [f"{key}.shard" for key in KEYS[:3]]
    assert shards_in(next(tmp_path.glob("clozeline-*"))) == kept


def test_closing_ends_the_waiting_for_another_rank(tmp_path: Path) -> None:
    blocks = enter(tmp_path, 1)

    def decode(place: int) -> ShardRows:
        blocks.stop_waiting()
        return made_shard(place)

    dying = start(die_decoding, tmp_path, tmp_path / "begun")
    until((tmp_path / "begun").exists)
    with pytest.raises(RuntimeError, match="closed"):
        blocks.read(KEYS, decode)
    dying.kill()


def hold(root: Path, run: str) -> None:
    """Be a rank that holds a block until it is killed."""
    blocks = enter(root, 0, run)
    blocks.read(KEYS, made_shard)
    (root / f"{run} is ready").write_text("")
    signal.pause()


def test_a_start_removes_what_killed_runs_left_and_nothing_else(tmp_path: Path) -> None:
    killed, living = (start(hold, tmp_path, run) for run in "ab")
    others = tmp_path / "clozeline-shards-99999-other"
    others.mkdir()
    until(lambda: all((tmp_path / f"{run} is ready").exists() for run in "ab"))
    killed.kill()
    killed.join()
    left, kept = (folder_of(tmp_path, run) for run in "ab")
    assert left.exists() and kept.exists()

    enter(tmp_path, 0, "c").close()

    assert not left.exists() and others.exists()
    assert shards_in(kept) == sorted(f"{key}.shard" for key in KEYS)
    living.kill()


def test_what_is_no_folder_of_a_run_is_left_alone(tmp_path: Path) -> None:
    """On a machine that users share, anyone can create such names in shared memory."""
    for name in ("memory", "elsewhere"):
        (tmp_path / name).mkdir()
    prefix = f"{tmp_path / 'memory'}/clozeline-shards-{os.getuid()}-"
    Path(f"{prefix}file").touch()
    Path(f"{prefix}link").symlink_to(tmp_path / "elsewhere")
    if os.getuid() == 0:
        Path(f"{prefix}folder").mkdir()
        os.chown(f"{prefix}folder", 12345, 12345)
    before = os.listdir(tmp_path / "memory")

    enter(tmp_path / "memory", 0).close()

    assert os.listdir(tmp_path / "memory") == before


def test_a_process_may_open_the_same_folder_twice(tmp_path: Path) -> None:
    first, second = enter(tmp_path, 0), enter(tmp_path, 0)
    first.read(KEYS, made_shard)
    first.close()
    assert_are_made(second.read(KEYS, lambda place: pytest.fail("it is there")))
    second.close()
    assert os.listdir(tmp_path) == []


def folder_of(root: Path, run: str) -> Path:
    """The path of a run's folder; entering it would clean it."""
    made = root.parent / f"names-of-{root.name}"
    made.mkdir(exist_ok=True)
    shards = SharedShards(run, 0, str(made))
    shards.close()
    return root / Path(shards.folder).name


def test_a_full_memory_is_said_once_and_changes_no_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "small", "size=64k"):
        ranks = [enter(tmp_path / "small", rank) for rank in (0, 1)]
        for block in "abc":
            for shards in ranks:
                assert_are_made(shards.read([key[1:] + block for key in KEYS], made_shard))
        free = os.statvfs(tmp_path / "small")
        assert free.f_bavail >= free.f_blocks // 4  # for NCCL
        assert not any(blocks.is_shared for blocks in ranks)
    lines = [line for line in capfd.readouterr().out.splitlines() if "cannot share" in line]
    assert len(lines) == 1 and "--shm-size" in lines[0] and "small has 0 MB free of 0 MB" in lines[0]


def read_with_descriptors(root: Path, left: int) -> None:
    """Be a rank that can open only so many files more."""
    blocks = enter(root, 0)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert_are_made(blocks.read(KEYS, made_shard))
    assert not blocks.is_shared


@pytest.mark.parametrize(("left", "is_there"), [(0, True), (0, False), (1, False)])
def test_too_many_open_files_are_not_too_little_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], left: int, is_there: bool
) -> None:
    """One descriptor is enough to map a shard that another rank has added, and not to add one."""
    other = enter(tmp_path, 1)
    if is_there:
        other.read(KEYS, made_shard)
    finish([start(read_with_descriptors, tmp_path, left)])
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "cannot share" in line]
    assert "Too many open files" in line and "ulimit -n" in line and "--shm-size" not in line


def test_no_shared_memory_or_no_other_rank_means_no_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert open_shared("run") is None
    assert "cannot share" not in capfd.readouterr().out

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(shared, "SHARED_MEMORY", str(tmp_path / "nowhere"))
    assert open_shared("run") is None
    assert "cannot share" in capfd.readouterr().out


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "run")
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        enter(tmp_path, 0)


def test_no_more_shards_are_kept_than_ranks_may_need(tmp_path: Path) -> None:
    """Blocks of two shards, and room for two blocks."""
    shards = enter(tmp_path, 0)
    shards.kept_blocks = 2
    for first in (0, 2, 4, 6):
        shards.read(KEYS[first : first + 2], lambda place: made_shard(7))
    kept = sorted(f"{key}.shard" for key in KEYS[4:])
    assert shards_in(Path(shards.folder)) == kept
    shards.close()
    assert os.listdir(tmp_path) == []


def test_maps_hold_no_descriptors_and_end_with_their_arrays(tmp_path: Path) -> None:
    """Hundreds of shards are in memory at once, and a process has 1,024 descriptors unless told otherwise."""
    shards = enter(tmp_path, 0)

    def descriptors() -> int:
        opened = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(path.startswith(shards.folder) and path.endswith(".shard") for path in opened)

    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(shards.folder)

    mapped = [shards.read(KEYS, made_shard) for _ in range(10)]
    assert descriptors() == 0 and maps() == 10 * SHARDS
    assert_are_made(mapped[-1])
    mapped.clear()
    assert maps() == 0


# A folder of pairs

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
    shared.SHARED_MEMORY = str(place / "memory")
    os.environ |= {"LOCAL_WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)}
    NotingFolder.log = place / "log"
    with closing(NotingFolder(str(pairs), run="run")) as folder:
        found = read_batches(folder, per_batch, barrier)

    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with closing(PairFolder(str(pairs), run="run")) as alone:
        assert found == read_batches(alone, per_batch)


@pytest.mark.parametrize("per_batch", [1, 5])
def test_three_ranks_read_each_shard_once(tmp_path: Path, per_batch: int) -> None:
    """In batches of a whole epoch, and of a fifth of one."""
    pairs = write_pairs(tmp_path / "pairs", PAIRS)
    (tmp_path / "memory").mkdir()
    barrier = FORK.Barrier(RANKS)
    finish([start(be_a_rank, pairs, tmp_path, rank, barrier, per_batch) for rank in range(RANKS)])

    # All shards fit into what ranks keep, so not even the next epoch reads them again. Two without rows are the same.
    read = [int(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(read) == len(set(read)) == len(PAIRS.rows_per_shard) - 1
    assert os.listdir(tmp_path / "memory") == []


def test_a_rank_keeps_no_more_blocks_than_it_reads_ahead_and_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it keeps in shared memory, for ranks that are behind."""
    pairs = write_pairs(tmp_path / "pairs", PAIRS)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(shared, "SHARED_MEMORY", str(tmp_path))
    with closing(PairFolder(str(pairs), run="run")) as folder:
        folder.expect_blocks(2)
        for first in range(12):
            assert folder.block((first,)).rows is not None

        gc.collect()
        # The thread that reads ahead may hold one more.
        assert 4 <= sum(isinstance(thing, Block) for thing in gc.get_objects()) <= 5
