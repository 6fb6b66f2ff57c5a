"""A folder that cannot be a cache, and shards that do not fit into one."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import DataError, StorageError, UsageError
from tests.object_store import ObjectStore
from tests.trainer.data.shard_cache.shards import DATA, FOLDER, NAMES, SHARDS, SIZE, Make, held, read
from trainer.data.shard_cache.cache import ShardCache


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A small file system of its own, where this user may have one."""
    place.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_an_error_that_keeps_what_is_good(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "small"
    with mounted(place, "size=256k"):
        copies = make(place=place)
        for i in (0, 1):
            copies.path(SHARDS[i])
        with pytest.raises(StorageError, match=rf"disk of the cache folder {place} is full: [\d,]+ bytes are free"):
            copies.path(SHARDS[2])
        assert held(place) == sorted(NAMES[:2])
        assert [read(copies, SHARDS[i]) for i in (0, 1)] == DATA[:2]
        make(room=2, place=place).path(SHARDS[2])  # allowed less, it fits


def test_a_read_only_folder_is_a_usage_error(make: Make, tmp_path: Path) -> None:
    place = tmp_path / "frozen"
    with contextlib.ExitStack() as stack:
        if os.getuid():
            place.mkdir(0o555)
        else:
            stack.enter_context(mounted(place, "ro,size=64k"))
        with pytest.raises(UsageError, match=rf"{place} cannot be used.*can be written"):
            make(place=place)


def test_what_is_no_folder_of_this_machine_is_a_usage_error(store: ObjectStore, make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=f"{place} cannot be used"):
            make(place=place)
    with pytest.raises(UsageError, match="is not local"):
        ShardCache(FOLDER, SHARDS, "s3://corpora/cache", 1 << 20)


def test_a_shard_larger_than_the_cache_is_a_usage_error(make: Make) -> None:
    with pytest.raises(UsageError, match=r"0\.arrow has 98,304 bytes.*may hold 98,303"):
        ShardCache(FOLDER, SHARDS, str(make()._copies.folder), SIZE - 1)


def test_a_hash_that_is_no_sha256_is_refused(make: Make) -> None:
    with pytest.raises(DataError, match="which is not a SHA-256 hash"):
        make(shards=[replace(SHARDS[0], sha256="abc")])
