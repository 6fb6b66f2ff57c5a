"""`pairs` as a Beam graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection

from pipeline.beam.steps import DistributeList, call, call_last
from pipeline.steps.pairs import PairsPlan, add_pair_reports, build_pair_shard, pair_tasks, publish_pairs
from pipeline.steps.provenance import Provenance
from pipeline.transforms.manifest_parts import SummarizeParts


@dataclass
class WritePairs(beam.PTransform):
    """Text shards -> pair shards -> a finished folder. A map: each pair shard is made from one text shard."""

    plan: PairsPlan
    provenance: Provenance

    def expand(self, pbegin: Any) -> PCollection:
        # The graph contains no list of shards: workers read it from the text folder's manifest, a part at a time.
        summaries = (
            pbegin
            | "Text parts" >> beam.Create([list(range(self.plan.text_parts))])
            | "Distribute parts" >> DistributeList()
            | "Shards" >> call(pair_tasks, self.plan)
            | "Distribute shards" >> DistributeList()
            | "Build" >> call(build_pair_shard, self.plan, counted="pairs")
            | "Summarize parts" >> SummarizeParts(add_pair_reports, self.plan.staging)
        )
        return pbegin | "Finish" >> call_last(publish_pairs, AsList(summaries), self.plan, self.provenance)
