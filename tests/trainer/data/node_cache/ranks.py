"""Processes that share shards as the ranks of a node do, and what they decode: made-up rows, each decoding noted."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from schemas.ragged import offsets_of
from schemas.randomness import numbers
from trainer.data.rows import PairRows, ShardRows, StoredMasks
from trainer.data.shared import SharedShards, to_arrays

SHARDS = 8
KEYS = [f"{place}" * 64 for place in range(1, SHARDS + 1)]
FORK = multiprocessing.get_context("fork")


def made_shard(place: int, masks: int = 0) -> ShardRows:
    """Return rows that differ from shard to shard; shard 5 has none."""
    rows = 0 if place == 5 else 20 + place
    draws = numbers(np.uint64(place), np.arange(rows))
    lengths_B = (3 + draws % np.uint64(30)).astype(np.int64)
    offsets_B1 = offsets_of(lengths_B)
    ids_T = (numbers(np.uint64(place + 100), np.arange(offsets_B1[-1])) % np.uint64(999)).astype(np.uint16)
    of_rows = PairRows(ids_T, ids_T % 3 > 0, offsets_B1, lengths_B.astype(np.int32), np.full(rows, -100, np.int8))

    positions = np.arange(rows * masks, dtype=np.uint16)
    stored = StoredMasks(masks, positions, positions + 1, np.arange(rows * masks + 1)) if masks else None
    return ShardRows(of_rows, stored)


def noting(log: Path) -> Callable[[int], ShardRows]:
    """Return a way to decode that appends the shard's place and the process to a file."""

    def decode(place: int) -> ShardRows:
        with open(log, "a") as file:
            file.write(f"{place} {os.getpid()}\n")
        time.sleep(0.01)
        return made_shard(place)

    return decode


def noted(log: Path) -> list[int]:
    """Return the places of the shards that were decoded, sorted."""
    return sorted(int(line.split()[0]) for line in log.read_text().splitlines()) if log.exists() else []


def enter(root: Path, local_rank: int, run: str = "run") -> SharedShards:
    return SharedShards(run, local_rank, str(root))


def assert_are_made(shards: list[ShardRows], masks: int = 0) -> None:
    """Compare shards with those that were made, in every array and type."""
    for place, shard in enumerate(shards):
        expected = to_arrays(made_shard(place, masks))
        found = to_arrays(shard)
        assert list(found) == list(expected)
        for name, array in found.items():
            assert array.dtype == expected[name].dtype and array.tolist() == expected[name].tolist()


def start(function: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """Start a process like this one that calls a function."""
    process = FORK.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def finish(processes: list[BaseProcess]) -> None:
    """Wait for processes, each of which must succeed."""
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
