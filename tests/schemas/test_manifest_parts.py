"""Manifests in parts: the same Manifest as one file gives, and the same faults found."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import DataError
from schemas.manifest import (
    PART_ENTRIES,
    Input,
    decode_entries,
    digest_of_part,
    encode_entries,
    fingerprint,
    fingerprint_of_parts,
    open_manifest,
    parse_manifest,
    read_manifest,
)
from tests.damaged_folders import read_fields
from tests.large_folders import large_pairs, many_shards, write_parts

COUNT = 2 * PART_ENTRIES + 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    large_pairs(tmp_path, COUNT)
    return tmp_path


def reseal(folder: Path, part: Path) -> None:
    """Have manifest.json state the size and the hash that a part has now."""
    fields = read_fields(folder)
    for entry in fields["parts"]:
        if entry["path"] == part.name:
            data = part.read_bytes()
            entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (folder / "manifest.json").write_text(json.dumps(fields))


def first_part(folder: Path) -> Path:
    return sorted(folder.glob("manifest-shards-*"))[0]


def test_up_to_4096_shards_lie_in_manifest_json_itself(tmp_path: Path) -> None:
    written = large_pairs(tmp_path, PART_ENTRIES)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert "parts" not in read_fields(tmp_path)
    assert read_manifest(str(tmp_path), "pairs") == written


def test_more_shards_lie_in_parts_and_are_read_as_one_manifest(folder: Path) -> None:
    fields = read_fields(folder)
    assert fields["shards"] == []
    assert [part["count"] for part in fields["parts"]] == [PART_ENTRIES, PART_ENTRIES, 5]

    # manifest.json alone says how many there are.
    root = parse_manifest((folder / "manifest.json").read_bytes(), "manifest.json")
    assert (root.shards, root.num_shards) == ([], COUNT)

    found = read_manifest(str(folder), "pairs")
    assert found.shards == many_shards("pairs", COUNT)
    assert found.num_shards == COUNT
    assert found.to_json() == (folder / "manifest.json").read_bytes()
    assert open_manifest(str(folder)) == found


def test_inputs_may_lie_in_parts_as_well(tmp_path: Path) -> None:
    written = large_pairs(tmp_path, 3)
    inputs = [Input(path=f"s3://corpus/{i:05d} \u4e2d.txt", bytes=i) for i in range(PART_ENTRIES + 1)]
    parts = write_parts(tmp_path, "inputs", inputs)
    whole = written.model_copy(update={"inputs": inputs, "parts": parts})
    (tmp_path / "manifest.json").write_bytes(whole.to_json())
    assert read_fields(tmp_path)["inputs"] == []
    assert read_manifest(str(tmp_path), "pairs") == whole


def test_a_part_that_is_missing_is_named(folder: Path) -> None:
    first_part(folder).unlink()
    with pytest.raises(DataError, match=r"manifest-shards-00000-of-00003\.json is missing.*Copy the folder again"):
        read_manifest(str(folder), "pairs")


@pytest.mark.parametrize("change", ["cut", "flip"])
def test_a_part_with_other_bytes_is_named(folder: Path, change: str) -> None:
    part = first_part(folder)
    data = part.read_bytes()
    part.write_bytes(data[:-1] if change == "cut" else data.replace(b"1000", b"1001", 1))
    with pytest.raises(DataError, match=r"manifest-shards-00000-of-00003\.json has .*Copy the folder again"):
        read_manifest(str(folder), "pairs")


BAD_ENTRIES = {
    "a path": ('"pairs-00000-of-08197.arrow"', '"../pairs.arrow"', "0.path.*not a plain file name"),
    "a negative count": ('"rows": 1000', '"rows": -1', "0.rows"),
    "a hash that is none": ('"fingerprint": "', '"fingerprint": "x', "0.fingerprint"),
    "an unknown field": ('{"path"', '{"colour": 1, "path"', "colour"),
    "an entry left out": ('"path": "pairs-00000-of-08197.arrow"', '"x": 1', "0.path"),
    "a name twice": ("pairs-00001-of", "pairs-00000-of", "names pairs-00000-of-08197.arrow twice"),
    "other rows": ('"rows": 1000', '"rows": 1001', "totals.rows"),
    "another fingerprint": ('"fingerprint": "5', '"fingerprint": "6', "states fingerprint"),
    "no JSON": ("[", "{", "not a list of shards"),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_part_whose_entries_are_wrong_is_refused(folder: Path, name: str) -> None:
    old, new, message = BAD_ENTRIES[name]
    part = first_part(folder)
    text = part.read_text()
    assert old in text
    part.write_text(text.replace(old, new, 1))
    reseal(folder, part)
    with pytest.raises(DataError, match=message):
        read_manifest(str(folder), "pairs")


def test_shards_both_in_place_and_in_parts_are_refused(folder: Path) -> None:
    fields = read_fields(folder)
    fields["shards"] = json.loads(first_part(folder).read_text())[:1]
    (folder / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(DataError, match="lists shards itself and in parts"):
        read_manifest(str(folder), "pairs")


def test_a_part_outside_of_the_folder_is_refused(folder: Path) -> None:
    fields = read_fields(folder)
    fields["parts"][0]["path"] = "/etc/passwd"
    (folder / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(DataError, match=r"parts\.0\.path.*not a plain file name"):
        read_manifest(str(folder), "pairs")


def plain_fingerprint(lines: list[str], kind: str, identity: str) -> str:
    """The rule of format 2, as docs/formats.md states it."""
    digests = []
    for start in range(0, len(lines), 4096):
        group = "\n".join(lines[start : start + 4096])
        digests.append(hashlib.blake2b(group.encode(), digest_size=16).hexdigest())
    content = "\n".join([kind, "2", identity, *digests])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 8192, 8193])
def test_the_fingerprint_follows_from_the_digests_of_groups(count: int) -> None:
    entries = many_shards("text", count)
    lines = [f"{shard.path} {shard.fingerprint}" for shard in entries]
    expected = plain_fingerprint(lines, "text", "id")
    assert fingerprint("text", entries, "id") == expected

    groups = [entries[start : start + PART_ENTRIES] for start in range(0, count, PART_ENTRIES)]
    assert fingerprint_of_parts("text", map(digest_of_part, groups), "id") == expected


@given(st.lists(st.builds(Input, st.text(), st.none() | st.integers(0, 2**63 - 1), st.none() | st.text())))
def test_entries_survive_the_way_to_bytes_and_back(inputs: list[Input]) -> None:
    assert decode_entries(encode_entries(inputs), "inputs") == inputs


def test_100_000_shards_open_in_two_seconds_of_one_core(tmp_path: Path) -> None:
    large_pairs(tmp_path, 100_000)
    started = time.process_time()
    found = read_manifest(str(tmp_path), "pairs")
    seconds = time.process_time() - started
    assert len(found.shards) == 100_000
    assert seconds < 2, f"{seconds:.2f} s"
