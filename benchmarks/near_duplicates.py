"""Measures the worst cases of the near-duplicate search: large connected groups, and bands that many documents share.

    python benchmarks/near_duplicates.py rounds [--nodes 1000000]   edges left after each round of stars
    python benchmarks/near_duplicates.py band [--million 33]        memory and time of one band, by documents
    python benchmarks/near_duplicates.py finish [--million 10]      memory of the last step, by edges

Nodes have random ids, as documents do, and every node is in its own bucket. That is the worst case, because edges in
the same bucket are connected to each other in one round.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.shard.near_duplicates.bands import BAND_SCHEMA, Ids, distinct_pairs
from pipeline.shard.near_duplicates.components import EDGE_SCHEMA, Edges
from pipeline.steps import near_duplicates as steps
from schemas.randomness import mix

MAX_ROUNDS = 8
READ_ROWS = 1_000_000  # about PIECE_BYTES of pipeline/runtime/exchange.py


def graphs(nodes: int) -> Iterator[tuple[str, Edges]]:
    """Yield (name, graph) for graphs of several shapes."""
    draws = np.random.default_rng(0)
    ids = mix(np.arange(1, nodes + 1, dtype=np.uint64))
    side = int(nodes**0.5)
    square = ids[: side * side].reshape(side, side)
    parents = (draws.random(nodes - 1) * np.arange(1, nodes)).astype(np.int64)

    yield "one path", edges_between(ids[:-1], ids[1:])
    yield "paths of 10", edges_between(ids[:-1], ids[1:], np.arange(1, nodes) % 10 != 0)
    yield "binary tree", edges_between(ids[1:], ids[(np.arange(1, nodes) - 1) // 2])
    yield "random tree", edges_between(ids[1:], ids[parents])
    rows = edges_between(square[:, :-1].ravel(), square[:, 1:].ravel())
    columns = edges_between(square[:-1].ravel(), square[1:].ravel())
    yield "grid", Edges(*map(np.concatenate, ((rows.smaller, columns.smaller), (rows.larger, columns.larger))))
    for share, name in ((2, "random, half as many edges"), (1, "random, as many edges")):
        ends = draws.choice(ids, (2, nodes // share))
        yield name, edges_between(ends[0], ends[1])


def edges_between(first: Ids, second: Ids, kept: np.ndarray | None = None) -> Edges:
    differ = first != second
    if kept is not None:
        differ &= kept
    return Edges(np.minimum(first, second)[differ], np.maximum(first, second)[differ])


def small_stars(edges: Edges) -> Edges:
    """Return the edges that `components.small_stars` leaves if no two nodes share a bucket."""
    smaller, larger = distinct_pairs(edges.smaller, edges.larger)
    starts = np.flatnonzero(np.diff(larger, prepend=~larger[:1]))
    smallest = np.repeat(smaller[starts], np.diff(starts, append=len(larger)))

    nodes = larger[starts]
    stays = np.isin(nodes, smaller)
    first = np.concatenate([smallest, smaller[starts][stays]])
    second = np.concatenate([smaller, nodes[stays]])
    differ = first != second
    return Edges(first[differ], second[differ])


def large_stars(edges: Edges) -> Edges:
    """Return the edges that `components.large_stars` leaves, computed for all nodes at once."""
    nodes = np.concatenate([edges.smaller, edges.larger])
    others = np.concatenate([edges.larger, edges.smaller])
    order = np.argsort(nodes)
    nodes = nodes[order]
    others = others[order]

    starts = np.flatnonzero(np.diff(nodes, prepend=~nodes[:1]))
    smallest = np.minimum(nodes[starts], np.minimum.reduceat(others, starts))
    smallest = np.repeat(smallest, np.diff(starts, append=len(nodes)))
    is_larger = others > nodes
    return Edges(*distinct_pairs(smallest[is_larger], others[is_larger]))


def print_rounds(nodes: int) -> None:
    print(f"| graph of {nodes:,} nodes | edges | first small star | " + " | ".join(map(str, range(1, 1 + MAX_ROUNDS))))
    for name, edges in graphs(nodes):
        left = [len(edges.smaller)]
        edges = small_stars(edges)
        left.append(len(edges.smaller))
        for _ in range(MAX_ROUNDS):
            if left[-1]:
                edges = small_stars(large_stars(edges))
            left.append(len(edges.smaller) if left[-1] else 0)
        print(f"| {name} | " + " | ".join(f"{count:,}" for count in left), flush=True)


def measure_band(documents: int) -> None:
    """Measure pairing the documents of one band, and print its requests. Rows arrive in pieces, as from runs."""
    sent = 0
    by_center: Counter[int] = Counter()

    def read_pieces() -> Iterator[pa.Table]:
        for start in range(0, documents, READ_ROWS):
            ids = mix(np.arange(start + 1, min(start + READ_ROWS, documents) + 1, dtype=np.uint64))
            yield pa.table([pa.array(np.full(len(ids), 7, np.uint64)), pa.array(ids)], schema=BAND_SCHEMA)

    with measured(f"pair_bands, one band of {documents:,} documents"):
        for _, (keys, _) in steps.pair_bands(0, read_pieces, None):
            sent += len(keys)
            asked, times = np.unique(keys, return_counts=True)
            by_center.update(dict(zip(asked[times > 1].tolist(), times[times > 1].tolist(), strict=True)))
    print(f"{sent:,} requests, at most {max(by_center.values()):,} for one document")


def measure_finish(edges: int) -> None:
    """Measure connecting the edges of a path in one worker."""
    ids = mix(np.arange(1, edges + 2, dtype=np.uint64))
    path = edges_between(ids[:-1], ids[1:])
    tables = [pa.table([pa.array(path.larger), pa.array(path.smaller)], schema=EDGE_SCHEMA)]
    del ids, path
    with measured(f"finish, a path of {edges:,} edges"):
        for _ in steps.finish(0, lambda: [tables.pop()], None, seed=0):
            pass


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Print the peak memory and the CPU time of the block. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current use
    started = time.process_time()
    yield
    seconds = time.process_time() - started
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    print(f"{name}: {peak / 1e6:.2f} GB, {seconds:.0f} s of CPU")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("what", choices=["rounds", "band", "finish"])
    flags.add_argument("--nodes", type=int, default=1_000_000)
    flags.add_argument("--million", type=int, default=10)
    arguments = flags.parse_args()
    if arguments.what == "rounds":
        print_rounds(arguments.nodes)
    elif arguments.what == "band":
        measure_band(arguments.million * 1_000_000)
    else:
        measure_finish(arguments.million * 1_000_000)


if __name__ == "__main__":
    main()
