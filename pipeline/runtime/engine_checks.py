"""Checks, before a job is submitted, that its engine and worker pool answer and that the files to start them exist.

Without these checks Beam waits for minutes, or reports what is missing after it has started something. Only what this
machine can see without a download is checked.
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
"""For each runner: the option with the job server's jar, and the option that makes a job server unnecessary."""


def check_engine(options: PipelineOptions) -> None:
    """Raise UsageError if the engine or its workers cannot be reached, or if a file to start them is missing.

    Does nothing for runners that are neither Flink, Spark, Prism nor another job service.
    """
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
    """Raise UsageError if workers should come from a pool on this machine and none answers."""
    portable = options.view_as(PortableOptions)
    address = portable.environment_config
    if portable.environment_type == "EXTERNAL" and address and is_this_machine(address):
        port = address.rpartition(":")[2]
        _check_answers("--environment_config", address, f"Start `clozeline worker --pool --port {port}`.")


def _check_worker_command(options: PipelineOptions) -> None:
    """Raise UsageError if the engine is on this machine and its command to start workers does not exist."""
    portable = options.view_as(PortableOptions)
    if portable.environment_type != "PROCESS" or not engine_is_here(options):
        return
    try:
        command = json.loads(portable.environment_config or "{}").get("command")
    except (ValueError, AttributeError):  # Beam itself reports a malformed value
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
    """Raise UsageError if Beam would start Flink's or Spark's job server here, and its jar or Java is missing."""
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
    """Raise UsageError if there is no file at a path. A URL is not checked, because Beam downloads it."""
    if "://" not in path and not os.path.isfile(path):
        raise UsageError(f"There is no file at {flag} {path}. Give the path {advice}.")


def _check_answers(flag: str, address: str | None, advice: str) -> None:
    """Raise UsageError if nothing listens at an address, for which Beam would wait for minutes."""
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
