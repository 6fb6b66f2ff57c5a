"""The plainest form of each step, to compare with: dicts and loops instead of arrays and buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from pipeline.near_duplicates.bands import band_keys

Pair = tuple[int, int]


def pairs_of_bands(minima: dict[int, np.ndarray]) -> set[Pair]:
    """The smallest document of each band with each other document of it."""
    documents_of_band = defaultdict(set)
    for document, minima_M in minima.items():
        for band in band_keys(minima_M[None])[0].tolist():
            documents_of_band[band].add(document)

    found = set()
    for documents in documents_of_band.values():
        smallest = min(documents)
        found |= {(smallest, other) for other in documents if other != smallest}
    return found


def similar(minima: dict[int, np.ndarray], pairs: Iterable[Pair]) -> set[Pair]:
    """The pairs whose signatures agree in the lowest 8 bits of at least 90 of 128 minima."""
    return {(a, b) for a, b in pairs if sum((minima[a] & 255) == (minima[b] & 255)) >= 90}


def all_but_smallest(pairs: Iterable[Pair]) -> set[int]:
    """Union-find: the members of each group except its smallest."""
    parent: dict[int, int] = {}

    def root(member: int) -> int:
        while parent.setdefault(member, member) != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for first, second in pairs:
        smaller, larger = sorted((root(first), root(second)))
        parent[larger] = smaller
    return {member for member in parent if root(member) != member}
