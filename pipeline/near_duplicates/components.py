"""Connected components of similar documents: finds the documents that are not the smallest id of their component.

Alternating stars (Kiveris, Lattanzi, Mirrokni, Rastogi and Vassilvitskii, "Connected Components in MapReduce and
Beyond", SoCC 2014). Both operations preserve the components, and repeated in turn they leave a star around the smallest
node of each:

    large star   at node v: the larger neighbors of v are connected to the smallest node among v and its neighbors
    small star   at node v: v and its smaller neighbors are connected to the smallest of them

Our small star also shrinks the graph. It replaces a bucket's edges by stars of their components, and removes *leaves*:
nodes with only smaller neighbors. A leaf's edges are all in this bucket, so removing it disconnects nothing. A node
with a smaller neighbor is not the smallest of its component, so it is *dropped* at once, without knowing the label of
its component.

Any number of rounds is correct, because one worker finishes the rest with `connected_roots`. Edges that the first small
star and each round leave of graphs with a million nodes (measured):

                              edges      first    round 1    round 2    round 3    round 4    round 5
    one path              1,000,000    667,000    284,000    111,000     44,000     18,000      7,000
    paths of 10             900,000    533,000    181,000     27,000          0
    binary tree           1,000,000    626,000    211,000     67,000     12,000      1,500        100
    random tree           1,000,000    614,000    208,000     56,000      9,000        800         50
    grid                  1,998,000  1,798,000    785,000    193,000     37,000      5,500        750
    random, half as many    500,000    236,000     63,000     13,000      2,000        300         40
    random, as many       1,000,000    703,000    327,000    199,000    149,000        150          0

Each node had a bucket of its own, which is the worst case. The nodes have random ids, as documents do. A path in the
order of its ids would take one round for each halving.

A node may have very many larger neighbors, so the rows of large stars come in pieces. Small stars need no pieces: a
node has few smaller neighbors, at most one for each band or bucket of the previous step.

Shape suffixes: N nodes, E edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.near_duplicates.bands import Columns, Ids, distinct_pairs, joined
from schemas.ragged import group_starts

EDGE_SCHEMA = pa.schema([("node", pa.uint64()), ("other", pa.uint64())])
"""node: the end whose bucket the row is in. other: the other end. A row with two equal ends marks a center: a node that
is the smaller end of some edge."""


@dataclass(frozen=True)
class Edges:
    """Distinct edges of a graph. smaller, larger: (E,) uint64, the two ends of each."""

    smaller: Ids
    larger: Ids


@dataclass(frozen=True)
class SmallStars:
    """The remaining edges of a bucket, and the nodes that are not the smallest of their component."""

    edges: Edges
    dropped: Ids


def connected_roots(first_E: Ids, second_E: Ids) -> tuple[Ids, Ids]:
    """Return (N,) uint64 twice: the nodes of some edges in ascending order, and each node's smallest connected node.

    Each pass over the edges attaches every root that meets a smaller root to the smallest such root, and then shortens
    all paths. Every root is merged within two passes, so there are at most 2 * log2(N) passes. Needs about 45 bytes per
    edge in addition to the edges, for up to 2**31 nodes.
    """
    nodes_N = _distinct(np.concatenate([first_E, second_E]))
    first = np.searchsorted(nodes_N, first_E).astype(np.int32)
    second = np.searchsorted(nodes_N, second_E).astype(np.int32)

    # The nodes are sorted, so comparing positions compares nodes.
    parents_N = np.arange(len(nodes_N), dtype=np.int32)
    while True:
        first_roots = parents_N[first]
        second_roots = parents_N[second]
        differ = first_roots != second_roots
        if not differ.any():
            return nodes_N, nodes_N[parents_N]

        # From here on, an edge connects the roots of its ends.
        first = np.minimum(first_roots, second_roots)[differ]
        second = np.maximum(first_roots, second_roots)[differ]
        np.minimum.at(parents_N, second, first)
        _point_to_roots(parents_N)


def _distinct(ids: Ids) -> Ids:
    """Return the distinct ids in ascending order. Unlike np.unique, sorts the given array in place."""
    ids.sort()
    is_new = np.ones(len(ids), bool)
    is_new[1:] = ids[1:] != ids[:-1]
    return ids[is_new]


def _point_to_roots(parents_N: NDArray[np.int32]) -> None:
    """Replace each node's parent by its root, in place."""
    while True:
        grandparents_N = parents_N[parents_N]
        if np.array_equal(grandparents_N, parents_N):
            return
        parents_N[:] = grandparents_N


