"""`pairs` as a Beam graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection

from pipeline.steps.pairs import PairsPlan, build_pair_shard, publish_pairs
from pipeline.steps.provenance import Provenance
from pipeline.transforms.calls import Distribute, call, call_once


@dataclass
class WritePairs(beam.PTransform):
    """Text shards -> pair shards -> a finished folder. A map: each pair shard is made from one text shard alone."""

    plan: PairsPlan
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        reports = (
            pbegin
            | "Shards" >> beam.Create([list(range(self.plan.num_shards))])
            | "Distribute" >> Distribute()
            | "Build" >> call(build_pair_shard, self.plan, counted="pairs")
        )
        return pbegin | "Finish" >> call_once(publish_pairs, AsList(reports), self.plan, self.provenance)
