"""Candidate pairs by banding (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4).

The minima of a signature are cut into 16 bands of 8. Documents that agree in all minima of a band are candidates. A
pair of similarity s shares a band with probability 1 - (1 - s**8)**16: 0.61 at 0.7, 0.95 at 0.8, 0.999 at 0.9.

The documents of a band form a star, not a clique: each is paired with the smallest id only. So n documents cost n - 1
pairs instead of n * (n - 1) / 2.

A band of more than about MAX_STAR documents, such as that of pages made from one template, is *hot*: a star would send
its center's signature to all others, from one worker. So its documents are cut into *groups* by the last bits of their
ids, each document is paired with the smallest one of its group, and these are paired with the smallest one of the band.
Every document is still the larger one of at most one pair of the band.

Whether a band is hot, and its groups, follow from its documents alone: they are counted in a sample, the documents with
a certain remainder of the id. Bands of up to 60,000 documents are never hot in practice, and those of 200,000 always
are. The rows of a bucket come in pieces and are read three times, so that memory does not grow with a band:

    1. sample the documents, and find the hot bands
    2. find the smallest document of each group
    3. pair the documents of hot bands, piece by piece; collect the rows of all other bands

Shape suffixes: D documents of a run, M minima (PERMUTATIONS), B bands (BANDS), W 64-bit words of a band, N rows (one
band of one document each), G rows that share their band with another row, or groups of all hot bands, H hot bands,
P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.near_duplicates.signatures import PERMUTATIONS, Minima
from schemas.randomness import GOLDEN, mix

BANDS = 16

BAND_SCHEMA = pa.schema([("band", pa.uint64()), ("document", pa.uint64())])
"""band: a hash of the band's number and minima. document: an id that has this band. 16 rows of 16 bytes per id."""

_WORDS_PER_BAND = PERMUTATIONS // BANDS // 2  # 64-bit words, each of two 32-bit minima

Ids = NDArray[np.uint64]

Columns = tuple[Ids, Ids]
"""The bands and the documents of some rows, or two other columns of them."""


def band_keys(minima_DM: Minima) -> Ids:
    """Return (D, BANDS) uint64: a hash of each band's number and minima."""
    # Every dimension is written out, because numpy cannot infer one for a run without documents.
    shape = (len(minima_DM), BANDS, _WORDS_PER_BAND)
    words_DBW = np.ascontiguousarray(minima_DM).view(np.uint64).reshape(shape)

    # Each band starts from its own number, so that equal minima in different bands do not collide.
    keys_DB = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), words_DBW.shape[:2])
    for i in range(_WORDS_PER_BAND):
        next_keys_DB = keys_DB + np.uint64(GOLDEN)
        keys_DB = mix(next_keys_DB ^ words_DBW[:, :, i])
    return keys_DB


def band_rows(ids_D: Ids, minima_DM: Minima) -> pa.RecordBatch:
    """Return the BAND_SCHEMA rows of documents, BANDS rows for each."""
    bands_N = band_keys(minima_DM).ravel()
    documents_N = np.repeat(ids_D, BANDS)
    return pa.record_batch([pa.array(bands_N), pa.array(documents_N)], schema=BAND_SCHEMA)


def star_pairs(bands_N: Ids, documents_N: Ids) -> tuple[Ids, Ids]:
    """Return (P,) uint64 twice: the smallest document of a band, and another document of that band.

    Pairs are distinct, in ascending order of the second document and then the first. Needs about 40 bytes per row in
    addition to the rows.
    """
    order_N = np.argsort(bands_N)
    sorted_bands_N = bands_N[order_N]
    equals_previous_N = np.zeros(len(order_N), bool)
    equals_previous_N[1:] = sorted_bands_N[1:] == sorted_bands_N[:-1]

    # Most bands belong to one document. Keep the rows of the others: those equal to the previous row, and the row
    # before each such group.
    is_shared_N = equals_previous_N.copy()
    is_shared_N[:-1] |= equals_previous_N[1:]
    documents_G = documents_N[order_N[is_shared_N]]
    group_starts = np.flatnonzero(~equals_previous_N[is_shared_N])
    if len(group_starts) == 0:
        return documents_G, documents_G

    group_sizes = np.diff(group_starts, append=len(documents_G))
    smallest_G = np.repeat(np.minimum.reduceat(documents_G, group_starts), group_sizes)

    # Copies of one text have the same id, so a document may be in a band several times.
    is_pair_G = smallest_G != documents_G
    return distinct_pairs(smallest_G[is_pair_G], documents_G[is_pair_G])


def distinct_pairs(first_N: Ids, second_N: Ids) -> tuple[Ids, Ids]:
    """Return the distinct pairs of N (first, second), in ascending order of second and then first."""
    order_N = np.lexsort((first_N, second_N))
    first_N = first_N[order_N]
    second_N = second_N[order_N]
    is_new_N = np.ones(len(order_N), bool)
    is_new_N[1:] = (first_N[1:] != first_N[:-1]) | (second_N[1:] != second_N[:-1])
    return first_N[is_new_N], second_N[is_new_N]


# ---- Hot bands ----

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
        """Return candidate pairs for rows of hot bands, as the function `star_pairs` does for others."""
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


# ---- Rows that are read several times ----

KEPT_ROWS = 8_000_000
"""Up to this many rows (128 MB) stay in memory after the first read: twice an average bucket of bands."""

ReadPieces = Callable[[], Iterator[pa.Table]]


class Pieces:
    """Rows to iterate over several times: kept in memory if they are few, read again if they are many.

    Iterating yields the two columns of each piece. Pieces and rows come in any order.
    """

    def __init__(self, read: ReadPieces, names: tuple[str, str], max_kept_rows: int = KEPT_ROWS):
        self._read = read
        self._names = names
        self._max_kept_rows = max_kept_rows
        self._kept: list[Columns] | None = None

    def __iter__(self) -> Iterator[Columns]:
        if self._kept is not None:
            yield from self._kept
            return

        first, second = self._names
        kept: list[Columns] = []
        rows = 0
        for table in self._read():
            columns = (table[first].to_numpy(), table[second].to_numpy())
            rows += table.num_rows
            if rows <= self._max_kept_rows:
                kept.append(columns)
            else:
                kept.clear()
            yield columns

        if rows <= self._max_kept_rows:
            self._kept = kept


def joined(pieces: list[Columns]) -> Columns:
    """Return the columns of all pieces, and empty the list."""
    first = np.concatenate([np.zeros(0, np.uint64), *(columns[0] for columns in pieces)])
    second = np.concatenate([np.zeros(0, np.uint64), *(columns[1] for columns in pieces)])
    pieces.clear()
    return first, second
