"""Checks, before a job begins, that its engine, its worker pool and its credentials are there.

Without that Beam and Google's clients wait for minutes, or report what is missing after something has started.
"""

from __future__ import annotations

import json
import os
import shutil
import socket

from apache_beam.options.pipeline_options import JobServerOptions, PipelineOptions, PortableOptions

from pipeline.beam.engines import (
    check_flags,
    cluster_address,
    engine_is_here,
    hosts_and_ports,
    is_dataflow,
    is_dry_run,
    is_this_machine,
    runner_as_written,
    short_runner_name,
)
from pipeline.beam.internals import PORTABLE_RUNNERS
from schemas.errors import UsageError

CONNECT_SECONDS = 10.0

_JARS = {
    "flink": ("flink_job_server_jar", "flink_submit_uber_jar"),
    "spark": ("spark_job_server_jar", "spark_submit_uber_jar"),
}
"""For each runner: the option with the job server's jar, and the option that makes a job server unnecessary."""


def check_launch(arguments: list[str], known_flags: list[str]) -> PipelineOptions:
    """Do what `check_flags` does, and for a job on Dataflow also check that there are credentials.

    Called before the input is listed, because Google's clients wait for minutes without credentials.
    """
    options = check_flags(arguments, known_flags)
    if is_dataflow(options) and not is_dry_run(options):
        _check_credentials(options)
    return options


def check_engine(options: PipelineOptions) -> None:
    """Raise UsageError if the engine or its workers cannot be reached, or if a file to start them is missing.

    Does nothing for runners that are neither Flink, Spark, Prism nor another job service. Only what this machine can
    see without a download is checked.
    """
    if short_runner_name(options) not in PORTABLE_RUNNERS:
        return

    portable = options.view_as(PortableOptions)
    pool = portable.environment_config
    if portable.environment_type == "EXTERNAL" and pool and is_this_machine(pool):
        port = pool.rpartition(":")[2]
        _check_answers("--environment_config", pool, f"Start `clozeline worker --pool --port {port}`.")
    if portable.environment_type == "PROCESS" and engine_is_here(options):
        _check_worker_command(portable.environment_config)

    endpoint = portable.job_endpoint
    if endpoint:
        advice = "Start the job server there, or give the HOST:PORT of one that runs."
        _check_answers("--job_endpoint", endpoint, advice)
        return
    if short_runner_name(options) == "portable":
        raise UsageError("PortableRunner needs --job_endpoint HOST:PORT, the address of a Beam job server.")

    flag, address = cluster_address(options)
    _check_answers(flag, address, "Start the cluster, or give the HOST:PORT of one that runs.")
    _check_job_server(options)


def _check_worker_command(configuration: str | None) -> None:
    try:
        command = json.loads(configuration or "{}").get("command")
    except (ValueError, AttributeError):  # Beam itself reports a malformed value
        return

    if isinstance(command, str) and shutil.which(command) is None:
        raise UsageError(
            f"The engine cannot start its workers: --environment_config names the command {command}, which does not "
            "exist here or is not executable. Give the path of `clozeline-worker`, without arguments."
        )


def _check_job_server(options: PipelineOptions) -> None:
    """Raise UsageError if Beam would start Prism, or Flink's or Spark's job server, here and a file is missing."""
    runner = short_runner_name(options)
    values = options.get_all_options()
    if runner == "prism":
        _check_file("--prism_location", values["prism_location"], "of the Prism binary")
        return

    jar, without_server = _JARS[runner]
    if values[without_server]:
        return
    _check_file(f"--{jar}", values[jar], "of the job server, or leave the flag out and give --job_endpoint")
    java = options.view_as(JobServerOptions).job_server_java_launcher
    if shutil.which(java) is None:
        raise UsageError(
            f"The job server of {runner_as_written(options)} needs Java, and there is no executable file {java}. "
            "Install a Java runtime, give its path as --job_server_java_launcher, or give --job_endpoint of a job "
            "server that runs elsewhere."
        )


def _check_file(flag: str, path: str | None, advice: str) -> None:
    """Raise UsageError if there is no file at a path. A URL is not checked, because Beam downloads it."""
    if path and "://" not in path and not os.path.isfile(path):
        raise UsageError(f"There is no file at {flag} {path}. Give the path {advice}.")


def _check_answers(flag: str, address: str | None, advice: str) -> None:
    """Raise UsageError if nothing listens at an address, for which Beam would wait for minutes."""
    if not address or address == "embed":
        return

    failed: Exception | None = None
    for host, port in hosts_and_ports(address):
        if not host or not port.isdecimal():
            raise UsageError(f"{flag} {address} has no port. Give HOST:PORT.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
        except (OSError, OverflowError) as error:
            failed = error
    reason = getattr(failed, "strerror", None) or failed
    raise UsageError(f"Nothing answers at {flag} {address} ({reason}). {advice}") from failed


def _check_credentials(options: PipelineOptions) -> None:
    """Raise UsageError if Dataflow's client or credentials are missing. Takes seconds if there are no credentials."""
    runner = runner_as_written(options)
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
    except ImportError as error:
        raise UsageError(
            f"--runner {runner} needs Dataflow's client, which is not installed: "
            'pip install "clozeline[pipeline,gcp]".'
        ) from error

    try:
        google.auth.default()
    except GoogleAuthError as error:
        raise UsageError(
            f"--runner {runner} needs credentials of Google Cloud, and there are none on this machine: `gcloud auth "
            "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file. "
            "Nothing was written or submitted."
        ) from error
