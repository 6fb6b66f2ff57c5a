"""How a job is launched: as a dry run or not, waited for or not, and what Dataflow requires.

Everything here is decided from flags alone, before a file is listed or an engine is contacted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)

from pipeline.flags import unknown_flags
from pipeline.runtime import beam_internals, cloud_access, cloud_flags
from pipeline.runtime.engines import runner_as_written, runs_locally, short_runner_name, worker_location
from pipeline.runtime.runner_names import DEFAULT_RUNNER, full_name
from schemas.errors import UsageError

_NEEDED_BY_DATAFLOW = {
    "project": "--project, the id of the Google Cloud project that pays for the job",
    "region": "--region, for example us-central1; take the region of the buckets",
    "temp_location": "--temp_location, for example gs://bucket/tmp",
    "sdk_container_image": "--sdk_container_image, an image with Clozeline, for example one of deploy/images",
}
"""What to give for each missing option, by Beam's name for it."""


class LauncherOptions(PipelineOptions):
    """Options of the launcher itself, kept among Beam's so that any code with the job's options can read them."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no_wait", action="store_true", help="submit the job and exit")


def is_dry_run(options: PipelineOptions) -> bool:
    """Whether the job is only checked. Beam treats any value of --dry_run as true."""
    return bool(options.view_as(TestOptions).dry_run)


def leaves_job(options: PipelineOptions) -> bool:
    """Whether the launcher submits the job and does not wait for it."""
    return options.view_as(LauncherOptions).no_wait


def is_dataflow(options: PipelineOptions) -> bool:
    """Whether the job goes to Dataflow."""
    return "dataflow" in short_runner_name(options)


def makes_template(options: PipelineOptions) -> bool:
    """Whether the job is only written to a template file, which Dataflow starts after the launcher has exited."""
    return is_dataflow(options) and bool(options.view_as(GoogleCloudOptions).template_location)


def check_launch(arguments: list[str], known_flags: list[str]) -> PipelineOptions:
    """Do what `check_flags` does, and for a job on Dataflow also check that its client and credentials exist.

    Called before the input is listed, because Google's clients wait for minutes without credentials.
    """
    options = check_flags(arguments, known_flags)
    if is_dataflow(options) and not is_dry_run(options):
        check_client(options)
        cloud_access.check_credentials(runner_as_written(options))
    return options


def check_flags(arguments: list[str], known_flags: Sequence[str] = ()) -> PipelineOptions:
    """Check the flags that are not a command's own as far as possible without the job, and return Beam's options.

    known_flags: the command's own, to suggest one for a misspelled flag.
    Raises UsageError for an unknown flag or runner, for a Dataflow flag that is missing or malformed, and for --no_wait
    if the job would end with its launcher.
    """
    options = parse_flags(arguments, known_flags)
    if is_dataflow(options):
        _check_dataflow(options)
    if leaves_job(options):
        _check_leaving(options)
    return options


def parse_flags(arguments: list[str], known_flags: Sequence[str] = ()) -> PipelineOptions:
    """Return Beam's options for these flags. Raises UsageError for an unknown flag or runner."""
    parser = beam_internals.flag_parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise unknown_flags(unknown, [*known_flags, *beam_internals.flag_names(parser)])

    options = PipelineOptions(arguments)
    options.view_as(StandardOptions).runner = full_name(given.runner or DEFAULT_RUNNER)
    return options


def _check_dataflow(options: PipelineOptions) -> None:
    """Raise UsageError for a missing or malformed Dataflow flag, before its client looks for it over the network."""
    runner = runner_as_written(options)
    values = options.view_as(GoogleCloudOptions).get_all_options()
    worker = options.view_as(WorkerOptions)
    values["sdk_container_image"] = worker.sdk_container_image or worker.worker_harness_container_image

    missing = [advice for name, advice in _NEEDED_BY_DATAFLOW.items() if not values[name]]
    if missing:
        raise UsageError(f"--runner {runner} needs {'; '.join(missing)}.")

    temp = str(values["temp_location"])
    if not temp.startswith("gs://") or not temp.removeprefix("gs://").partition("/")[2]:
        raise UsageError(f"--temp_location {temp} is no folder in Cloud Storage. Give one such as gs://bucket/tmp.")
    cloud_flags.check_region(str(values["region"]))
    cloud_flags.check_image(str(values["sdk_container_image"]))
    cloud_flags.check_labels(values["labels"] or [])
    if worker.machine_type:
        cloud_flags.check_machine_type(worker.machine_type)
    if makes_template(options) and not leaves_job(options) and not is_dry_run(options):
        raise UsageError(
            "--template_location writes the job to a file, and nothing runs that could be followed. Add --no_wait, and "
            "start one job from the file: its files in the output folder are for a single one."
        )


def _check_leaving(options: PipelineOptions) -> None:
    """Raise UsageError if the job would end with the launcher."""
    runner = runner_as_written(options)
    if not runs_locally(options) and worker_location(options) != "here":
        return

    where = "runs on this machine" if runs_locally(options) else "has its workers in this process (LOOPBACK)"
    raise UsageError(
        f"--no_wait cannot be used with --runner {runner}, which {where}: the job would end with this command. Leave "
        "the flag out, or send the job to an engine that runs its own workers; see docs/engines.md."
    )


def check_client(options: PipelineOptions) -> None:
    """Raise UsageError if a job goes to Dataflow and its client is not installed."""
    if is_dataflow(options) and not _is_installed("google.cloud.dataflow"):
        raise UsageError(
            f"--runner {runner_as_written(options)} needs Dataflow's client, which is not installed: "
            'pip install "clozeline[pipeline,gcp]".'
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def console_url(job: str, options: PipelineOptions) -> str:
    """Return the URL of a job's page in the Google Cloud console."""
    cloud = options.view_as(GoogleCloudOptions)
    return f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job}?project={cloud.project}"
