"""Candidate pairs: a star for each band, and two levels of stars for a band of many documents."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs import near_duplicates as steps
from pipeline.near_duplicates.bands import (
    BAND_SCHEMA,
    MAX_STAR,
    SAMPLED,
    Ids,
    Pieces,
    band_keys,
    find_hot_bands,
    star_pairs,
)
from pipeline.near_duplicates.signatures import minhash_signatures
from schemas.randomness import mix
from tests.pipeline.near_duplicates.buckets import pieces_of


def test_bands_agree_when_their_minima_do() -> None:
    (signature,) = minhash_signatures([["some words that make a few shingles"]])
    other = signature.copy()
    other[8 * 3] ^= 1
    keys = band_keys(np.stack([signature, other]))
    assert (keys[0] == keys[1]).tolist() == [i != 3 for i in range(16)]
    assert len(set(keys[0].tolist())) == 16


MAX_STAR_HERE = 6


def reference_pairs(rows: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """The two levels of stars of all bands, with dicts and loops."""
    documents_of_band = defaultdict(set)
    for band, document in rows:
        documents_of_band[band].add(document)

    pairs = set()
    for documents in documents_of_band.values():
        groups = 1
        while len(documents) > MAX_STAR_HERE and groups * MAX_STAR_HERE < 2 * len(documents):
            groups *= 2
        smallest_of_group: dict[int, int] = {}
        for document in sorted(documents):
            center = smallest_of_group.setdefault(document % groups, document)
            pairs.add((center if center != document else min(documents), document))
    return {(smaller, larger) for smaller, larger in pairs if smaller != larger}


def pairs_of(pieces: list[tuple[Ids, Ids]]) -> set[tuple[int, int]]:
    hot = find_hot_bands(pieces, sampled=1, max_star=MAX_STAR_HERE)
    found = set()
    smallest_G = hot.smallest_of_groups(pieces)
    for bands_N, documents_N in pieces:
        is_hot_N = hot.has(bands_N)
        if is_hot_N.any():
            smaller, larger = hot.star_pairs(bands_N[is_hot_N], documents_N[is_hot_N], smallest_G)
            found |= set(zip(smaller.tolist(), larger.tolist(), strict=True))

    bands_N, documents_N = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    others_N = ~hot.has(bands_N)
    smaller, larger = star_pairs(bands_N[others_N], documents_N[others_N])
    return found | set(zip(smaller.tolist(), larger.tolist(), strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60), st.lists(st.integers(0, 60), max_size=3)
)
def test_pairs_are_two_levels_of_stars(rows: list[tuple[int, int]], cuts: list[int]) -> None:
    bands, documents = np.array(rows, np.uint64).reshape(-1, 2).T
    pieces = list(zip(np.split(bands, sorted(cuts)), np.split(documents, sorted(cuts)), strict=True))
    assert pairs_of(pieces) == reference_pairs(rows)


def test_a_band_is_hot_from_about_130_000_documents_on() -> None:
    documents = mix(np.arange(1, 200_001, dtype=np.uint64))
    for count, is_hot in ((60_000, False), (200_000, True)):
        hot = find_hot_bands([(np.full(count, 7, np.uint64), documents[:count])])
        assert (hot.bands.tolist() == [7]) == is_hot
    assert hot.groups.tolist() == [4]
    assert MAX_STAR == 131_072
    assert SAMPLED == 1024


def hot_rows(count: int) -> tuple[Ids, Ids]:
    """One hot band, and bands of two documents each."""
    documents = mix(np.arange(1, count + 1, dtype=np.uint64))
    bands = np.concatenate([np.full(count, 1 << 63, np.uint64), documents])
    return bands, np.concatenate([documents, np.roll(documents, 1)])


@pytest.mark.parametrize("kept_rows", [8_000_000, 100_000])
def test_no_document_of_a_hot_band_is_asked_by_all_others(monkeypatch: pytest.MonkeyPatch, kept_rows: int) -> None:
    monkeypatch.setattr(Pieces.__init__, "__defaults__", (kept_rows,))
    bands, documents = hot_rows(300_000)
    requests = requests_of(bands, documents)
    _, times = np.unique(requests[:, 0], return_counts=True)
    assert times.max() < MAX_STAR

    # Each document is still compared with one other of its band, and connected with the smallest one.
    pairs = requests[requests[:, 0] != requests[:, 1]]
    smallest = int(documents.min())
    centers = set(pairs[pairs[:, 0] == smallest][:, 1].tolist()) | {smallest}
    reached = pairs[np.isin(pairs[:, 0], np.array(sorted(centers), np.uint64))][:, 1]
    assert set(reached.tolist()) | {smallest} == set(documents.tolist())


def requests_of(bands: Ids, documents: Ids) -> np.ndarray:
    """The sorted distinct requests that `pair_bands` makes of some rows."""
    table = pa.table([pa.array(bands), pa.array(documents)], schema=BAND_SCHEMA)
    found = []
    for _, (_, rows) in steps.pair_bands(0, lambda: pieces_of(table), None):
        found.append(np.stack([rows["document"].to_numpy(), rows["to"].to_numpy()], axis=1))
    return np.unique(np.concatenate(found), axis=0)
