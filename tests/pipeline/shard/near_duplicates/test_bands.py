from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.near_duplicates.bands import band_keys, star_pairs
from pipeline.shard.near_duplicates.signatures import minhash_signatures


def test_bands_agree_when_their_minima_do() -> None:
    (signature,) = minhash_signatures([["some words that make a few shingles"]])
    other = signature.copy()
    other[8 * 3] ^= 1
    keys = band_keys(np.stack([signature, other]))
    assert (keys[0] == keys[1]).tolist() == [i != 3 for i in range(16)]
    assert len(set(keys[0].tolist())) == 16


def test_no_document_has_no_bands() -> None:
    assert band_keys(np.zeros((0, 128), np.uint32)).shape == (0, 16)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=40))
def test_pairs_are_a_star_for_each_band(rows: list[tuple[int, int]]) -> None:
    smallest = {band: min(document for other, document in rows if other == band) for band, _ in rows}
    expected = {(smallest[band], document) for band, document in rows if document != smallest[band]}

    bands, documents = np.array(rows, np.uint64).reshape(-1, 2).T
    smaller, larger = star_pairs(bands, documents)
    found = list(zip(smaller.tolist(), larger.tolist(), strict=True))
    assert found == sorted(expected, key=lambda pair: (pair[1], pair[0]))
