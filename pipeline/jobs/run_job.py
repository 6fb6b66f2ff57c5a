"""What every job on Beam does in its launcher once it knows what its result is made from."""

from __future__ import annotations

from collections.abc import Callable

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.beam.engines import is_dry_run
from pipeline.beam.runner import Execution, execute
from pipeline.commit.finished import Wanted, finished_manifest
from pipeline.commit.staging import Staging
from schemas import storage
from schemas.manifest import Input, Manifest

NO_SEED = 0  # of jobs in which nothing is random


def run_job(
    command: str, wanted: Wanted, staging: Staging, options: PipelineOptions, plan: Callable[[], Execution]
) -> Manifest | None:
    """Run a job unless its result is finished, and return the published manifest.

    plan: called only if there is work to do.
    Returns None after a dry run, and for a job submitted with --no_wait. Raises UsageError if the output folder holds
    another result or another job works there, and whatever the steps raise.
    """
    finished = finished_manifest(wanted, staging, is_dry_run(options))
    if finished is not None:
        return finished
    return execute(plan(), command)


def folder_as_input(folder: str, fingerprint: str) -> Input:
    """Return a finished folder as an input of a job, in the form that its manifest records."""
    return Input(path=storage.printable(folder), fingerprint=fingerprint)
