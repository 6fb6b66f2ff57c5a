"""Connected components of similar documents: which documents are not the smallest id of their component.

Alternating stars (Kiveris, Lattanzi, Mirrokni, Rastogi and Vassilvitskii, "Connected Components in MapReduce and
Beyond", SoCC 2014). Both operations keep the components, and repeated in turn they leave a star around the smallest
node of each:

    large star   at node v: the larger neighbors of v are connected to the smallest node among v and its neighbors
    small star   at node v: v and its smaller neighbors are connected to the smallest of them

Here the small star does more for its exchange. The edges of a bucket are replaced by stars of the components that they
form among themselves, and a node with smaller neighbors only, a *leaf*, leaves the graph: its edges are all in this
bucket, and what they connected is now connected without it. Whatever has a smaller neighbor is not the smallest of its
component, so it is *dropped* at once, and nobody needs to know the label of its component.

So the graph that is left shrinks, and any number of rounds is correct: `connected_roots` finishes what remains in one
worker. Edges left of a million nodes, each in a bucket without others, by the first small star and three rounds:

    path                  1,000,000    667,000    284,000    111,000     44,000
    random, half as many    500,000    235,000     63,000     13,000      2,000
    random, as many       1,000,000    703,000    328,000    199,000     21,000

The nodes have random ids, as documents do. A path in the order of its ids would take a round for each halving.

Shape suffixes: N nodes, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.shard.near_duplicates.bands import Ids, distinct_pairs

EDGE_SCHEMA = pa.schema([("node", pa.uint64()), ("other", pa.uint64())])
"""node: the end in whose bucket the row lies. other: the other end; the node itself where a row says that it is the
smaller end of some edge, a center."""


@dataclass(frozen=True)
class Edges:
    """Distinct edges of a graph. smaller, larger: (E,) uint64, the two ends of each."""

    smaller: Ids
    larger: Ids


@dataclass(frozen=True)
class SmallStars:
    """What is left of a bucket's edges, and the nodes that turned out not to be the smallest of their component."""

    edges: Edges
    dropped: Ids


def connected_roots(first_E: Ids, second_E: Ids) -> tuple[Ids, Ids]:
    """Return (N,) uint64 twice: the nodes of some edges in ascending order, and the smallest node connected with each.

    Each pass over the edges hooks every root that meets a smaller root to the smallest one, and then shortens all
    paths. Every root is merged within two passes, so there are at most 2 * log2(N) of them. Needs about 60 bytes an
    edge.
    """
    nodes_N = np.unique(np.concatenate([first_E, second_E]))
    first = np.searchsorted(nodes_N, first_E)
    second = np.searchsorted(nodes_N, second_E)

    # The nodes are sorted, so the smaller place is the smaller node.
    parents_N = np.arange(len(nodes_N))
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


def _point_to_roots(parents_N: NDArray[np.int64]) -> None:
    """Replace each node's parent by its root, in place."""
    while True:
        grandparents_N = parents_N[parents_N]
        if np.array_equal(grandparents_N, parents_N):
            return
        parents_N[:] = grandparents_N


def small_stars(edges: Edges, centers: Ids) -> SmallStars:
    """Return the small stars of a bucket, which is the home of each edge's larger end.

    centers: the nodes of the bucket that are the smaller end of an edge anywhere. It may hold others too, which merely
    stay in the graph for longer.
    """
    dropped = np.unique(edges.larger)
    leaves = dropped[~np.isin(dropped, centers)]

    nodes_N, roots_N = connected_roots(edges.smaller, edges.larger)
    stays_N = (nodes_N != roots_N) & ~np.isin(nodes_N, leaves)
    return SmallStars(Edges(roots_N[stays_N], nodes_N[stays_N]), dropped)


def large_stars(nodes_E: Ids, others_E: Ids) -> Edges:
    """Return the large stars of a bucket, from the edges at its nodes: one row for each node and neighbor of it."""
    if len(nodes_E) == 0:
        return Edges(nodes_E, nodes_E)

    order_E = np.argsort(nodes_E)
    nodes_E = nodes_E[order_E]
    others_E = others_E[order_E]
    starts_N = np.flatnonzero(np.diff(nodes_E, prepend=~nodes_E[:1]))
    degrees_N = np.diff(starts_N, append=len(nodes_E))

    smallest_N = np.minimum(nodes_E[starts_N], np.minimum.reduceat(others_E, starts_N))
    smallest_E = np.repeat(smallest_N, degrees_N)

    # An edge to a smaller neighbor is connected at that neighbor.
    is_larger_E = others_E > nodes_E
    smaller, larger = distinct_pairs(smallest_E[is_larger_E], others_E[is_larger_E])
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
    """Return what `rows_at_larger_ends` put into rows, from all buckets; edges may now occur several times."""
    nodes = rows["node"].to_numpy()
    others = rows["other"].to_numpy()
    marks_center = nodes == others
    return Edges(others[~marks_center], nodes[~marks_center]), np.unique(nodes[marks_center])


def all_but_smallest(edges: Edges) -> Ids:
    """Return the sorted nodes that are not the smallest of their component. Example: 1-2, 2-5 -> 2, 5."""
    nodes_N, roots_N = connected_roots(edges.smaller, edges.larger)
    return nodes_N[nodes_N != roots_N]
