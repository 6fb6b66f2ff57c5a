"""Ranks of a node decode each shard once between them, whoever dies, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError
from tests.trainer.data.shard_cache.shards import until
from tests.trainer.data.shard_cache.test_files import mounted
from tests.trainer.data.shared_blocks.ranks import (
    FORK,
    SHARDS,
    assert_are_made,
    enter,
    finish,
    made_shard,
    noted,
    noting,
    start,
)
from trainer.data.pair_rows import ShardRows
from trainer.data.shared_blocks import node_folder
from trainer.data.shared_blocks.node_folder import NodeFolder
from trainer.data.shared_blocks.node_folder import enter as enter_folder
from trainer.data.shared_blocks.open import open_node_blocks


def read_all(root: Path, local_rank: int, log: Path, barrier: Any) -> None:
    """Be a rank that reads two blocks and gives each up when all have read it."""
    blocks = enter(root, local_rank)
    for name in ("one", "two"):
        read = blocks.read(name, SHARDS, noting(log))
        assert read.lease is not None
        barrier.wait(60)
        read.lease.release()
        assert_are_made(read.shards)  # what is mapped stays
    blocks.close()


def test_each_shard_is_decoded_once_whoever_comes_first(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    root.mkdir()
    barrier = FORK.Barrier(4)
    finish([start(read_all, root, rank, tmp_path / "log", barrier) for rank in range(4)])
    assert noted(tmp_path / "log") == sorted([*range(SHARDS)] * 2)
    assert os.listdir(root) == []


def test_masks_travel_with_their_rows(tmp_path: Path) -> None:
    first = enter(tmp_path, 0)
    second = enter(tmp_path, 1)
    made = first.read("b", SHARDS, lambda place: made_shard(place, masks=3))
    taken = second.read("b", SHARDS, lambda place: pytest.fail("it is there"))
    assert_are_made(made.shards, masks=3)
    assert_are_made(taken.shards, masks=3)
    assert not taken.shards[0].rows.ids_T.flags.writeable


def die_decoding(root: Path, log: Path) -> None:
    """Be a rank that is killed in the middle of shard 2, with half a file written."""

    def decode(place: int) -> ShardRows:
        if place == 2:
            folder = next(root.glob("clozeline-*/b"))
            (folder / "2.partial").write_bytes(b"x" * 10_000)
            log.write_text("")
            signal.pause()
        return made_shard(place)

    enter(root, 0).read("b", SHARDS, decode)


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
    read = blocks.read("b", SHARDS, noting(log))
    assert_are_made(read.shards)
    assert read.lease is not None
    read.lease.release()
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
                blocks.read("b", SHARDS, decode)
    assert os.listdir(next(tmp_path.glob("clozeline-*"))) == ["users"]


def test_closing_ends_the_waiting_for_another_rank(tmp_path: Path) -> None:
    blocks = enter(tmp_path, 1)

    def decode(place: int) -> ShardRows:
        blocks.stop_waiting()
        return made_shard(place)

    dying = start(die_decoding, tmp_path, tmp_path / "begun")
    until((tmp_path / "begun").exists)
    with pytest.raises(RuntimeError, match="closed"):
        blocks.read("b", SHARDS, decode)
    dying.kill()


def hold(root: Path, run: str) -> None:
    """Be a rank that holds a block until it is killed."""
    blocks = enter(root, 0, run)
    blocks.read("b", SHARDS, made_shard)
    (root / f"{run} is ready").write_text("")
    signal.pause()


def test_a_start_removes_what_killed_runs_left_and_nothing_else(tmp_path: Path) -> None:
    killed, living = (start(hold, tmp_path, run) for run in "ab")
    others = tmp_path / "clozeline-99999-other"
    others.mkdir()
    until(lambda: all((tmp_path / f"{run} is ready").exists() for run in "ab"))
    killed.kill()
    killed.join()
    left, kept = (folder_of(tmp_path, run) for run in "ab")
    assert left.exists() and kept.exists()

    enter(tmp_path, 0, "c").close()

    assert not left.exists() and others.exists()
    assert sorted(path.name for path in (kept / "b").iterdir() if path.suffix == ".arrays") == [
        f"{place}.arrays" for place in range(SHARDS)
    ]
    living.kill()


def folder_of(root: Path, run: str) -> Path:
    """The path of a run's folder; entering it would clean it."""
    made = root.parent / f"names-of-{root.name}"
    made.mkdir(exist_ok=True)
    folder = NodeFolder(run, str(made))
    folder.close()
    return root / Path(folder.path).name


@pytest.mark.parametrize("local_ranks", [(0, 1), (3, 1), (2,)])
def test_a_full_memory_is_said_once_and_changes_no_row(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], local_ranks: tuple[int, ...]
) -> None:
    """By whichever rank meets it first, and whether or not the node's first rank does."""
    with mounted(tmp_path / "small", "size=64k"):
        ranks = [enter(tmp_path / "small", rank) for rank in local_ranks]
        for name in ("one", "two", "three"):
            for blocks in ranks:
                assert_are_made(blocks.read(name, SHARDS, made_shard).shards)
        free = os.statvfs(tmp_path / "small")
        assert free.f_bavail >= free.f_blocks // 4  # for NCCL
        assert not any(blocks.is_shared for blocks in ranks)
    lines = [line for line in capfd.readouterr().out.splitlines() if "cannot share" in line]
    assert len(lines) == 1 and "--shm-size" in lines[0] and "small has 0 MB free of 0 MB" in lines[0]


def read_with_descriptors(root: Path, left: int) -> None:
    """Be a rank that can open only so many files more."""
    blocks = enter(root, 1)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert_are_made(blocks.read("b", SHARDS, made_shard).shards)
    assert not blocks.is_shared


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("is_there", [True, False])
def test_too_many_open_files_are_not_too_little_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], left: int, is_there: bool
) -> None:
    """One descriptor is enough to enter a block, and not to look at a shard of it that another rank has published."""
    other = enter(tmp_path, 0)
    if is_there:
        other.read("b", SHARDS, made_shard)
    finish([start(read_with_descriptors, tmp_path, left)])
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "cannot share" in line]
    assert "Too many open files" in line and "ulimit -n" in line and "--shm-size" not in line


def test_a_folder_that_cannot_be_emptied_does_not_stay_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    path = tmp_path / "clozeline-left"
    handle = enter_folder(str(path))
    monkeypatch.setattr(node_folder, "remove_content", fail)
    with pytest.raises(OSError, match="Input/output error"):
        node_folder.leave(str(path), handle)
    assert is_free(path)

    with pytest.raises(OSError, match="Input/output error"):
        node_folder.remove_abandoned(str(tmp_path), "clozeline-")
    assert is_free(path)


def is_free(path: Path) -> bool:
    handle = node_folder.take_lock(str(path / "users"))
    if handle is not None:
        node_folder.release_lock(handle)
    return handle is not None


def test_no_shared_memory_or_no_other_rank_means_no_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert open_node_blocks("run") is None
    assert "cannot share" not in capfd.readouterr().out

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(node_folder, "SHARED_MEMORY", str(tmp_path / "nowhere"))
    assert open_node_blocks("run") is None
    assert "cannot share" in capfd.readouterr().out


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "run")
    folder.mkdir()
    (folder / "users").write_text("")
    folder.chmod(0o777)
    held = node_folder.take_lock(str(folder / "users"), shared=True)
    with pytest.raises(PermissionError, match="others can write"):
        enter(tmp_path, 0)
    assert held is not None
