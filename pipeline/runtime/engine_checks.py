"""What has to be there before a job is handed to an engine: its server, its workers' pool, and the files to start them.

Beam would wait for minutes, or report what is missing after it has started something. Only what can be seen from this
machine without a download is checked.
"""

from __future__ import annotations

import json
import os
import shutil
import socket

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions

from pipeline.runtime.engines import (
    cluster_address,
    engine_is_here,
    is_this_machine,
    runner_as_written,
    runs_locally,
    short_runner_name,
)
from pipeline.runtime.runner_names import PORTABLE_RUNNERS
from schemas.errors import UsageError

CONNECT_SECONDS = 10.0

_JARS = {
    "flink": ("flink_job_server_jar", "flink_submit_uber_jar"),
    "spark": ("spark_job_server_jar", "spark_submit_uber_jar"),
}
"""The options of each runner that name a job server or do without one."""


def check_engine(options: PipelineOptions) -> None:
    """Raise UsageError if the engine or its workers cannot be reached, or if a file to start them is missing."""
    if runs_locally(options) or short_runner_name(options) not in PORTABLE_RUNNERS:
        return

    _check_pool(options)
    _check_worker_command(options)
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint:
        _check_answers(
            "--job_endpoint", endpoint, "Start the job server there, or give the HOST:PORT of one that runs."
        )
        return

    if short_runner_name(options) == "portable":
        raise UsageError("PortableRunner needs --job_endpoint HOST:PORT, the address of a Beam job server.")
    _check_answers(*cluster_address(options), "Start the cluster, or give the HOST:PORT of one that runs.")
    _check_prism(options)
    _check_job_server(options)


def _check_pool(options: PipelineOptions) -> None:
    """Raise UsageError when workers should come from a pool on this machine and there is none."""
    portable = options.view_as(PortableOptions)
    address = portable.environment_config
    if portable.environment_type == "EXTERNAL" and address and is_this_machine(address):
        port = address.rpartition(":")[2]
        _check_answers("--environment_config", address, f"Start `python -m pipeline.worker --pool --port {port}`.")


def _check_worker_command(options: PipelineOptions) -> None:
    """Raise UsageError when the engine is on this machine and should start workers by a command that is not there."""
    portable = options.view_as(PortableOptions)
    if portable.environment_type != "PROCESS" or not engine_is_here(options):
        return
    try:
        command = json.loads(portable.environment_config or "{}").get("command")
    except (ValueError, AttributeError):  # Beam says what it expects
        return

    if isinstance(command, str) and shutil.which(command) is None:
        raise UsageError(
            f"The engine cannot start its workers: --environment_config names the command {command}, which does not "
            "exist here or is not executable. Give the path of `clozeline-worker`, without arguments."
        )


def _check_prism(options: PipelineOptions) -> None:
    location = options.get_all_options()["prism_location"]
    if short_runner_name(options) == "prism" and location:
        _check_file("--prism_location", location, "of the Prism binary")


def _check_job_server(options: PipelineOptions) -> None:
    """Raise UsageError when Flink's or Spark's job server should be started here, and its jar or Java is missing."""
    if short_runner_name(options) not in _JARS:
        return
    jar, without_server = _JARS[short_runner_name(options)]
    values = options.get_all_options()
    if values[without_server]:
        return
    if values[jar]:
        _check_file(f"--{jar}", values[jar], "of the job server, or leave the flag out and give --job_endpoint")

    java = options.view_as(JobServerOptions).job_server_java_launcher
    if shutil.which(java) is None:
        raise UsageError(
            f"The job server of {runner_as_written(options)} needs Java, and there is no executable file {java}. "
            "Install a Java runtime, give its path as --job_server_java_launcher, or give --job_endpoint of a job "
            "server that runs elsewhere."
        )


def _check_file(flag: str, path: str, advice: str) -> None:
    """Raise UsageError when there is no file at a path. A URL would be downloaded."""
    if "://" not in path and not os.path.isfile(path):
        raise UsageError(f"There is no file at {flag} {path}. Give the path {advice}.")


def _check_answers(flag: str, address: str | None, advice: str) -> None:
    """Raise UsageError when nothing listens at an address. Beam would wait for minutes."""
    if not address or address == "embed":
        return

    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{flag} {address} has no port. Give HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Nothing answers at {flag} {address} ({reason}). {advice}") from error
