"""Near-duplicates as a Beam graph: from the bands and signatures of all runs to the documents to drop.

Every arrow is an exchange. There are 4, and 2 more for each of the R rounds of stars (none for a small input, 3 up to
160 GB, 8 for 10 TB). The number of documents decides, while the job runs, which path the edges take; the exchanges of
the other path stay empty.

    bands -> pair -> send (with the signatures of all documents) -> check --------------------------> finish
                                                                    check -> (large -> small) x R -> finish

Documents to drop go from `check`, each small star and `finish` to the exchange that makes the shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
import pyarrow as pa
from apache_beam.pvalue import AsSingleton, PCollection

from pipeline.beam.steps import call_once
from pipeline.commit.reports import Report
from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import Shuffle, Stream
from pipeline.exchange.exchange import Output, Plan, Plans, Relayed, Source, Step, Written, relay
from pipeline.exchange.runs import Keys
from pipeline.shard.merge import DROPPED_SCHEMA
from pipeline.shard.near_duplicates import BAND_SCHEMA, SIGNATURE_BUCKETS, SIGNATURE_SCHEMA
from pipeline.shard.near_duplicates.components import EDGE_SCHEMA
from pipeline.shard.near_duplicates.similarity import DELIVERY_SCHEMA, REQUEST_SCHEMA
from pipeline.shard.plan import CorpusSurvey
from pipeline.steps import near_duplicates as steps
from pipeline.steps.near_duplicates import plan_near_duplicates

DOCUMENTS = "documents"
STARS = "stars"
LAST = "last"
SHARDS = "shards"
"""Names of the exchanges' plans. Their keys are hashes of bands or ids of documents; ends of edges; anything, in a
single bucket; and placements."""


@dataclass(frozen=True)
class Corpus:
    """What the graph is built for.

    survey: a single CorpusSurvey. seed: determines the placements. rounds: number of rounds of stars; 0 for a small
    input.
    """

    survey: AsSingleton
    seed: int
    rounds: int
    shuffle: Shuffle
    staging: Staging


def near_duplicates_to_drop(runs: PCollection, corpus: Corpus) -> list[Relayed]:
    """Return the streams of documents to drop, numbered from 1 up, for the exchange of the shards.

    runs: the reports of all runs.
    """
    return _Graph(runs, corpus).build()


@dataclass(frozen=True)
class _Edges:
    """Edges between similar documents. By the plan, one of the two streams is empty.

    of_few_documents: for the last step. of_many_documents: for the rounds of stars, if there are any.
    """

    of_few_documents: Relayed
    of_many_documents: Relayed | None = None


class _Graph:
    """The steps, and the streams of documents to drop that they have made so far."""

    def __init__(self, runs: PCollection, corpus: Corpus):
        self._runs = runs
        self._corpus = corpus
        self._plans = AsSingleton(runs.pipeline | "Plan near-duplicates" >> call_once(_plans, corpus.survey))
        self._dropped: list[Relayed] = []

    def build(self) -> list[Relayed]:
        requested = self._pair()
        delivered = self._send(requested)
        edges = self._check(delivered)
        sources = [edges.of_few_documents]
        if edges.of_many_documents is not None:
            sources.append(self._rounds(edges.of_many_documents))

        finish = partial(steps.finish, seed=self._corpus.seed)
        step = Step("near-finish", finish, LAST, [self._output_of_dropped()])
        self._dropped += self._relay(sources, step)
        return self._dropped

    def _pair(self) -> Relayed:
        """Return the requests for the signatures of candidate pairs."""
        bands = Stream(0, "bands", BAND_SCHEMA, partial(_column, name="band"))
        indexes = self._runs | "Band indexes" >> beam.Map(_numbered_index, "bands")
        requests = Output(Stream(1, "requests", REQUEST_SCHEMA), DOCUMENTS)

        step = Step("near-pair", steps.pair_bands, DOCUMENTS, [requests], in_pieces=True)
        (requested,) = self._relay([Written(bands, indexes)], step)
        return requested

    def _send(self, requested: Relayed) -> Relayed:
        """Return the signatures of candidate pairs, delivered to where they are compared."""
        signatures = Stream(0, "signatures", SIGNATURE_SCHEMA, partial(_column, name="document"))
        indexes = self._runs | "Signature indexes" >> beam.Map(_numbered_index, "signatures")
        deliveries = Output(Stream(0, "deliveries", DELIVERY_SCHEMA), DOCUMENTS)

        step = Step("near-send", steps.send_signatures, DOCUMENTS, [deliveries])
        (delivered,) = self._relay([Written(signatures, indexes), requested], step)
        return delivered

    def _check(self, delivered: Relayed) -> _Edges:
        """Return the edges between similar documents."""
        outputs = [self._output_of_dropped(), Output(Stream(0, "few-edges", EDGE_SCHEMA), LAST)]
        if self._corpus.rounds:
            outputs.append(Output(Stream(0, "edges", EDGE_SCHEMA), STARS))

        check = partial(steps.check_pairs, seed=self._corpus.seed, rounds=self._corpus.rounds)
        step = Step("near-check", check, DOCUMENTS, outputs)
        dropped, *edges = self._relay([delivered], step)
        self._dropped.append(dropped)
        return _Edges(*edges)

    def _rounds(self, edges: Relayed) -> Relayed:
        """Return the edges that remain after all rounds of stars."""
        left = edges
        for number in range(self._corpus.rounds):
            left = self._round(left, number)
        return left

    def _round(self, edges: Relayed, number: int) -> Relayed:
        """Return the edges that remain after one round of large and small stars."""
        at_larger_ends = Output(Stream(0, "large-stars", EDGE_SCHEMA), STARS)
        name = f"near-large-{number}"
        step = Step(name, steps.make_large_stars, STARS, [at_larger_ends], in_pieces=True)
        (large,) = self._relay([edges], step)

        is_last = number == self._corpus.rounds - 1
        left = Output(Stream(0, "small-stars", EDGE_SCHEMA), STARS)
        if is_last:
            left = Output(Stream(1, "small-stars", EDGE_SCHEMA), LAST)
        make = partial(steps.make_small_stars, seed=self._corpus.seed, is_last=is_last)
        step = Step(f"near-small-{number}", make, STARS, [self._output_of_dropped(), left])
        dropped, small = self._relay([large], step)
        self._dropped.append(dropped)
        return small

    def _output_of_dropped(self) -> Output:
        number = 1 + len(self._dropped)
        return Output(Stream(number, f"dropped-{number}", DROPPED_SCHEMA), SHARDS)

    def _relay(self, sources: Sequence[Source], step: Step) -> list[Relayed]:
        return relay(sources, step, self._plans, self._corpus.shuffle, self._corpus.staging)


def _plans(survey: CorpusSurvey) -> Plans:
    plan = plan_near_duplicates(survey, SIGNATURE_BUCKETS)
    return {
        DOCUMENTS: Plan(plan.buckets, plan.merges_runs, details=plan),
        STARS: Plan(plan.star_buckets, details=plan),
        LAST: Plan(1, details=plan),
        SHARDS: Plan(survey.num_shards),
    }


def _numbered_index(run: Report, name: str) -> tuple[int, list]:
    return run["split"], run[name]


def _column(rows: pa.RecordBatch, name: str) -> Keys:
    return rows[name].to_numpy()
