"""Candidate pairs of bands that very many documents share, such as pages made from one template.

A star around one document would send this document's signature to all others, from one worker. So a band of more than
about MAX_STAR documents is *hot*, and forms two levels of stars: its documents are cut into *groups* by the last bits
of their ids, each document is paired with the smallest one of its group, and these are paired with the smallest one of
the band. Every document is still the larger one of at most one pair of the band.

Whether a band is hot, and its groups, follow from its documents alone: they are counted in a sample, the documents with
a certain remainder of the id. Bands of up to 60,000 documents are never hot in practice, and those of 200,000 always
are.

The rows of a bucket come in pieces and are read three times, so that memory does not grow with a band. A piece is (N,)
uint64 bands and (N,) uint64 documents:

    1. sample the documents, and find the hot bands
    2. find the smallest document of each group
    3. pair the documents of hot bands, piece by piece; collect the rows of all other bands

Shape suffixes: N rows, H hot bands, G groups of all hot bands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.shard.near_duplicates.bands import Ids, distinct_pairs
from pipeline.shard.near_duplicates.pieces import Columns

MAX_STAR = 1 << 17
"""Maximum documents of a band that form one star. Its center sends 19 MB of signatures."""

SAMPLED = 1 << 10
"""Only one of this many documents is counted."""


@dataclass(frozen=True)
class HotBands:
    """The bands that form two levels of stars.

    bands: (H,) uint64, sorted.
    groups: (H,) uint64, powers of two: the number of groups of each band.
    first_groups: (H,) int64: the index of each band's first group among all groups.
    """

    bands: Ids
    groups: Ids
    first_groups: NDArray[np.int64]

    def has(self, bands_N: Ids) -> NDArray[np.bool_]:
        """Return (N,) bool: which rows belong to hot bands."""
        return np.isin(bands_N, self.bands)

    def groups_of(self, bands_N: Ids, documents_N: Ids) -> NDArray[np.int64]:
        """Return (N,) int64: the index of each row's group among all groups. All bands must be hot."""
        band_N = np.searchsorted(self.bands, bands_N)
        group_in_band_N = documents_N & (self.groups[band_N] - np.uint64(1))
        return self.first_groups[band_N] + group_in_band_N.astype(np.int64)

    def smallest_of_groups(self, pieces: Iterable[Columns]) -> Ids:
        """Return (G,) uint64: the smallest document of each group; 2**64 - 1 for an empty group."""
        smallest_G = np.full(int(self.groups.sum()), ~np.uint64(0))
        for bands_N, documents_N in pieces:
            is_hot_N = self.has(bands_N)
            documents = documents_N[is_hot_N]
            np.minimum.at(smallest_G, self.groups_of(bands_N[is_hot_N], documents), documents)
        return smallest_G

    def star_pairs(self, bands_N: Ids, documents_N: Ids, smallest_G: Ids) -> tuple[Ids, Ids]:
        """Return candidate pairs for rows of hot bands, as `bands.star_pairs` does."""
        smallest_of_band_H = np.minimum.reduceat(smallest_G, self.first_groups)
        smallest_N = smallest_G[self.groups_of(bands_N, documents_N)]

        # The smallest document of a group is paired with that of its band. If the two are the same, there is no pair.
        is_center_N = smallest_N == documents_N
        smallest_N[is_center_N] = smallest_of_band_H[np.searchsorted(self.bands, bands_N[is_center_N])]

        is_pair_N = smallest_N != documents_N
        return distinct_pairs(smallest_N[is_pair_N], documents_N[is_pair_N])


def find_hot_bands(pieces: Iterable[Columns], sampled: int = SAMPLED, max_star: int = MAX_STAR) -> HotBands:
    """Return the bands with more than `max_star` documents, estimated from a sample of one document in `sampled`.

    Needs 16 bytes for each row of the sample.
    """
    bands = [np.zeros(0, np.uint64)]
    documents = [np.zeros(0, np.uint64)]
    for bands_N, documents_N in pieces:
        # Sample by bits of the id that choose neither its group (the lowest bits) nor the smallest document (the
        # highest).
        is_counted_N = (documents_N >> np.uint64(24)) % np.uint64(sampled) == 0
        bands.append(bands_N[is_counted_N])
        documents.append(documents_N[is_counted_N])

    # The copies of a text may be in several pieces, so count distinct documents.
    _, bands_of_sample = distinct_pairs(np.concatenate(documents), np.concatenate(bands))
    found, counts = np.unique(bands_of_sample, return_counts=True)
    estimates = counts * sampled
    is_hot = estimates > max_star

    wanted = -(-2 * estimates[is_hot] // max_star)
    groups = np.array([1 << (count - 1).bit_length() for count in wanted.tolist()], np.int64)
    first_groups = np.cumsum(groups) - groups
    return HotBands(found[is_hot], groups.astype(np.uint64), first_groups)