def small_stars(edges: Edges, centers: Ids) -> SmallStars:
    """Return the small stars of a bucket, which has every edge whose larger end belongs to it.

    centers: the nodes of the bucket that are the smaller end of any edge. It may contain other nodes too, which merely
    stay in the graph longer.
    """
    dropped = np.unique(edges.larger)
    leaves = dropped[~np.isin(dropped, centers)]

    nodes_N, roots_N = connected_roots(edges.smaller, edges.larger)
    stays_N = (nodes_N != roots_N) & ~np.isin(nodes_N, leaves)
    return SmallStars(Edges(roots_N[stays_N], nodes_N[stays_N]), dropped)


Neighborhoods = Columns
"""(N,) uint64 twice: the nodes of a bucket, and the smallest node among each and its neighbors."""


def neighborhoods(pieces: Iterable[Columns]) -> Neighborhoods:
    """Return the neighborhoods of all nodes of a bucket, from pieces with a row for each node and neighbor.

    Needs about 40 bytes for each row of a piece, and for each node.
    """
    found: Neighborhoods = (np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    for nodes_E, others_E in pieces:
        of_piece = _smallest_by_node(nodes_E, np.minimum(nodes_E, others_E))
        found = _smallest_by_node(*joined([found, of_piece]))
    return found


def _smallest_by_node(nodes: Ids, candidates: Ids) -> Neighborhoods:
    order = np.argsort(nodes)
    sorted_nodes = nodes[order]
    starts_N = group_starts(sorted_nodes)
    return sorted_nodes[starts_N], np.minimum.reduceat(candidates[order], starts_N)


def large_stars(nodes_E: Ids, others_E: Ids, known: Neighborhoods) -> Edges:
    """Return the large stars of some rows, each with a node of a bucket and one of its neighbors."""
    # Edges to smaller neighbors are handled at those neighbors.
    is_larger_E = others_E > nodes_E
    nodes_N, smallest_N = known
    places = np.searchsorted(nodes_N, nodes_E[is_larger_E])
    smaller, larger = distinct_pairs(smallest_N[places], others_E[is_larger_E])
    return Edges(smaller, larger)


def rows_at_both_ends(edges: Edges) -> pa.RecordBatch:
    """Return EDGE_SCHEMA rows for `large_stars`: each edge at both of its ends."""
    nodes = np.concatenate([edges.smaller, edges.larger])
    others = np.concatenate([edges.larger, edges.smaller])
    return edge_rows(nodes, others)


def rows_at_larger_ends(edges: Edges) -> pa.RecordBatch:
    """Return EDGE_SCHEMA rows for `small_stars`: each edge at its larger end, and each smaller end as a center."""
    centers = np.unique(edges.smaller)
    return edge_rows(np.concatenate([edges.larger, centers]), np.concatenate([edges.smaller, centers]))


def edge_rows(nodes: Ids, others: Ids) -> pa.RecordBatch:
    """Return EDGE_SCHEMA rows."""
    return pa.record_batch([pa.array(nodes, pa.uint64()), pa.array(others, pa.uint64())], schema=EDGE_SCHEMA)


def edges_and_centers(rows: pa.Table) -> tuple[Edges, Ids]:
    """Return the contents of rows from `rows_at_larger_ends`, from all buckets. Edges may occur several times."""
    nodes = rows["node"].to_numpy()
    others = rows["other"].to_numpy()
    marks_center = nodes == others
    return Edges(others[~marks_center], nodes[~marks_center]), np.unique(nodes[marks_center])


def all_but_smallest(edges: Edges) -> Ids:
    """Return the sorted nodes that are not the smallest of their component. Example: 1-2, 2-5 -> 2, 5."""
    nodes_N, roots_N = connected_roots(edges.smaller, edges.larger)
    return nodes_N[nodes_N != roots_N]
