"""No damage to a shard is trained on or crashes the process: a child reads all of them and must exit with code 3."""

import json
import random
import shutil
from pathlib import Path

import pytest

from schemas import storage
from schemas.manifest import read_manifest

TRUNCATIONS = 16
FLIPS = 64


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


Files = dict[str, bytes]


def read_in_child(run, pairs: Path, block: int, versions: list[Files], folder: Path) -> list[tuple[int, str]]:
    """Return (exit code, error) of reading a block, for each version of files of `pairs`.

    A process of its own reads, because it may crash. A fork of this one would have the locks of its threads.
    """
    for number, files in enumerate(versions):
        version = folder / f"{number:04}"
        version.mkdir(parents=True)
        for name, content in files.items():
            (version / name).write_bytes(content)

    done = run("python", "-m", "tests.trainer.checkpoint.read_versions", pairs, block, folder)
    outcomes = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"after {len(outcomes)} versions a signal ended the process: {done.stderr}"
    return outcomes


@pytest.fixture
def copy(pairs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pairs, tmp_path / "pairs")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_damaged_shard_ends_with_its_name(run, copy: Path, tmp_path: Path, number: int) -> None:
    shard = read_manifest(str(copy), "pairs").shards[number]
    whole = (copy / shard.path).read_bytes()
    versions = [{shard.path: version} for version in [whole, *mutations(whole)]]

    good, *bad = read_in_child(run, copy, number, versions, tmp_path / "versions")
    assert good == (0, "")
    assert len(bad) == TRUNCATIONS + FLIPS
    assert all(code == 3 and shard.path in error for code, error in bad), bad


def test_damage_that_the_manifest_vouches_for_never_crashes(run, copy: Path, tmp_path: Path) -> None:
    """With the hash of the damaged bytes in the manifest, Arrow and the ranges are what is left to find it."""
    manifest = json.loads((copy / "manifest.json").read_text())
    entry = manifest["shards"][0]
    versions = []
    for version in mutations((copy / entry["path"]).read_bytes()):
        entry.update(bytes=len(version), sha256=storage.sha256(version))
        versions.append({entry["path"]: version, "manifest.json": json.dumps(manifest).encode()})

    outcomes = read_in_child(run, copy, 0, versions, tmp_path / "versions")
    codes = [code for code, _ in outcomes]
    assert len(codes) == TRUNCATIONS + FLIPS
    assert set(codes) <= {0, 3}, outcomes
    assert codes[:TRUNCATIONS] == [3] * TRUNCATIONS and codes.count(3) > TRUNCATIONS + FLIPS // 4
