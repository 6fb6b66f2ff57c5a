"""Starting a wired job: which runner, how many workers, which flags are Beam's, and errors brought back whole."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable
from typing import Any

logging.getLogger().setLevel(logging.CRITICAL)  # Beam warns while it is imported, and logs what it also raises
import apache_beam as beam  # noqa: E402
from apache_beam.options import pipeline_options  # noqa: E402
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions  # noqa: E402
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner  # noqa: E402
from apache_beam.transforms.environments import SubprocessSDKEnvironment  # noqa: E402

from schemas import errors  # noqa: E402
from schemas.errors import ClozelineError, UsageError, nearest  # noqa: E402

WORTH_A_PROCESS = 4 << 20  # bytes of input; below, starting worker processes takes longer than the work
_MARK = "clozeline-error"


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
    standard, direct = options.view_as(StandardOptions), options.view_as(DirectOptions)
    standard.runner = standard.runner or "FnApiRunner"
    if standard.runner == "FnApiRunner" and not any(a.startswith("--direct_") for a in arguments):
        direct.direct_num_workers = (os.cpu_count() or 1) if input_bytes >= WORTH_A_PROCESS else 1
    return options


def _beam_parser() -> Any:
    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return parser


def run(build: Callable[[beam.Pipeline], Any], options: PipelineOptions) -> None:
    """Build and run a job to its end. A ClozelineError raised in a worker is raised here as it was."""
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        with beam.Pipeline(runner=_local_runner(options), options=options) as pipeline:
            build(pipeline)
    except Exception as error:
        carried = carried_error(str(error))
        if carried is None:
            raise
        raise carried from None


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


def carrying_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function for Beam, which hands exceptions on as the text of a traceback: ours travel as JSON inside it."""

    def wrapped(element, *side_inputs):  # no annotations: Beam would choose coders by them
        try:
            return function(element, *side_inputs)
        except ClozelineError as error:
            carried = json.dumps([type(error).__name__, str(error)])
            raise RuntimeError(f"<{_MARK}>{carried}</{_MARK}>") from error

    return wrapped


def carried_error(text: str) -> ClozelineError | None:
    """The error that `carrying_errors` put into a traceback's text, if it did."""
    found = re.search(rf"<{_MARK}>(.*?)</{_MARK}>", text, re.DOTALL)
    if found is None:
        return None
    name, message = json.loads(found[1])
    return getattr(errors, name)(message)
