"""Starting a wired job: which runner, how many workers, which flags are Beam's, and errors brought back whole.

Importing this changes no logger; what Beam logs is left to the process that imports it (see terminal_logs.py).
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipeline import runners
from pipeline.carried_errors import carried_error
from schemas.errors import UsageError, nearest

WORTH_A_PROCESS = 4 << 20  # bytes of input; below, starting worker processes takes longer than the work


WORKER_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",  # each worker encodes on its one core
    # Memory goes back to the system once a shard is done: a third less at the peak, at no cost in time.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "4000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000",
}


def beam_options(arguments: list[str], known_flags: list[str], input_bytes: int) -> PipelineOptions:
    """Beam's options out of the flags that are not the job's own.

    The local default is FnApiRunner with a process a core. DirectRunner is not: what it means changes with the graph,
    and it may download a binary. Raises UsageError for a flag that Beam does not know either.
    """
    unknown = _beam_parser().parse_known_args(arguments)[1]
    if unknown:
        flags = [*known_flags, *(flag for action in _beam_parser()._actions for flag in action.option_strings)]
        raise UsageError("; ".join(f"Unknown flag {flag}.{nearest(flag.split('=')[0], flags)}" for flag in unknown))

    options = PipelineOptions(arguments)
    standard = options.view_as(StandardOptions)
    direct = options.view_as(DirectOptions)
    standard.runner = standard.runner or "FnApiRunner"
    if runners.is_local(options) and any(a.partition("=")[0] == "--num_workers" for a in arguments):
        raise UsageError(
            f"--num_workers has no effect with {standard.runner}, which runs on this machine. "
            "Use --direct_num_workers N for N worker processes."
        )
    if standard.runner == "FnApiRunner" and not any(a.startswith("--direct_") for a in arguments):
        direct.direct_num_workers = (os.cpu_count() or 1) if input_bytes >= WORTH_A_PROCESS else 1
    return options


def _beam_parser() -> Any:
    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return parser


def build(label: str, graph: beam.PTransform, options: PipelineOptions) -> beam.Pipeline:
    """The wired job. Nothing runs yet and nothing is written; a fault of the graph or of the runner shows here."""
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    try:
        pipeline = beam.Pipeline(runner=_local_runner(options), options=options)
    except (ImportError, ValueError) as error:  # the runner's package is missing, or its flags do not fit
        raise UsageError(f"--runner {runner_name(options)} cannot be used: {error}") from error
    _ = pipeline | label >> graph
    return pipeline


def is_dry_run(options: PipelineOptions) -> bool:
    """Whether the job is to be checked and not to be run. Beam takes any value of --dry_run for a yes."""
    return bool(options.view_as(TestOptions).dry_run)


def check_only(pipeline: beam.Pipeline) -> None:
    """Let Dataflow translate the job without submitting it. Other runners have no dry run: for them it is built."""
    if "dataflow" in runners.short_name(pipeline.options):
        pipeline.run()


def run(pipeline: beam.Pipeline) -> None:
    """Run a job to its end.

    Raises a ClozelineError of a worker as it was raised there, and JobStoppedError when Ctrl-C met a job that runs in
    another process.
    """
    options = pipeline.options
    try:
        result = pipeline.run()
        if not runners.is_local(options):
            print(f"clozeline: {described(result, options)} has been submitted.", file=sys.stderr, flush=True)
        try:
            result.wait_until_finish()
        except KeyboardInterrupt:
            if runners.is_local(options):
                raise
            raise cancelled(result, options) from None
    except Exception as error:
        carried = carried_error(str(error))
        if carried is None:
            raise
        raise carried from None


class JobStoppedError(KeyboardInterrupt):
    """Ctrl-C while a job ran in another process; says what became of it. `still_runs`: it could not be cancelled."""

    def __init__(self, message: str, still_runs: bool):
        super().__init__(message)
        self.still_runs = still_runs


def cancelled(result: Any, options: PipelineOptions) -> JobStoppedError:
    """Cancel a submitted job, and return the error to raise. A second Ctrl-C leaves the job running."""
    job = described(result, options)
    print(f"clozeline: cancelling {job}. Press Ctrl-C again to leave it running.", file=sys.stderr, flush=True)
    try:
        result.cancel()
    except (Exception, KeyboardInterrupt) as error:  # whatever the runner's client raises, the user must know the job
        reason = str(error) or type(error).__name__
        return JobStoppedError(
            f"{job} was not cancelled ({reason}) and may still run. {how_to_cancel(result, options)}", still_runs=True
        )
    return JobStoppedError(
        f"{job} was cancelled. Run the same command again to continue; finished pieces are reused.", still_runs=False
    )


def described(result: Any, options: PipelineOptions) -> str:
    """Example: "job 2026-11-22_01_02_03-456 of DataflowRunner"."""
    return f"job {job_id(result)} of {runner_name(options)}"


def runner_name(options: PipelineOptions) -> str:
    """As the user wrote it. Beam empties the option once it has submitted a job to a job service."""
    return options.view_as(StandardOptions).runner or "the job service"


def job_id(result: Any) -> str:
    """The engine's name for a submitted job. Dataflow's result has a method for it, others a private attribute."""
    found = getattr(result, "job_id", None) or getattr(result, "_job_id", "(unknown)")
    return str(found() if callable(found) else found)


def how_to_cancel(result: Any, options: PipelineOptions) -> str:
    cloud = options.view_as(GoogleCloudOptions)
    if "dataflow" in runners.short_name(options):
        place = f"--project {cloud.project} --region {cloud.region}"
        return (
            f"Look at it with `gcloud dataflow jobs show {job_id(result)} {place}`, and cancel it with "
            f"`gcloud dataflow jobs cancel {job_id(result)} {place}`."
        )
    endpoint = options.view_as(PortableOptions).job_endpoint or "the engine"
    return f"Look at it and cancel it by this id at {endpoint} or on the engine's own page."


def _local_runner(options: PipelineOptions) -> FnApiRunner | None:
    """FnApiRunner with our worker processes when the job has more than one; None leaves the choice to the options."""
    direct = options.view_as(DirectOptions)
    if options.view_as(StandardOptions).runner != "FnApiRunner" or direct.direct_num_workers == 1:
        return None
    if direct.direct_running_mode == "multi_threading":
        return None
    direct.direct_running_mode = "in_memory"  # means: the environment given here, as many times as there are workers
    command = f"{shlex.quote(sys.executable)} -m pipeline.beam_worker"
    return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(command))
