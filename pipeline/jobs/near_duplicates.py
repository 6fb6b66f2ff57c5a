"""The search for near-duplicates in `shard --dedup minhash`: from the bands and signatures of all runs to the documents
to drop. pipeline/near_duplicates has the algorithms.

Every arrow is an exchange, and every name a step, which processes one bucket of it. There are 4 exchanges, and 2 more
for each of the R rounds of stars (none for a small input, 3 up to 160 GB, 8 for 10 TB). The number of documents
decides, while the job runs, which path the edges take; the exchanges of the other path stay empty.

    bands -> pair -> send (with the signatures of all documents) -> check --------------------------> finish
                                                                    check -> (large -> small) x R -> finish

    pair     rows of bands         -> requests for the signatures of candidate pairs
    send     signatures, requests  -> deliveries of signatures
    check    deliveries            -> edges between similar documents
    large    edges                 -> edges
    small    edges                 -> fewer edges
    finish   the remaining edges

Documents to drop go from `check`, each small star and `finish` to the exchange that makes the shards. A step yields
(output number, (keys, rows)), where the output number is an index into the step's list of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam.steps import call_once
from pipeline.exchange.blocks import Addressed, KeyedBatch, Stream, Way
from pipeline.exchange.exchange import Output, Plan, Plans, Relayed, Source, Step, Written, numbered_index, relay
from pipeline.exchange.runs import Keys
from pipeline.near_duplicates import bands, components, similarity
from pipeline.near_duplicates.bands import BAND_SCHEMA, Columns, Ids, Pieces, ReadPieces, joined
from pipeline.near_duplicates.components import EDGE_SCHEMA, Edges, SmallStars
from pipeline.near_duplicates.signatures import SIGNATURE_BUCKETS, SIGNATURE_SCHEMA
from pipeline.near_duplicates.similarity import DELIVERY_SCHEMA, REQUEST_SCHEMA
from pipeline.shard.survey import CorpusSurvey
from pipeline.shard.write_runs import placements
from pipeline.shard.write_shard import DROPPED_SCHEMA

BUCKET_DOCUMENTS = 250_000
"""Maximum mean number of documents per bucket. They have 64 MB of bands and 34 MB of signatures."""

UNION_FIND_DOCUMENTS = 4_000_000
"""Up to this many documents, a single worker connects all similar ones. It needs about 60 bytes for each edge that
`check_candidates` leaves; documents that share a single band leave no edges."""

LAST_EDGES = 10_000_000
"""Target for the edges left to one worker after the rounds of stars, about 0.6 GB. It is not a hard limit."""

MIN_ROUNDS = 3

INPUT_BYTES_OF_DOCUMENT = 1000
"""Assumed input bytes per document. Most documents have more: a web page has 3 KB of text, or 1 KB compressed."""

EDGES_LEFT_AT_FIRST = 0.67
EDGES_LEFT_BY_ROUND = 0.4
"""Shares of the edges left by the first small star and by each round, for a path graph, which shrinks most slowly.
See pipeline/near_duplicates/components.py."""

SMALL_INPUT_BYTES = 1 << 30
"""A job with less input has no rounds of stars in its graph, because even an empty exchange takes 0.1 s. Such a job has
fewer than UNION_FIND_DOCUMENTS documents, unless they are very short or highly compressed. In that case one worker
still connects them, but needs more memory."""

DOCUMENTS = "documents"
STARS = "stars"
LAST = "last"
SHARDS = "shards"
"""Names of the exchanges' plans. Their keys are hashes of bands or ids of documents; ends of edges; anything, in a
single bucket; and placements."""

ReadTables = Callable[[], list[pa.Table]]
"""Returns one table per stream. A step whose single stream may be too large for one table gets ReadPieces instead."""

# ---- The plan ----


def plans_for(survey: CorpusSurvey) -> Plans:
    """Return how the documents of a corpus, its edges and its shards are divided among workers.

    The details of that of documents are whether one worker connects all edges, so that the exchanges of stars stay
    empty. There are fewer buckets of edges than of documents, because most documents have none.
    """
    needed = -(-survey.documents // BUCKET_DOCUMENTS)
    buckets = 1 << max(0, needed - 1).bit_length()
    merges_runs = survey.merges_runs or buckets > SIGNATURE_BUCKETS
    is_small = survey.documents <= UNION_FIND_DOCUMENTS
    return {
        DOCUMENTS: Plan(buckets, merges_runs, details=is_small),
        STARS: Plan(max(1, buckets // 4)),
        LAST: Plan(1),
        SHARDS: Plan(survey.num_shards),
    }


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


# ---- The graph ----


class NearDuplicates:
    """Connects the steps, and collects the streams of documents to drop that they make."""

    def __init__(self, runs: PCollection, survey: AsSingleton, seed: int, rounds: int, way: Way):
        """runs: the reports of all runs. survey: a single CorpusSurvey. seed: determines the placements.

        rounds: number of rounds of stars; 0 for a small input.
        """
        self._runs = runs
        self._seed = seed
        self._number_of_rounds = rounds
        self._way = way
        self._plans = AsSingleton(runs.pipeline | "Plan near-duplicates" >> call_once(plans_for, survey))
        self._dropped: list[Relayed] = []

    def to_drop(self) -> list[Relayed]:
        """Return the streams of documents to drop, numbered from 1 up, for the exchange of the shards."""
        edges = self._check(self._send(self._pair()))

        # By the plan, one of the two streams of edges is empty: of few documents, for the last step; of many, for the
        # rounds of stars, if there are any.
        of_few_documents, *of_many_documents = edges
        sources = [of_few_documents, *map(self._rounds, of_many_documents)]

        finish = partial(finish_stars, seed=self._seed)
        step = Step("near-finish", finish, LAST, [self._output_of_dropped()])
        self._dropped += self._relay(sources, step)
        return self._dropped

    def _pair(self) -> Relayed:
        bands = Stream(0, "bands", BAND_SCHEMA, partial(_column, name="band"))
        indexes = self._runs | "Band indexes" >> beam.FlatMap(numbered_index, "split", "bands")
        requests = Output(Stream(1, "requests", REQUEST_SCHEMA), DOCUMENTS)

        step = Step("near-pair", pair_bands, DOCUMENTS, [requests], in_pieces=True)
        (requested,) = self._relay([Written(bands, indexes)], step)
        return requested

    def _send(self, requested: Relayed) -> Relayed:
        signatures = Stream(0, "signatures", SIGNATURE_SCHEMA, partial(_column, name="document"))
        indexes = self._runs | "Signature indexes" >> beam.FlatMap(numbered_index, "split", "signatures")
        deliveries = Output(Stream(0, "deliveries", DELIVERY_SCHEMA), DOCUMENTS)

        step = Step("near-send", send_signatures, DOCUMENTS, [deliveries])
        (delivered,) = self._relay([Written(signatures, indexes), requested], step)
        return delivered

    def _check(self, delivered: Relayed) -> list[Relayed]:
        outputs = [self._output_of_dropped(), Output(Stream(0, "few-edges", EDGE_SCHEMA), LAST)]
        if self._number_of_rounds:
            outputs.append(Output(Stream(0, "edges", EDGE_SCHEMA), STARS))

        check = partial(check_candidates, seed=self._seed, rounds=self._number_of_rounds)
        step = Step("near-check", check, DOCUMENTS, outputs)
        dropped, *edges = self._relay([delivered], step)
        self._dropped.append(dropped)
        return edges

    def _rounds(self, edges: Relayed) -> Relayed:
        left = edges
        for number in range(self._number_of_rounds):
            left = self._round(left, number)
        return left

    def _round(self, edges: Relayed, number: int) -> Relayed:
        at_larger_ends = Output(Stream(0, "large-stars", EDGE_SCHEMA), STARS)
        name = f"near-large-{number}"
        step = Step(name, make_large_stars, STARS, [at_larger_ends], in_pieces=True)
        (large,) = self._relay([edges], step)

        is_last = number == self._number_of_rounds - 1
        left = Output(Stream(0, "small-stars", EDGE_SCHEMA), STARS)
        if is_last:
            left = Output(Stream(1, "small-stars", EDGE_SCHEMA), LAST)
        make = partial(make_small_stars, seed=self._seed, is_last=is_last)
        step = Step(f"near-small-{number}", make, STARS, [self._output_of_dropped(), left])
        dropped, small = self._relay([large], step)
        self._dropped.append(dropped)
        return small

    def _output_of_dropped(self) -> Output:
        number = 1 + len(self._dropped)
        return Output(Stream(number, f"dropped-{number}", DROPPED_SCHEMA), SHARDS)

    def _relay(self, sources: Sequence[Source], step: Step) -> list[Relayed]:
        return relay(sources, step, self._plans, self._way)


def _column(rows: pa.RecordBatch, name: str) -> Keys:
    return rows[name].to_numpy()


# ---- The steps, on workers ----


def pair_bands(bucket: int, read_pieces: ReadPieces, details: Any) -> Iterator[Addressed]:
    """Pair the documents that share a band. Output 0: requests."""
    pieces = Pieces(read_pieces, ("band", "document"))
    hot = bands.find_hot_bands(pieces)
    others: list[Columns] = []
    if len(hot.bands) == 0:
        others += pieces
    else:
        smallest_G = hot.smallest_of_groups(pieces)
        for bands_N, documents_N in pieces:
            is_hot_N = hot.has(bands_N)
            others.append((bands_N[~is_hot_N], documents_N[~is_hot_N]))
            pairs = hot.star_pairs(bands_N[is_hot_N], documents_N[is_hot_N], smallest_G)
            yield 0, _keyed(similarity.requests(*pairs), "document")

    del pieces
    yield 0, _keyed(similarity.requests(*bands.star_pairs(*joined(others))), "document")


def send_signatures(bucket: int, read_tables: ReadTables, details: Any) -> Iterator[Addressed]:
    """Send the requested signatures to the buckets that compare them. Output 0: deliveries."""
    signatures, requested = read_tables()
    for rows in similarity.deliveries(signatures, requested):
        yield 0, _keyed(rows, "to")


def check_candidates(
    bucket: int, read_tables: ReadTables, is_small: bool, seed: int, rounds: int
) -> Iterator[Addressed]:
    """Connect similar documents. Outputs: 0 documents to drop, 1 edges for the last step, 2 edges for large stars."""
    (delivered,) = read_tables()
    edges, centers = similarity.similar_pairs(delivered)
    del delivered

    stars = components.small_stars(edges, centers)
    yield 0, dropped_batch(stars.dropped, seed)
    if is_small or rounds == 0:
        yield 1, _keyed(_last_edges(stars), "node")
    else:
        yield 2, _keyed(components.rows_at_both_ends(stars.edges), "node")


def make_large_stars(bucket: int, read_pieces: ReadPieces, details: Any) -> Iterator[Addressed]:
    """Do the large-star half of a round. Output 0: edges for small stars."""
    pieces = Pieces(read_pieces, ("node", "other"))
    known = components.neighborhoods(pieces)
    for nodes_E, others_E in pieces:
        stars = components.large_stars(nodes_E, others_E, known)
        yield 0, _keyed(components.rows_at_larger_ends(stars), "node")


def make_small_stars(
    bucket: int, read_tables: ReadTables, details: Any, seed: int, is_last: bool
) -> Iterator[Addressed]:
    """Do the small-star half of a round.

    Outputs: 0 documents to drop, 1 edges, which go to `finish_stars` after the last round and to large stars otherwise.
    """
    (table,) = read_tables()
    stars = components.small_stars(*components.edges_and_centers(table))
    del table

    yield 0, dropped_batch(stars.dropped, seed)
    left = _last_edges(stars) if is_last else components.rows_at_both_ends(stars.edges)
    yield 1, _keyed(left, "node")


def finish_stars(bucket: int, read_tables: ReadTables, details: Any, seed: int) -> Iterator[Addressed]:
    """Connect all remaining edges, in one worker. Output 0: documents to drop."""
    smaller, larger = joined([(table["other"].to_numpy(), table["node"].to_numpy()) for table in read_tables()])
    dropped = components.all_but_smallest(Edges(smaller, larger))
    yield 0, dropped_batch(dropped, seed)


def dropped_batch(ids: Ids, seed: int) -> KeyedBatch:
    """Return documents to drop, keyed by placement, so that they reach the same bucket as the documents themselves."""
    return placements(ids, seed), pa.record_batch([pa.array(ids, pa.uint64())], schema=DROPPED_SCHEMA)


def _keyed(rows: pa.RecordBatch, column: str) -> KeyedBatch:
    return rows[column].to_numpy(), rows


def _last_edges(stars: SmallStars) -> pa.RecordBatch:
    return components.edge_rows(stars.edges.larger, stars.edges.smaller)
