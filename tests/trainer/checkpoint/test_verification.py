"""Reading a checkpoint back: who reads which piece, and what is reported about a lost write."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import StorageError
from tests.trainer.one_rank import ThreadedRanks
from trainer.checkpoint import verification
from trainer.checkpoint.shared_writes import WrittenPiece
from trainer.checkpoint.verification import check_files, hashing_order, read_back, second_readers

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


def entry_of(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    return {"path": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def expected_reads(name: str, pieces: list[WrittenPiece], reader: int, nodes: list[int]) -> set[Read]:
    """All pieces by the file's reader, and some once more by second readers."""
    reads = {(reader, name, piece.begin) for piece in pieces}
    for piece, second in zip(pieces, second_readers(pieces, reader, nodes), strict=True):
        if second is not None:
            reads.add((second, name, piece.begin))
    return reads


@pytest.mark.parametrize("nodes", [[0], [0, 0, 0], [0, 1, 1]], ids=str)
def test_each_file_is_hashed_by_one_rank_and_each_piece_read_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[int]
) -> None:
    ranks = len(nodes)
    group = ThreadedRanks(ranks)
    monkeypatch.setattr(verification, "dist", group)
    reads: set[Read] = set()

    def read_noted(file: Path, pieces: list[WrittenPiece], from_server: bool) -> str:
        assert from_server == (len(set(nodes)) > 1)
        reads.update((group.get_rank(), file.name, piece.begin) for piece in pieces)
        return read_back(file, pieces, from_server)

    monkeypatch.setattr(verification, "read_back", read_noted)
    written = write_checkpoint(tmp_path, ranks)

    by_rank = group.run(lambda rank: check_files(tmp_path, NAMES, written, nodes))

    order = hashing_order(nodes)
    reader_of = {name: order[number % ranks] for number, name in enumerate(NAMES)}
    for rank, entries in enumerate(by_rank):
        assert entries == [entry_of(tmp_path / name) for name in NAMES if reader_of[name] == rank]

    for name, pieces in written.items():
        found = {read for read in reads if read[1] == name}
        assert found == expected_reads(name, pieces, reader_of[name], nodes)


def test_bytes_behind_the_last_piece_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ThreadedRanks(1)
    monkeypatch.setattr(verification, "dist", group)
    data = bytes(2001)
    (tmp_path / "f").write_bytes(data)
    written = {"f": [piece_of(data, 0, 1000), piece_of(data, 1000, 2000)]}

    (found,) = group.run(lambda rank: check_files(tmp_path, ["f"], written, [0]))
    assert isinstance(found, StorageError)
    assert str(found) == f"{tmp_path}/f has 2,001 bytes, but 2,000 were written."
