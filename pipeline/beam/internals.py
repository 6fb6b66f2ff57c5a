"""What the pipeline relies on in Beam beyond its documented interface.

Beam promises nothing about the modules under `apache_beam.runners`, about names that begin with an underscore, or
about the names of its threads and the texts of its errors. When a new version of Beam breaks something, look here
first, and at CAUSES and LOST_WORKER in causes.py for what engines and their clients report. Checked with Beam 2.77.

Functions import Beam when they are called: `--help` needs no Beam, and a worker sets up its process first.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from schemas.errors import UsageError, nearest_name

if TYPE_CHECKING:
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

DEFAULT_RUNNER = "FnApiRunner"
"""Beam's own local runner. Not DirectRunner: which runner that selects depends on the graph, and it may download a
binary."""

LOCAL_RUNNERS = ("fnapi", "direct", "switchingdirect", "bundlebaseddirect", "interactive")
"""Runners that work in the launcher's process, or in worker processes that it starts."""

PORTABLE_RUNNERS = ("portable", "flink", "spark", "prism")
"""Runners of a job service, whose workers run where --environment_type says."""

RUNNERS = (
    *("FlinkRunner", "SparkRunner", "PrismRunner", "DataflowRunner", "PortableRunner", "FnApiRunner"),
    *("DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner", "InteractiveRunner"),
)
"""The runners that --runner takes by their short names."""

UNUSED = (
    "boto3",
    "apache_beam.io.gcp.gcsio",
    "apache_beam.io.gcp.bigquery",
    "google.cloud.dataflow",
    "pymongo",
    "bson",
)
"""Modules that are hidden while Beam is imported: the clients of Beam's own S3 and gs:// file systems (we use
fsspec's), of Dataflow, and of MongoDB. Beam works without them, and they take a third of its import time in every
worker. Without BigQuery, Beam also skips every other Google Cloud client. The Dataflow runner later imports what it
needs."""

WORKER_MODULE = "apache_beam.runners.worker.sdk_worker_main"
"""What `run_worker` imports, which a pool of workers does beforehand."""

WORKER_THREADS = ("run_worker", "read_grpc_client_inputs", "beam_control_read")
"""Names of the launcher's threads that wait for a worker process or read from it; they raise when it is gone."""

MESSAGE_THREAD = "wait_until_finish_read"
"""Name of the launcher's thread that reads a job's messages; it raises when the connection to the job server breaks."""

LOST_LOG_CONNECTION = "Logging client failed"
"""Start of the line that a worker prints every half second once it can no longer send its log."""

RUNNERS_LOGGER = "apache_beam.runners"
"""Parent logger of the code that submits and follows jobs. At INFO, Dataflow logs the job id and its page there."""

FINISHED_STATES = ("DONE", "UPDATED", "DRAINED")
"""States of jobs that have completed all their work."""

ENDED_STATES = (*FINISHED_STATES, "FAILED", "CANCELLED")
"""Terminal states: a job never leaves them."""

CHANNEL_CLOSED = "Channel closed prematurely"
"""In the error of a job when the connection to a worker broke."""

CLOSING_SECONDS = 1.0
"""How long a worker waits after an error to see whether its launcher is closing the connection, which explains the
error."""

_EXITED_WORKER = re.compile(r"Worker subprocess exited with return code (-?\d+)")


def import_beam() -> None:
    """Import Beam unless this process already has. Its warnings about missing packages are not shown."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # documented: a None entry makes importing the name fail

    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(previous)
        for name in hidden:
            sys.modules.pop(name, None)


def says_worker_is_lost(error: BaseException) -> bool:
    """Whether an error of a local job means that the connection to a worker process broke."""
    return CHANNEL_CLOSED in str(error)


def exit_code_of_worker(error: BaseException | None) -> int | None:
    """Return the exit code in the error of the thread that waited for a worker process; None for another error."""
    found = _EXITED_WORKER.search(str(error))
    return int(found[1]) if found else None


def runner_with_workers(command: str) -> FnApiRunner:
    """Return a local runner whose worker processes are started by a shell command."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    environment = SubprocessSDKEnvironment.from_command_string(command)
    return FnApiRunner(default_environment=environment)


