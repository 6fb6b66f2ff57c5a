"""Whatever the graph, the number of buckets and of rounds: the result is that of union-find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.jobs.near_duplicates import finish_stars, make_large_stars, make_small_stars
from pipeline.near_duplicates.bands import Ids
from pipeline.near_duplicates.components import (
    EDGE_SCHEMA,
    Edges,
    all_but_smallest,
    connected_roots,
    rows_at_larger_ends,
)
from schemas.randomness import mix
from tests.pipeline.near_duplicates import reference
from tests.pipeline.near_duplicates.buckets import KeyedBatches, relayed


def dropped_by_stars(edges: Edges, buckets: int, rounds: int) -> tuple[set[int], int]:
    """The nodes that small stars and the last step drop, and the number of edges that the last step got."""
    rows = rows_at_larger_ends(edges)
    batches: KeyedBatches = [(rows["node"].to_numpy(), rows)]
    dropped: KeyedBatches = []
    for number in range(rounds + 1):
        is_last = number == rounds
        made = relayed(_small_stars(is_last), [(batches, EDGE_SCHEMA)], buckets, None)
        dropped += made[0]
        batches = made[1]
        if not is_last:
            batches = relayed(make_large_stars, [(batches, EDGE_SCHEMA)], buckets, None, in_pieces=True)[0]

    dropped += relayed(_finish, [(batches, EDGE_SCHEMA)], 1, None)[0]
    ids = {document for _, rows in dropped for document in rows["document"].to_pylist()}
    return ids, sum(rows.num_rows for _, rows in batches)


def _small_stars(is_last: bool):
    def step(bucket, read_tables, details):
        return make_small_stars(bucket, read_tables, details, seed=0, is_last=is_last)

    return step


def _finish(bucket, read_tables, details):
    return finish_stars(bucket, read_tables, details, seed=0)


def edges_between(first: Ids, second: Ids) -> Edges:
    differ = first != second
    smaller = np.minimum(first, second)[differ]
    larger = np.maximum(first, second)[differ]
    return Edges(smaller, larger)


def union_find(edges: Edges) -> set[int]:
    return reference.all_but_smallest(zip(edges.smaller.tolist(), edges.larger.tolist(), strict=True))


ids_of_small_graphs = st.integers(0, 24).map(lambda node: int(mix(np.array([node], np.uint64))[0]))
graphs = st.lists(st.tuples(ids_of_small_graphs, ids_of_small_graphs), max_size=40)


@given(graphs, st.sampled_from([1, 2, 5, 16]), st.integers(0, 3))
@settings(max_examples=50)
def test_stars_find_what_union_find_does(graph: list[tuple[int, int]], buckets: int, rounds: int) -> None:
    first, second = np.array(graph, np.uint64).reshape(-1, 2).T
    edges = edges_between(first, second)
    assert dropped_by_stars(edges, buckets, rounds)[0] == union_find(edges)
    assert set(all_but_smallest(edges).tolist()) == union_find(edges)


def random_ids(count: int) -> Ids:
    return mix(np.arange(1, count + 1, dtype=np.uint64))


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.thorough)])
def test_random_edges(count: int) -> None:
    rng = np.random.default_rng(0)
    ids = random_ids(count)
    edges = edges_between(rng.choice(ids, count), rng.choice(ids, count))

    found, left = dropped_by_stars(edges, 8, rounds=3)
    assert found == union_find(edges)
    assert left < count / 40


def test_a_long_path() -> None:
    ids = random_ids(200_000)
    edges = edges_between(ids[:-1], ids[1:])
    found, left = dropped_by_stars(edges, 8, rounds=3)
    assert found == set(ids.tolist()) - {int(ids.min())}
    assert left < 12_000


def test_a_path_in_the_order_of_its_ids_needs_few_passes() -> None:
    ids = np.arange(1, 200_001, dtype=np.uint64)
    nodes, roots = connected_roots(ids[:-1], ids[1:])
    assert (nodes == ids).all()
    assert (roots == 1).all()
