"""Beam's options as a job makes them from its flags, and jobs that are only built."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam.display import NOT_MEASURED
from pipeline.beam.engines import beam_options, check_flags
from pipeline.beam.estimate import Estimate
from pipeline.beam.runner import Execution
from pipeline.commit.staging import Staging

THREADS = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
"""Two workers in the test's own process: bundles are shared out as to two processes, whose start takes seconds."""
PROCESSES = ("--direct_num_workers=2",)


def options_of(flags: list[str]) -> PipelineOptions:
    """Return the options of a job with an empty input."""
    return beam_options(check_flags(flags), flags, 0)


def execution_of(label: str, graph: beam.PTransform, options: PipelineOptions, staging: Staging) -> Execution:
    """Return a job of this graph, without what only a whole run needs."""
    return Execution(label, graph, options, staging, NOT_MEASURED, Estimate(0, 0, 0.0))
