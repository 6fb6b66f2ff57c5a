"""No damage to a shard is trained on or crashes the process: each is read in a child, which must end with exit 3."""

import json
import os
import random
import shutil
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


def read_in_child(folder: Path, number: int, told: Path) -> int:
    """The exit code of a forked child that reads a block, negative when a signal ended it; its error goes to `told`."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            PairFolder(str(folder)).block((number,))
        except ClozelineError as error:
            told.write_text(str(error))
            code = error.exit_code
        except BaseException as error:  # a traceback for the user: what the test is looking for
            told.write_text(repr(error))
            code = 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def copy(pairs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pairs, tmp_path / "pairs")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_damaged_shard_ends_with_its_name(copy: Path, tmp_path: Path, number: int) -> None:
    shard = read_manifest(str(copy), "pairs").shards[number]
    path = copy / shard.path
    assert read_in_child(copy, number, tmp_path / "told") == 0
    for mutated in mutations(path.read_bytes()):
        path.write_bytes(mutated)
        assert read_in_child(copy, number, tmp_path / "told") == 3
        assert shard.path in (tmp_path / "told").read_text()


def test_damage_that_the_manifest_vouches_for_never_crashes(copy: Path, tmp_path: Path) -> None:
    """With the hash of the damaged bytes in the manifest, Arrow and the ranges are what is left to find it."""
    manifest = json.loads((copy / "manifest.json").read_text())
    entry = manifest["shards"][0]
    codes = []
    for mutated in mutations((copy / entry["path"]).read_bytes()):
        (copy / entry["path"]).write_bytes(mutated)
        entry |= {"bytes": len(mutated), "sha256": storage.sha256(mutated)}
        (copy / "manifest.json").write_text(json.dumps(manifest))
        codes.append(read_in_child(copy, 0, tmp_path / "told"))
        assert codes[-1] in (0, 3), (tmp_path / "told").read_text()
    assert codes[:TRUNCATIONS] == [3] * TRUNCATIONS and codes.count(3) > TRUNCATIONS + FLIPS // 4
