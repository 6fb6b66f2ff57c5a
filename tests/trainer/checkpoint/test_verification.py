"""Reading a checkpoint back: who reads which piece, and what is reported about a lost write."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import StorageError
from tests.trainer.one_rank import ThreadedRanks
from trainer.checkpoint import manifest, verification
from trainer.checkpoint.manifest import (
    describe_file,
    entry_of,
    fault_of_checkpoint,
    fault_of_ranges,
    ranges_of,
    remove_entry,
    seal,
)
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.verification import (
    check_files,
    hashing_order,
    merged_entries,
    read_back,
    reader_of,
    second_readers,
)

NAMES = ["a", "b", "c", "d", "z"]
"""Files of a checkpoint; rank 0 wrote "a" and "z" alone."""

Read = tuple[int, str, int]
"""(rank, file, first byte) of a piece that was read back."""


def pieces_by(writers: list[int]) -> list[WrittenPiece]:
    """Pieces of 4 bytes, each written by one of the ranks."""
    return [WrittenPiece(4 * number, 4 * number + 4, 0, rank) for number, rank in enumerate(writers)]


def piece_of(data: bytes, begin: int, end: int, rank: int = 0) -> WrittenPiece:
    return WrittenPiece(begin, end, zlib.crc32(data[begin:end]), rank)


# Who reads


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 2], [0, 0], [0, 0, 0, 1]], ids=str)
def test_every_piece_is_read_by_a_rank_that_did_not_write_it(nodes: list[int]) -> None:
    """By a rank of another node, if there are several nodes."""
    several_nodes = len(set(nodes)) > 1
    pieces = pieces_by([number % len(nodes) for number in range(40)])

    for reader in range(len(nodes)):
        seconds = second_readers(pieces, reader, nodes)
        for piece, second in zip(pieces, seconds, strict=True):
            readers = {reader} if second is None else {reader, second}
            if several_nodes:
                assert any(nodes[rank] != nodes[piece.rank] for rank in readers)
            else:
                assert readers - {piece.rank}


def test_second_readers_take_turns() -> None:
    assert second_readers(pieces_by([0, 1, 0, 2, 1, 3]), 0, [0, 0, 1, 1]) == [2, 3, 2, None, 2, None]
    assert second_readers(pieces_by([0, 1, 2, 3]), 3, [0, 0, 1, 1]) == [None, None, 0, 1]
    assert second_readers(pieces_by([1, 1, 1, 0, 2]), 1, [0, 0, 0]) == [0, 2, 0, None, None]


def test_a_single_rank_has_no_second_reader() -> None:
    assert second_readers(pieces_by([0, 0]), 0, [0]) == [None, None]


@pytest.mark.parametrize(
    ("nodes", "order"),
    [
        ([0, 0, 1, 1], [0, 2, 1, 3]),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 0, 0, 1], [0, 3, 1, 2]),
        ([0, 1, 0, 2, 1], [0, 1, 3, 2, 4]),
    ],
    ids=str,
)
def test_files_are_hashed_by_all_nodes_in_turn(nodes: list[int], order: list[int]) -> None:
    assert hashing_order(nodes) == order


# Reading


@pytest.mark.parametrize("from_server", [False, True])
def test_reading_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_server: bool) -> None:
    """Reads that end early are continued; what this node has cached is dropped only if other nodes wrote."""
    data = bytes(range(50))
    (tmp_path / "f").write_bytes(data)

    advice: list[Any] = []
    pread: Any = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, count, at: pread(handle, min(count, 3), at))
    monkeypatch.setattr(os, "posix_fadvise", lambda handle, *rest: advice.append(rest))

    pieces = [piece_of(data, 0, 8), piece_of(data, 8, 31), piece_of(data, 31, 50)]
    assert read_back(tmp_path / "f", pieces, from_server) == hashlib.sha256(data).hexdigest()
    assert read_back(tmp_path / "f", pieces[1:], from_server) == hashlib.sha256(data[8:]).hexdigest()

    calls = 2 if from_server else 0
    assert advice == [(0, 0, os.POSIX_FADV_DONTNEED)] * calls


@pytest.mark.parametrize("content", [b"abcX" * 2, b"abcd"], ids=["changed", "cut"])
def test_the_file_and_the_range_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    second = WrittenPiece(4, 8, zlib.crc32(b"abcd"), 3)
    with pytest.raises(StorageError, match=r"^f of .* differs from what rank 3 wrote in bytes 4 to 8: "):
        read_back(tmp_path / "f", [piece_of(content, 0, 4), second], from_server=True)


def test_the_message_of_a_lost_write(tmp_path: Path) -> None:
    path = tmp_path / "step" / "f"
    path.parent.mkdir()
    path.write_bytes(bytes(3000))
    pieces = [piece_of(bytes(3000), 0, 1000), WrittenPiece(1000, 3000, 1, 2)]
    with pytest.raises(StorageError) as caught:
        read_back(path, pieces, False)
    assert (
        f"f of {path.parent} differs from what rank 2 wrote in bytes 1,000 to 3,000: the file system lost or changed "
        "a write." in str(caught.value)
    )


def test_a_file_that_cannot_be_read_back_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"^{tmp_path}/none could not be read back: No such file or directory"):
        read_back(tmp_path / "none", [], False)


# The ranks together


def write_checkpoint(folder: Path, ranks: int) -> dict[str, list[WrittenPiece]]:
    """Write all files and return, by file, what the ranks wrote together, in turn."""
    written = {}
    for number, name in enumerate("bcd"):
        data = bytes([number]) * 40
        (folder / name).write_bytes(data)
        begins = range(0, 40, 10)
        written[name] = [piece_of(data, begin, begin + 10, begin // 10 % ranks) for begin in begins]

    (folder / "a").write_bytes(b"state")
    (folder / "z").write_bytes(b"evaluation")
    return written


def entry_of_file(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("nodes", [[0], [0, 0, 0], [0, 1, 1], [0, 0, 1, 1]], ids=str)
def test_each_block_is_hashed_by_one_rank_and_each_piece_read_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[int]
) -> None:
    """Blocks of 20 bytes, two pieces each; the manifest that follows is that of the files."""
    ranks = len(nodes)
    group = ThreadedRanks(ranks)
    monkeypatch.setattr(verification, "dist", group)
    monkeypatch.setattr(verification, "PIECE", 20)
    monkeypatch.setattr(manifest, "HASH_BLOCK", 20)
    reads: list[Read] = []
    drops: list[bool] = []

    def read_noted(file: Path, pieces: list[WrittenPiece], from_server: bool) -> str:
        drops.append(from_server)
        reads.extend((group.get_rank(), file.name, piece.begin) for piece in pieces)
        return read_back(file, pieces, from_server)

    monkeypatch.setattr(verification, "read_back", read_noted)
    written = write_checkpoint(tmp_path, ranks)

    shares = group.run(lambda rank: check_files(tmp_path, NAMES, written, nodes))
    seal(tmp_path, merged_entries(shares, written))

    assert fault_of_checkpoint(tmp_path) is None
    listed = json.loads((tmp_path / "manifest.json").read_text())
    assert listed["files"] == [entry_of_file(tmp_path / name) for name in "az"]
    assert [entry["path"] for entry in listed["files_in_blocks"]] == ["b", "c", "d"]
    assert all(entry["block_bytes"] == 20 and len(entry["sha256"]) == 2 for entry in listed["files_in_blocks"])
    assert any(drops) == (len(set(nodes)) > 1)

    # With one rank there is nobody else, and everything is read once.
    for name, pieces in written.items():
        for piece in pieces:
            readers = [rank for rank, file, begin in reads if (file, begin) == (name, piece.begin)]
            assert len(readers) in (1, 2)
            if ranks > 1:
                assert set(readers) - {piece.rank}
            if len(set(nodes)) > 1:
                assert any(nodes[rank] != nodes[piece.rank] for rank in readers)


@pytest.mark.parametrize("nodes", [[0, 0, 0, 0], [0, 0, 1, 1]], ids=str)
def test_ranks_read_equally_much(nodes: list[int]) -> None:
    """A file of which each rank wrote a quarter, as in ZeRO 1."""
    readers = []
    for number in range(64):
        block = [WrittenPiece(100 * number, 100 * number + 100, 0, number // 16)]
        reader = reader_of(block, number, nodes)
        assert reader != number // 16
        readers.append(reader)
    counts = [readers.count(rank) for rank in range(4)]
    assert max(counts) <= 1.5 * min(counts), counts


# Verifying together


@pytest.mark.parametrize("readers", [[0], [0, 1, 2], [0, 2]], ids=str)
def test_a_wrong_byte_anywhere_is_found_by_some_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: list[int]
) -> None:
    """Each block is read by one rank alone, and what is found is what one process would find."""
    monkeypatch.setattr(manifest, "HASH_BLOCK", 20)
    written = write_checkpoint(tmp_path, 1)
    entries: list[Any] = [entry_of_file(tmp_path / name) for name in "az"]
    for name in written:
        data = (tmp_path / name).read_bytes()
        entries.append(entry_of(name, 40, [hashlib.sha256(data[at : at + 20]).hexdigest() for at in (0, 20)]))
    seal(tmp_path, entries)

    def faults() -> list[str | None]:
        found = ranges_of(tmp_path)
        assert isinstance(found, list) and len(found) == 8
        return [fault_of_ranges(tmp_path, found[turn :: len(readers)]) for turn in range(len(readers))]

    assert faults() == [None] * len(readers)
    for name in NAMES:
        whole = (tmp_path / name).read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            damaged = bytearray(whole)
            damaged[at] ^= 4
            (tmp_path / name).write_bytes(damaged)
            expected = f"{tmp_path / name} was cut or changed"
            assert fault_of_checkpoint(tmp_path) == expected
            assert [fault for fault in faults() if fault is not None] == [expected]
        (tmp_path / name).write_bytes(whole)


def test_hashes_that_do_not_cover_a_file_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(50))
    seal(tmp_path, [{"path": "f", "bytes": 50, "block_bytes": 20, "sha256": ["a", "b"]}])
    fault = fault_of_checkpoint(tmp_path)
    assert fault is not None and "2 hashes for the 3 blocks of f" in fault


def test_an_entry_that_is_removed_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(30))
    (tmp_path / "a").write_bytes(b"state")
    hashes = [hashlib.sha256(bytes(size)).hexdigest() for size in (20, 10)]
    in_blocks: Any = {"path": "f", "bytes": 30, "block_bytes": 20, "sha256": hashes}
    seal(tmp_path, [in_blocks, describe_file(tmp_path, tmp_path / "a")], assembled_from="abc")
    remove_entry(tmp_path, "a")
    listed = json.loads((tmp_path / "manifest.json").read_text())
    assert listed == {"format_version": 1, "files": [], "files_in_blocks": [in_blocks], "assembled_from": "abc"}
    assert fault_of_checkpoint(tmp_path) is None


def test_bytes_behind_the_last_piece_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ThreadedRanks(1)
    monkeypatch.setattr(verification, "dist", group)
    data = bytes(2001)
    (tmp_path / "f").write_bytes(data)
    written = {"f": [piece_of(data, 0, 1000), piece_of(data, 1000, 2000)]}

    (found,) = group.run(lambda rank: check_files(tmp_path, ["f"], written, [0]))
    assert isinstance(found, StorageError)
    assert str(found) == f"{tmp_path}/f has 2,001 bytes, but 2,000 were written."
