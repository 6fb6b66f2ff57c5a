"""The steps that find near-duplicates. Each processes one bucket of an exchange.

    pair_bands        rows of bands         -> requests for the signatures of candidate pairs
    send_signatures   signatures, requests  -> deliveries of signatures
    check_pairs       deliveries            -> edges between similar documents
    make_large_stars  edges                 -> edges
    make_small_stars  edges                 -> fewer edges
    finish            the remaining edges

`check_pairs`, `make_small_stars` and `finish` also find documents to drop. pipeline/transforms/near_duplicates.py
connects the steps, and pipeline/shard/near_duplicates has the algorithms.

A step yields (output number, (keys, rows)), where the output number is an index into the step's list of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.exchange.blocks import Addressed, KeyedBatch
from pipeline.shard.merge import DROPPED_SCHEMA
from pipeline.shard.near_duplicates import bands, components, similarity
from pipeline.shard.near_duplicates.bands import Ids
from pipeline.shard.near_duplicates.components import Edges, SmallStars
from pipeline.shard.near_duplicates.hot_bands import find_hot_bands
from pipeline.shard.near_duplicates.pieces import Columns, Pieces, ReadPieces, joined
from pipeline.shard.partition import placements
from pipeline.shard.plan import CorpusSurvey

BUCKET_DOCUMENTS = 250_000
"""Maximum mean number of documents per bucket. They have 64 MB of bands and 34 MB of signatures."""

UNION_FIND_DOCUMENTS = 4_000_000
"""Up to this many documents, a single worker connects all similar ones. It needs about 60 bytes for each edge that
`check_pairs` leaves; documents that share a single band leave no edges."""

LAST_EDGES = 10_000_000
"""Target for the edges left to one worker after the rounds of stars, about 0.6 GB. It is not a hard limit."""

MIN_ROUNDS = 3

INPUT_BYTES_OF_DOCUMENT = 1000
"""Assumed input bytes per document. Most documents have more: a web page has 3 KB of text, or 1 KB compressed."""

EDGES_LEFT_AT_FIRST = 0.67
EDGES_LEFT_BY_ROUND = 0.4
"""Shares of the edges left by the first small star and by each round, for a path graph, which shrinks most slowly.
See components.py."""

SMALL_INPUT_BYTES = 1 << 30
"""A job with less input has no rounds of stars in its graph, because even an empty exchange takes 0.1 s. Such a job has
fewer than UNION_FIND_DOCUMENTS documents, unless they are very short or highly compressed. In that case one worker
still connects them, but needs more memory."""

ReadTables = Callable[[], list[pa.Table]]
"""Returns one table per stream. A step whose single stream may be too large for one table gets ReadPieces instead."""


@dataclass(frozen=True)
class NearDuplicatePlan:
    """How the search for near-duplicates is divided among workers.

    buckets: number of buckets for bands and signatures.
    star_buckets: number of buckets for edges; smaller, because most documents have no edges.
    is_small: whether one worker connects all edges, so that the exchanges of stars stay empty.
    merges_runs: whether runs are merged before they are read.
    """

    buckets: int
    star_buckets: int
    is_small: bool
    merges_runs: bool


def plan_near_duplicates(survey: CorpusSurvey, run_buckets: int) -> NearDuplicatePlan:
    """Return the plan for a corpus whose runs are cut into `run_buckets`, a power of two."""
    needed = -(-survey.documents // BUCKET_DOCUMENTS)
    buckets = 1 << max(0, needed - 1).bit_length()
    return NearDuplicatePlan(
        buckets=buckets,
        star_buckets=max(1, buckets // 4),
        is_small=survey.documents <= UNION_FIND_DOCUMENTS,
        merges_runs=survey.merges_runs or buckets > run_buckets,
    )


def rounds_for(input_bytes: int) -> int:
    """Return the number of rounds of stars in a job's graph.

    It suffices for the worst case, a path through all documents, to shrink to LAST_EDGES edges: 3 rounds for 160 GB of
    input, 5 for 1 TB, and 8 for 10 TB.
    """
    if input_bytes < SMALL_INPUT_BYTES:
        return 0

    edges = EDGES_LEFT_AT_FIRST * input_bytes / INPUT_BYTES_OF_DOCUMENT
    rounds = 0
    while edges > LAST_EDGES:
        edges *= EDGES_LEFT_BY_ROUND
        rounds += 1
    return max(rounds, MIN_ROUNDS)


def pair_bands(bucket: int, read_pieces: ReadPieces, details: Any) -> Iterator[Addressed]:
    """Pair the documents that share a band. Output 0: requests."""
    pieces = Pieces(read_pieces, ("band", "document"))
    hot = find_hot_bands(pieces)
    others: list[Columns] = []
    if len(hot.bands) == 0:
        others += pieces
    else:
        smallest_G = hot.smallest_of_groups(pieces)
        for bands_N, documents_N in pieces:
            is_hot_N = hot.has(bands_N)
            others.append((bands_N[~is_hot_N], documents_N[~is_hot_N]))
            yield 0, _batch_of_requests(*hot.star_pairs(bands_N[is_hot_N], documents_N[is_hot_N], smallest_G))

    del pieces
    yield 0, _batch_of_requests(*bands.star_pairs(*joined(others)))


def send_signatures(bucket: int, read_tables: ReadTables, details: Any) -> Iterator[Addressed]:
    """Send the requested signatures to the buckets that compare them. Output 0: deliveries."""
    signatures, requested = read_tables()
    for rows in similarity.deliveries(signatures, requested):
        yield 0, (rows["to"].to_numpy(), rows)


def check_pairs(
    bucket: int, read_tables: ReadTables, plan: NearDuplicatePlan, seed: int, rounds: int
) -> Iterator[Addressed]:
    """Connect similar documents. Outputs: 0 documents to drop, 1 edges for the last step, 2 edges for large stars."""
    (delivered,) = read_tables()
    pairs = similarity.similar_pairs(delivered)
    del delivered

    stars = components.small_stars(Edges(pairs.smaller, pairs.larger), pairs.centers)
    yield 0, dropped_batch(stars.dropped, seed)
    if plan.is_small or rounds == 0:
        yield 1, _last_batch(stars)
    else:
        yield 2, _batch_for_large_stars(stars)


def make_large_stars(bucket: int, read_pieces: ReadPieces, details: Any) -> Iterator[Addressed]:
    """Do the large-star half of a round. Output 0: edges for small stars."""
    pieces = Pieces(read_pieces, ("node", "other"))
    known = components.neighborhoods(pieces)
    for nodes_E, others_E in pieces:
        rows = components.rows_at_larger_ends(components.large_stars(nodes_E, others_E, known))
        yield 0, (rows["node"].to_numpy(), rows)


def make_small_stars(
    bucket: int, read_tables: ReadTables, details: Any, seed: int, is_last: bool
) -> Iterator[Addressed]:
    """Do the small-star half of a round.

    Outputs: 0 documents to drop, 1 edges, which go to `finish` after the last round and to large stars otherwise.
    """
    (table,) = read_tables()
    stars = components.small_stars(*components.edges_and_centers(table))
    del table

    yield 0, dropped_batch(stars.dropped, seed)
    yield 1, _last_batch(stars) if is_last else _batch_for_large_stars(stars)


def finish(bucket: int, read_tables: ReadTables, details: Any, seed: int) -> Iterator[Addressed]:
    """Connect all remaining edges, in one worker. Output 0: documents to drop."""
    smaller, larger = joined([(table["other"].to_numpy(), table["node"].to_numpy()) for table in read_tables()])
    dropped = components.all_but_smallest(Edges(smaller, larger))
    yield 0, dropped_batch(dropped, seed)


def dropped_batch(ids: Ids, seed: int) -> KeyedBatch:
    """Return documents to drop, keyed by placement, so that they reach the same bucket as the documents themselves."""
    return placements(ids, seed), pa.record_batch([pa.array(ids, pa.uint64())], schema=DROPPED_SCHEMA)


def _batch_of_requests(smaller: Ids, larger: Ids) -> KeyedBatch:
    rows = similarity.requests(smaller, larger)
    return rows["document"].to_numpy(), rows


def _batch_for_large_stars(stars: SmallStars) -> KeyedBatch:
    rows = components.rows_at_both_ends(stars.edges)
    return rows["node"].to_numpy(), rows


def _last_batch(stars: SmallStars) -> KeyedBatch:
    rows = components.edge_rows(stars.edges.larger, stars.edges.smaller)
    return rows["node"].to_numpy(), rows
