"""Turns the reports of a folder's shards into a summary of each part of its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from pipeline.beam.steps import call
from pipeline.runtime.counters import Report
from pipeline.runtime.manifest_parts import AddUp, PartSummary, part_of_report, summarize_part
from pipeline.runtime.staging import Staging


@dataclass
class SummarizeParts(beam.PTransform):
    """Reports of shards -> a PartSummary for each 4,096 of them. Parts are summarized on different workers.

    add_up: adds up what the reports count. A module-level function, so that workers can import it.
    """

    add_up: AddUp
    staging: Staging

    def expand(self, reports: Any) -> PCollection:
        return (
            reports
            | "Part" >> beam.Map(_with_part)
            | "Group" >> beam.GroupByKey()
            | "Summarize" >> call(_summarize, self.add_up, self.staging)
        )


def _with_part(report: Report) -> tuple[int, Report]:
    return part_of_report(report), report


def _summarize(part: tuple[int, Iterable[Report]], add_up: AddUp, staging: Staging) -> PartSummary:
    number, reports = part
    return summarize_part(number, reports, add_up, staging)
