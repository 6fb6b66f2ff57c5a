"""The part of `vocab` that runs on workers, as a Beam graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsList, PCollection

from pipeline.options import VocabJob
from pipeline.runtime.staging import Staging
from pipeline.steps.vocab import add_counts, count_words
from pipeline.transforms.calls import DistributeList, call
from pipeline.vocab.counting import PARTITIONS
from schemas.manifest import Shard


@dataclass
class CountWords(beam.PTransform):
    """Text shards -> word counts of each shard -> sums over all shards, a partition of the words at a time.

    sources: what the counts distinguish, besides words.
    """

    shards: list[Shard]
    job: VocabJob
    sources: list[str]
    staging: Staging

    def expand(self, pbegin: Any) -> PCollection:
        counted = (
            pbegin
            | "Text shards" >> beam.Create([self.shards])
            | "Distribute shards" >> DistributeList()
            | "Count" >> call(count_words, self.job, self.sources, self.staging)
        )
        return (
            pbegin
            | "Partitions" >> beam.Create([list(range(PARTITIONS))])
            | "Distribute partitions" >> DistributeList()
            | "Add counts" >> call(add_counts, AsList(counted), self.staging)
        )