def launcher_address() -> str:
    """Return where a worker's launcher listens, as in localhost:40123."""
    from apache_beam.portability.api import endpoints_pb2
    from google.protobuf import text_format

    control = endpoints_pb2.ApiServiceDescriptor()
    text_format.Merge(os.environ["CONTROL_API_SERVICE_DESCRIPTOR"], control)
    return str(control.url)


def run_worker(arguments: list[str]) -> None:
    """Run Beam's worker in this process until the launcher has no more work. Beam logs warnings while it is imported.

    Work that fails because the launcher closed the connection prints no traceback: when a command is stopped, Beam
    tears down resources that unfinished bundles are still using.
    """
    from apache_beam.portability.api import beam_fn_api_pb2
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main

    class Harness(sdk_worker.SdkHarness):
        """Beam's worker, except that a failure nobody waits for becomes an empty response."""

        def _execute(self, task: Callable[[], Any], request: Any) -> None:
            def task_until_closed() -> Any:
                try:
                    return task()
                except Exception:
                    if not self._is_closed_soon():
                        raise
                    return beam_fn_api_pb2.InstructionResponse(instruction_id=request.instruction_id)

            super()._execute(task_until_closed, request)

        def _is_closed_soon(self) -> bool:
            """Wait up to CLOSING_SECONDS, and return whether the launcher has closed the connection."""
            deadline = time.monotonic() + CLOSING_SECONDS
            while self._alive and time.monotonic() < deadline:
                time.sleep(0.02)
            return not self._alive

    sdk_worker_main.SdkHarness = Harness
    sdk_worker_main.main(arguments)


def flag_parser() -> argparse.ArgumentParser:
    """Return a parser for all flags that Beam knows. It raises UsageError for a value that Beam rejects."""
    from apache_beam.options import pipeline_options

    class BeamFlagParser(pipeline_options._BeamArgumentParser):
        """Beam's parser with a one-line error, instead of a usage text of several hundred flags."""

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}. This is one of Beam's flags.")

    parser = BeamFlagParser(allow_abbrev=False)
    for options in pipeline_options.PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return parser


def flag_names(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings]


@contextlib.contextmanager
def temporary_files_removed() -> Iterator[None]:
    """Make Beam write its temporary files into one folder, which is removed when this process ends.

    Otherwise Beam leaves several folders behind for each job that it submits to an engine or that is only built, as
    when the output is in use: for the pipeline, for packages, and for the job server.
    """
    previous = tempfile.tempdir
    tempfile.tempdir = _temporary_folder()
    try:
        yield
    finally:
        tempfile.tempdir = previous


@functools.cache
def _temporary_folder() -> str:
    # Not removed at the end of a job: job servers that Beam has started use the folder until Beam's exit handlers stop
    # them. Exit handlers run in reverse order of registration, and Beam registers its own later, so they run before
    # this one.
    folder = tempfile.mkdtemp(prefix="clozeline-launcher-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def job_identifier(result: Any) -> str:
    """Return the engine's id of a submitted job; a job that was only written to a template file has none yet.

    Dataflow's result has a method for the id; other results have a private field.
    """
    if not getattr(result, "has_job", True):
        return "(without an id yet)"
    identifier = getattr(result, "job_id", None) or getattr(result, "_job_id", "(unknown)")
    if callable(identifier):
        identifier = identifier()
    return str(identifier)


def short_name(runner: str) -> str:
    """Return a runner's short name. Example: `short_name("some.module.FlinkRunner")` -> `"flink"`."""
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def full_name(runner: str) -> str:
    """Return Beam's name of a runner. Examples: "flink" -> "FlinkRunner"; a dotted path stays as it is.

    Raises UsageError for a name without a dot that is not a runner's.
    """
    if "." in runner:
        return runner

    name = next((known for known in RUNNERS if short_name(known) == short_name(runner)), None)
    if name is None:
        raise UsageError(
            f"--runner {runner} is unknown.{nearest_name(runner, RUNNERS)} Give one of {', '.join(RUNNERS[:6])}, or "
            "the path of a runner's class, such as package.module.SomeRunner."
        )
    return name
