"""Files that several ranks write together, with threads as ranks, and what the system may do to single writes."""

from __future__ import annotations

import itertools
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import StorageError
from tests.trainer.one_rank import ThreadedRanks
from trainer.checkpoint import shared_writes, write_plan
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.shared_writes import HeldBytes, write_together
from trainer.checkpoint.write_plan import Extent, assign_writers

CPU = torch.device("cpu")
HEADER = b"a header"


def held_by_rank(elements: int, ranks: int, rng: random.Random) -> tuple[list[HeldBytes], bytes]:
    """What each rank holds of a file of so many elements, in random stretches, and the whole file."""
    values_N = torch.arange(1, elements + 1).float()
    cuts = sorted({0, elements, *(rng.randrange(elements) for _ in range(rng.randrange(2 * ranks)))})
    parts: list[list[tuple[int, torch.Tensor]]] = [[] for _ in range(ranks)]
    for begin, end in itertools.pairwise(cuts):
        stretch = values_N[begin:end]
        kept = stretch.bfloat16() if rng.random() < 0.3 else stretch
        parts[rng.randrange(ranks)].insert(0, (len(HEADER) + 4 * begin, kept))
    return [HeldBytes(mine) for mine in parts], HEADER + values_N.numpy().tobytes()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 elements, pieces of 7 elements, 2 blocks in a round."""
    monkeypatch.setattr(write_plan, "BLOCK", 16)
    monkeypatch.setattr(shared_writes, "PIECE", 28)
    monkeypatch.setattr(shared_writes, "ROUND", 2)


@pytest.mark.parametrize("nodes", [[0], [0, 0], [0, 1], [0, 1, 1], [0, 1, 0, 2]], ids=str)
def test_every_byte_is_written_once_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None, nodes: list[int]
) -> None:
    ranks = len(nodes)
    rng = random.Random(ranks)
    received = 0

    for attempt in range(12):
        group = ThreadedRanks(ranks)
        monkeypatch.setattr(shared_writes, "dist", group)
        held, expected = held_by_rank(rng.randrange(1, 90), ranks, rng)
        extents = assign_writers([mine.ranges for mine in held], nodes, len(HEADER))
        path = tmp_path / str(attempt)
        path.write_bytes(HEADER + bytes(len(expected) - len(HEADER)))

        by_rank = group.run(lambda rank: write_together(path, extents, held[rank], CPU))  # noqa: B023

        assert path.read_bytes() == expected
        written = sorted(piece for found in by_rank for piece in found)
        at = len(HEADER)
        for piece in written:
            assert piece.begin == at and piece.end - piece.begin <= 28
            assert piece.crc == zlib.crc32(expected[piece.begin : piece.end])
            at = piece.end
        assert at == len(expected)
        for rank, found in enumerate(by_rank):
            assert all(piece.rank == rank for piece in found)
            assert {b for p in found for b in range(p.begin, p.end)} == {
                b for e in extents if e.writer == rank for b in range(e.begin, e.end)
            }
        assert max(group.exchanged, default=0) <= 2 * 4, "at most two blocks in a round"
        rounds = {extent.block for extent in extents if extent.block is not None}
        assert len(group.exchanged) == ranks * -(-len(rounds) // 2)
        received += sum(group.exchanged)

    assert (received > 0) == (len(set(nodes)) > 1)


def test_a_shared_block_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    group = ThreadedRanks(2)
    monkeypatch.setattr(shared_writes, "dist", group)
    values_N = torch.arange(4.0)
    held = [HeldBytes([(0, values_N[:3])]), HeldBytes([(12, values_N[3:])])]
    extents = [Extent(0, 12, 0, 1, 0), Extent(12, 16, 1, 1, 0)]
    (tmp_path / "f").write_bytes(bytes(16))

    by_rank = group.run(lambda rank: write_together(tmp_path / "f", extents, held[rank], CPU))

    assert by_rank == [[], [WrittenPiece(0, 16, zlib.crc32(values_N.numpy().tobytes()), 1)]]
    assert sorted(group.exchanged) == [0, 3]


def test_a_rank_that_cannot_write_still_takes_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    """Its first error is raised after the last exchange; what it would have received is not waited for by others."""
    group = ThreadedRanks(2)
    monkeypatch.setattr(shared_writes, "dist", group)
    values_N = torch.arange(40.0)
    held = [HeldBytes([(4 * i, values_N[i : i + 1]) for i in range(rank, 40, 2)]) for rank in range(2)]
    extents = assign_writers([mine.ranges for mine in held], [0, 1], 0)
    good = tmp_path / "f"
    good.write_bytes(bytes(160))

    found = group.run(lambda rank: write_together([good, tmp_path / "none" / "f"][rank], extents, held[rank], CPU))

    assert isinstance(found[1], StorageError)
    assert str(found[1]) == f"{tmp_path}/none/f could not be written: No such file or directory."
    assert sum(piece.end - piece.begin for piece in found[0]) > 0
    for piece in found[0]:
        assert good.read_bytes()[piece.begin : piece.end] == values_N.numpy().tobytes()[piece.begin : piece.end]


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    class One:
        get_rank = staticmethod(lambda: 0)
        get_world_size = staticmethod(lambda: 1)

    monkeypatch.setattr(shared_writes, "dist", One)


def write_alone(path: Path, elements: int) -> list[WrittenPiece]:
    held = HeldBytes([(0, torch.arange(float(elements)))])
    return write_together(path, [Extent(0, 4 * elements, 0, 0, None)], held, CPU)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_writes_that_end_early_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_rank: None) -> None:
    pwrite: Any = os.pwrite
    opened = []
    original_open = os.open

    def open_noted(path: Any, flags: int, *more: Any, **named: Any) -> int:
        opened.append(flags)
        return original_open(path, flags, *more, **named)

    path = tmp_path / "f"
    path.write_bytes(bytes(48))
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: pwrite(handle, data[:5], at))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_noted)
        (written,) = write_alone(path, 12)

    assert path.read_bytes() == torch.arange(12.0).numpy().tobytes()
    assert (written.begin, written.end) == (0, 48)
    assert opened == [os.O_WRONLY | os.O_CLOEXEC]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_the_first_error_is_raised_and_the_file_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None, one_rank: None, call: str
) -> None:
    calls = []

    def refuse(*arguments: Any) -> int:
        calls.append(call)
        raise OSError(28 if len(calls) == 1 else 5, ["No space left", "Input/output error"][len(calls) > 1])

    path = tmp_path / "f"
    path.write_bytes(bytes(80))
    monkeypatch.setattr(os, call, refuse)
    before = open_files()
    with pytest.raises(StorageError) as caught:
        write_alone(path, 20)
    assert str(caught.value) == f"{path} could not be written: No space left."
    assert open_files() == before
    assert len(calls) == 1, "no write is tried after the first that failed"


def test_an_error_of_a_write_is_not_replaced_by_that_of_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_rank: None
) -> None:
    def refuse(reason: str) -> Any:
        def call(*arguments: Any) -> int:
            raise OSError(5, reason)

        return call

    (tmp_path / "f").write_bytes(bytes(80))
    monkeypatch.setattr(os, "pwrite", refuse("at the write"))
    monkeypatch.setattr(os, "fsync", refuse("at the sync"))
    with pytest.raises(StorageError, match="at the write"):
        write_alone(tmp_path / "f", 20)


def test_a_rank_that_writes_nothing_opens_nothing(tmp_path: Path, one_rank: None) -> None:
    assert write_together(tmp_path / "none", [], HeldBytes([]), CPU) == []


@given(data=st.data(), cuts=st.sets(st.integers(1, 29), max_size=5))
@settings(max_examples=50, deadline=None)
def test_held_bytes_are_those_of_the_parts(data: st.DataObject, cuts: set[int]) -> None:
    values_N = torch.arange(30.0)
    ends = sorted({0, 30, *cuts})
    parts = [(100 + 4 * a, values_N[a:b]) for a, b in itertools.pairwise(ends)]
    held = HeldBytes(data.draw(st.permutations(parts)))
    begin = data.draw(st.integers(0, 29))
    end = data.draw(st.integers(begin + 1, 30))

    assert held.read(100 + 4 * begin, 100 + 4 * end).tolist() == values_N[begin:end].tolist()
    assert held.ranges == [(first, first + 4 * len(values)) for first, values in parts]
