"""A job from its graph to its end: built first, then the output folder is held, then it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.runtime import leases, progress
from pipeline.runtime import runner as beam_runner
from pipeline.runtime.remote_jobs import JobStoppedError
from pipeline.runtime.staging import Staging
from schemas.manifest import Kind, Manifest, read_manifest


@dataclass(frozen=True)
class Execution:
    """What a job needs to run.

    kind: of the folder that it makes. label: of the whole graph, for engines' pages. graph: its steps.
    weights: the bytes of work behind each report that will appear in staging, for progress.
    """

    kind: Kind
    label: str
    graph: beam.PTransform
    options: PipelineOptions
    staging: Staging
    weights: Mapping[str, int]


def execute(work: Execution, command: str, finish: Callable[[], None] | None = None) -> Manifest | None:
    """Run a job, then `finish` in this process, and return what was published. None after a dry run.

    Nothing in the output folder changes before the graph is built; a dry run changes nothing at all. Raises UsageError
    when another job works in the output folder, and whatever the steps raise.
    """
    pipeline = beam_runner.build(work.label, work.graph, work.options)
    if beam_runner.is_dry_run(work.options):
        beam_runner.check_only(pipeline)
        print(
            f"clozeline: dry run. The {command} job can be built; nothing was read, written or removed.",
            file=sys.stderr,
        )
        return None

    output = work.staging.output
    with leases.held(output, work.staging.token) as lease:
        with progress.shown(command, work.staging, work.weights):
            try:
                beam_runner.run(pipeline)
            except JobStoppedError as stopped:
                lease.keep = stopped.still_runs  # so that it can still publish, and no other job meets it
                raise
            if finish is not None:
                finish()
        return read_manifest(output, work.kind)
