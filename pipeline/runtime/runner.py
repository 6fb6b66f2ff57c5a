"""Starting a wired job: which runner, how many workers, which flags are Beam's.

Importing this changes no logger; what Beam logs is left to the process that imports it (see terminal_logs.py).
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from pipeline.runtime import engines as runners
from pipeline.runtime import local_workers, remote_jobs
from pipeline.runtime.carried_errors import carried_error
from schemas.errors import ClozelineError, UsageError, nearest_name

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
    and it may download a binary. Raises UsageError for a flag that Beam does not know either, or whose value it
    does not take.
    """
    beam_parser = _beam_parser()
    unknown = beam_parser.parse_known_args(arguments)[1]
    if unknown:
        flags = [*known_flags, *(flag for action in beam_parser._actions for flag in action.option_strings)]
        raise UsageError(
            "; ".join(f"Unknown flag {flag}.{nearest_name(flag.split('=')[0], flags)}" for flag in unknown)
        )

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


class _BeamParser(pipeline_options._BeamArgumentParser):  # type: ignore[name-defined]
    """Beam's parser with one line for an error, instead of the usage of some hundred flags."""

    def error(self, message: str) -> NoReturn:
        advice = " Write --dry_run=True." if "--dry_run" in message else ""
        raise UsageError(f"{message}. This flag is Beam's.{advice}")


def _beam_parser() -> Any:
    parser = _BeamParser(allow_abbrev=False)
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

    Raises a ClozelineError of a worker as it was raised there, EngineError for whatever else an engine says, and
    JobStoppedError when Ctrl-C met a job that runs in another process.
    """
    runner = runner_name(pipeline.options)  # Beam empties the option once a job is submitted to a job service
    try:
        if runners.is_local(pipeline.options):
            with local_workers.supervised():
                pipeline.run().wait_until_finish()
        else:
            remote_jobs.follow(remote_jobs.submit(pipeline, runner), runner, pipeline.options)
    except ClozelineError:
        raise
    except Exception as error:
        carried = carried_error(str(error))
        if carried is None:
            raise
        raise carried from None


def runner_name(options: PipelineOptions) -> str:
    """As the user wrote it."""
    return str(options.view_as(StandardOptions).runner)


def _local_runner(options: PipelineOptions) -> FnApiRunner | None:
    """FnApiRunner with our worker processes when the job has more than one; None leaves the choice to the options."""
    direct = options.view_as(DirectOptions)
    if options.view_as(StandardOptions).runner != "FnApiRunner" or direct.direct_num_workers == 1:
        return None
    if direct.direct_running_mode == "multi_threading":
        return None
    direct.direct_running_mode = "in_memory"  # means: the environment given here, as many times as there are workers
    environment = SubprocessSDKEnvironment.from_command_string(local_workers.worker_command())
    return FnApiRunner(default_environment=environment)
