"""The text that a job reads: its list of shards may be too long for a graph, so workers read it, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.beam.steps import Distribute, generate
from schemas.manifest import Manifest, Shard, read_shards_of_part


@dataclass(frozen=True)
class TextFolder:
    """Identifies a text folder without its list of shards.

    path: as workers open it. fingerprint: when the job began.
    num_parts: the number of parts of the list of shards; 1 if the manifest has no parts.
    """

    path: str
    fingerprint: str
    num_shards: int
    num_parts: int
    text_bytes: int

    @classmethod
    def of(cls, path: str, manifest: Manifest) -> TextFolder:
        num_parts = max(1, len(manifest.parts_of("shards")))
        return cls(path, manifest.fingerprint, manifest.num_shards, num_parts, manifest.totals["text_bytes"])

    def read_part(self, part: int) -> tuple[int, list[Shard]]:
        """Return (the number of the first shard of a part, its shards).

        Raises DataError if the text was replaced after the job started.
        """
        return read_shards_of_part(self.path, "text", self.fingerprint, part)


@dataclass
class DivideText(beam.PTransform):
    """A text -> what `divide` makes of each part of its list of shards, distributed evenly over the workers.

    divide: called as divide(part, plan), yields (number, item).
    """

    text: TextFolder
    divide: Callable[[int, Any], Iterator[tuple[int, Any]]]
    plan: Any

    def expand(self, pbegin: Any) -> PCollection:
        return (
            pbegin
            | "Parts" >> beam.Create([(part, part) for part in range(self.text.num_parts)], reshuffle=False)
            | "Distribute parts" >> Distribute()
            | "Divide" >> generate(self.divide, self.plan)
            | "Distribute" >> Distribute()
        )
