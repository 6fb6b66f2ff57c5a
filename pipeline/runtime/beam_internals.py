"""Every internal part of Beam that the pipeline relies on, in one place.

Beam promises nothing about the modules under `apache_beam.runners`, about names that begin with an underscore, or
about the names of its threads and the texts of its errors. When a new version of Beam breaks something, look here
first. Checked with Beam 2.77.

Functions import Beam when they are called: a worker must set up its process before Beam is imported.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from schemas.errors import UsageError

if TYPE_CHECKING:
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

WORKER_THREADS = ("run_worker", "read_grpc_client_inputs", "beam_control_read")
"""Names of the launcher's threads that wait for a worker process or read from it; they raise when it is gone."""

MESSAGE_THREAD = "wait_until_finish_read"
"""Name of the launcher's thread that reads a job's messages; it raises when the connection to the job server breaks."""

LOST_LOG_CONNECTION = "Logging client failed"
"""How the line begins that a worker prints each half second when it cannot send its log any more."""

RUNNERS_LOGGER = "apache_beam.runners"
"""The logger of what submits and follows jobs. At INFO, Dataflow names the job and the address of its page there."""

FINISHED_STATES = ("DONE", "UPDATED", "DRAINED")
"""The states of jobs that have done all their work."""

ENDED_STATES = (*FINISHED_STATES, "FAILED", "CANCELLED")
"""The states that no job leaves any more."""

CLOSING_SECONDS = 1.0
"""How long a worker that met an error waits to see whether the cause is that its launcher closes the connection."""

_LOST_WORKER = "Channel closed prematurely"


def says_worker_is_lost(error: BaseException) -> bool:
    """Whether an error of a local job means that the connection to a worker process broke."""
    return _LOST_WORKER in str(error)


def runner_with_workers(command: str) -> FnApiRunner:
    """Return a local runner whose worker processes are started by a shell command."""
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    environment = SubprocessSDKEnvironment.from_command_string(command)
    return FnApiRunner(default_environment=environment)


def run_worker(arguments: list[str]) -> None:
    """Work for the launcher in this process until no work is left. Beam logs warnings while it is imported.

    Prints no traceback of work that fails because the launcher has closed the connection: when a command is stopped,
    Beam tears down what its unfinished bundles use while they still run.
    """
    from apache_beam.portability.api import beam_fn_api_pb2
    from apache_beam.runners.worker import sdk_worker, sdk_worker_main

    class Harness(sdk_worker.SdkHarness):
        """Beam's worker, which gives an empty answer for work that nobody waits for."""

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
            """Whether the launcher closes the connection within CLOSING_SECONDS."""
            deadline = time.monotonic() + CLOSING_SECONDS
            while self._alive and time.monotonic() < deadline:
                time.sleep(0.02)
            return not self._alive

    sdk_worker_main.SdkHarness = Harness  # pyright: ignore[reportPrivateImportUsage]
    sdk_worker_main.main(arguments)


def flag_parser() -> argparse.ArgumentParser:
    """Return a parser of all flags that Beam knows. It raises UsageError for a value that Beam does not take."""
    from apache_beam.options import pipeline_options

    class BeamFlagParser(pipeline_options._BeamArgumentParser):  # type: ignore[name-defined]
        """Beam's parser with a one-line error, instead of the usage of some hundred flags."""

        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}. This is one of Beam's flags.")

    parser = BeamFlagParser(allow_abbrev=False)
    for options in pipeline_options.PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    return parser


def flag_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return every flag of a parser."""
    return [flag for action in parser._actions for flag in action.option_strings]


@contextlib.contextmanager
def no_temporary_files() -> Iterator[None]:
    """Have Beam write no file for a pipeline that is built in the block and never runs.

    It would make a folder for the pipeline, one for the packages that are sent to workers, and a cache of downloads.
    """
    import apache_beam.pipeline
    from apache_beam.transforms import environments

    pipeline: Any = apache_beam.pipeline
    real_tempfile = pipeline.tempfile
    dependencies = environments.python_sdk_dependencies
    pipeline.tempfile = SimpleNamespace(mkdtemp=lambda **_: "/nonexistent/clozeline-dry-run")
    environments.python_sdk_dependencies = lambda *_, **__: []
    try:
        yield
    finally:
        pipeline.tempfile = real_tempfile
        environments.python_sdk_dependencies = dependencies


@contextlib.contextmanager
def temporary_files_removed() -> Iterator[None]:
    """Have Beam write its temporary files into one folder, which is removed when this process ends.

    It leaves several folders for each job that it hands to an engine: of the pipeline, of packages, of the job server.
    """
    previous = tempfile.tempdir
    tempfile.tempdir = _temporary_folder()
    try:
        yield
    finally:
        tempfile.tempdir = previous


@functools.cache
def _temporary_folder() -> str:
    # Not removed at the end of a job: job servers that Beam has started use it until they are stopped, at exit as well.
    # Exit handlers run in reverse order, and theirs are registered later.
    folder = tempfile.mkdtemp(prefix="clozeline-launcher-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def job_identifier(result: Any) -> str:
    """Return the engine's name for a submitted job. Dataflow's result has a method for it, others a private field.

    A job that was only written to a file has none yet.
    """
    if not getattr(result, "has_job", True):
        return "(without an id yet)"
    identifier = getattr(result, "job_id", None) or getattr(result, "_job_id", "(unknown)")
    if callable(identifier):
        identifier = identifier()
    return str(identifier)


def current_metrics(result: Any) -> Any:
    """Return a job's metrics as they are now. The result of a job service would give its first answer again."""
    if getattr(result, "_metrics", None) is not None and hasattr(result, "_job_service"):
        result._metrics = None
    return result.metrics()
