"""No damage to a shard is trained on or crashes the process: all are read in a child, and must be told with code 3."""

import json
import os
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from schemas import storage
from schemas.errors import ClozelineError
from schemas.manifest import read_manifest
from trainer.stream.reading import PairFolder

TRUNCATIONS, FLIPS = 16, 64


def mutations(data: bytes) -> list[bytes]:
    """The data cut at places from nothing to all but a byte, and with single bits flipped."""
    draws = random.Random(0)
    cuts = [data[: i * (len(data) - 1) // (TRUNCATIONS - 1)] for i in range(TRUNCATIONS)]
    flips = []
    for _ in range(FLIPS):
        flipped = bytearray(data)
        flipped[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        flips.append(bytes(flipped))
    return cuts + flips


def read_in_child(folder: Path, number: int, versions: Iterable[bytes], told: Path) -> list[tuple[int, str]]:
    """(exit code, error) of reading a block, for each version of its shard; a forked child reads, for it may crash."""
    child = os.fork()
    if child == 0:
        with told.open("w") as file:
            for version in versions:
                code, error = outcome(folder, number, version)
                print(json.dumps([code, error]), file=file, flush=True)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = [tuple(json.loads(line)) for line in told.read_text().splitlines()]
    assert ended == 0, f"after {len(found)} versions a signal ended the process: {ended}"
    return found


def outcome(folder: Path, number: int, version: bytes) -> tuple[int, str]:
    (folder / read_manifest(str(folder), "pairs").shards[number].path).write_bytes(version)
    try:
        PairFolder(str(folder)).block((number,))
        return 0, ""
    except ClozelineError as error:
        return error.exit_code, str(error)
    except BaseException as error:  # a traceback for the user: what the test is looking for
        return 1, repr(error)


@pytest.fixture
def copy(pairs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pairs, tmp_path / "pairs")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_damaged_shard_ends_with_its_name(copy: Path, tmp_path: Path, number: int) -> None:
    shard = read_manifest(str(copy), "pairs").shards[number]
    whole = (copy / shard.path).read_bytes()
    good, *bad = read_in_child(copy, number, [whole, *mutations(whole)], tmp_path / "told")
    assert good == (0, "")
    assert len(bad) == TRUNCATIONS + FLIPS
    assert all(code == 3 and shard.path in told for code, told in bad), bad


def test_damage_that_the_manifest_vouches_for_never_crashes(copy: Path, tmp_path: Path) -> None:
    """With the hash of the damaged bytes in the manifest, Arrow and the ranges are what is left to find it."""
    manifest = json.loads((copy / "manifest.json").read_text())
    entry = manifest["shards"][0]

    def vouched(versions: list[bytes]) -> Iterator[bytes]:
        for version in versions:
            entry.update(bytes=len(version), sha256=storage.sha256(version))
            (copy / "manifest.json").write_text(json.dumps(manifest))
            yield version

    found = read_in_child(copy, 0, vouched(mutations((copy / entry["path"]).read_bytes())), tmp_path / "told")
    assert all(code in (0, 3) for code, _ in found), found
    codes = [code for code, _ in found]
    assert codes[:TRUNCATIONS] == [3] * TRUNCATIONS and codes.count(3) > TRUNCATIONS + FLIPS // 4
