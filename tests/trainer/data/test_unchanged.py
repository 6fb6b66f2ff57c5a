"""Rows, their order and masks of every rank are bit for bit what earlier versions gave, whatever the division.

A resumed run depends on it: a change here is a change of major version.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from schemas.masking import Masking
from tests.trainer.data.generated_pairs import Generated, write_pairs
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import PackedBatch

LARGE = Generated((37, 0, 61, 90, 12, 48, 55, 70, 3, 81, 29, 44, 0, 66, 58, 21, 77, 9, 33), seed=1)
SMALL = Generated((19, 26, 31), seed=2, objective="sop")
STORED = Generated((40, 25, 33, 52, 18, 0, 64, 47, 71, 20), seed=3, static_masks=3)


@dataclass(frozen=True)
class Division:
    """How batches are made and divided. steps: those that are looked at."""

    world_size: int
    micro_batches: int
    size: int
    by_tokens: bool = False
    kind: str = "whole_word"
    steps: tuple[int, ...] = (0, 1, 2, 9, 23, 24, 500)


DIVISIONS = {
    "one": (Division(1, 1, 64), "large", "5fb3b205a079c4ef80df18fe7d75b3e4"),
    "odd ranks": (Division(3, 2, 66), "large", "d1f45b27d1dc2ccd691bec45b1dcd911"),
    "many ranks": (Division(32, 1, 200, kind="span"), "large", "6acbea19765f3661dbc4b0b65e1b40a3"),
    "many blocks": (Division(2, 3, 1500), "large", "de000819d2eb4c67c2bc29b18119a093"),
    "tokens": (Division(4, 2, 2500, by_tokens=True, kind="token"), "large", "4a2795078ad934a7fdfd944634b37861"),
    "many tokens": (Division(2, 1, 30_000, by_tokens=True), "large", "f26299717d9f9a3ec7db6c38f1470d2f"),
    "mixture": (Division(2, 2, 120), "mixture", "d826fbdacc0a59a0cf6996e2587ae5d9"),
    "mixture of tokens": (
        Division(3, 1, 4000, by_tokens=True, kind="ngram"),
        "mixture",
        "af615d4cb2f9949d258c801f7ff3599e",
    ),
    "stored masks": (Division(2, 2, 96), "stored", "ae797e47d8558ab8f246f2331deb5733"),
    "many stored masks": (Division(2, 1, 500), "stored", "f98e49c57bbddf9e942d6d7eb9709ad5"),
}
"""Divisions, data, and digests computed before ranks shared blocks and before rows were sorted as 16-bit numbers."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    place = tmp_path_factory.mktemp("generated")
    large, small, stored = (
        write_pairs(place / name, wanted) for name, wanted in (("large", LARGE), ("small", SMALL), ("stored", STORED))
    )
    return {"large": [large], "mixture": [large, small], "stored": [stored]}


def digest_of(paths: list[Path], division: Division) -> str:
    """Return a hash of everything that every rank gets."""
    digest = hashlib.sha256()
    for rank in range(division.world_size):
        with closing(stream_of(paths, division, rank)) as stream:
            for step in division.steps:
                for batch in stream.batch(step):
                    add(digest, batch)
    return digest.hexdigest()[:32]


def stream_of(paths: list[Path], division: Division, rank: int) -> Stream:
    opened = [PairFolder(str(path)) for path in paths]
    weights = [0.8, 0.2] if len(paths) == 2 else None
    sources = build_sources(opened, weights, 5, division.by_tokens)
    share = RankShare(rank, division.world_size, division.micro_batches, division.size)
    schedule = MaskingSchedule(Masking(division.kind), stored=paths[0].name == "stored")  # type: ignore[arg-type]
    return Stream(sources, share, schedule, 5)


def add(digest: hashlib._Hash, batch: PackedBatch) -> None:
    for name, tensor in sorted(batch.tensors().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())


@pytest.mark.parametrize("name", list(DIVISIONS))
def test_every_rank_gets_what_it_always_got(folders: dict[str, list[Path]], name: str) -> None:
    division, data, expected = DIVISIONS[name]
    assert digest_of(folders[data], division) == expected
