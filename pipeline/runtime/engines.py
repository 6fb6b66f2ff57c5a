"""Where a runner's workers run, which paths they can open, and the Beam options that follow from that.

here        in processes of the launcher, or in the launcher itself
shared      in processes that another program started, perhaps on other machines; relative paths mean nothing there
elsewhere   in containers or on a cloud's machines, which do not see the launcher's disk
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions, StandardOptions

from pipeline.exchange.blocks import Shuffle
from pipeline.runtime.runner_names import LOCAL_RUNNERS, PORTABLE_RUNNERS, short_name
from schemas import storage
from schemas.errors import UsageError

WorkerLocation = Literal["here", "shared", "elsewhere"]

LOGGER = logging.getLogger("clozeline.engines")

KEEP_WORKERS_MILLIS = 30_000
"""How long an engine keeps an idle worker for the job's next step.

By default Beam does not keep it, so that every step starts new workers, which takes seconds. The drawback: a killed
worker is kept for this long too, and assigned work again.
"""

JOB_SERVER_TIMEOUT = 30 * 24 * 3600
"""In seconds. Beam's default of 300 s also limits how long it listens to a Prism job, so longer jobs appear to fail."""

WORKER_SCRIPT = "clozeline-worker"
"""The installed command that PROCESS environments start; see pipeline/worker.py."""

_THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]", "::1", "0.0.0.0")
_NO_CLUSTER = ("[auto]", "[local]")


def runner_as_written(options: PipelineOptions) -> str:
    """Return the value of --runner as the user wrote it."""
    return str(options.view_as(StandardOptions).runner)


def short_runner_name(options: PipelineOptions) -> str:
    """Return the runner in lower case, without its module and without "Runner". Example: "flink"."""
    return short_name(runner_as_written(options))


def runs_locally(options: PipelineOptions) -> bool:
    """Whether the job runs in this process or in worker processes that it starts, so that it ends with them."""
    return short_runner_name(options) in LOCAL_RUNNERS


def set_engine_defaults(options: PipelineOptions, given: set[str]) -> None:
    """Set the Beam options that follow from the runner, except those whose flags the user gave (`given`).

    Raises UsageError if the workers would run in containers without Clozeline.
    """
    if runs_locally(options):
        return

    setup = options.view_as(SetupOptions)
    if not {"--save_main_session", "--no_save_main_session"} & given:
        setup.save_main_session = False  # workers import our functions by name

    if short_runner_name(options) not in PORTABLE_RUNNERS:
        return

    portable = options.view_as(PortableOptions)
    defaults = {
        "environment_type": _environment_type(options),
        "environment_cache_millis": KEEP_WORKERS_MILLIS,
        "job_server_timeout": JOB_SERVER_TIMEOUT,
    }
    if portable.environment_type == "PROCESS" and not portable.environment_options:
        defaults["environment_config"] = _worker_command()

    for name, value in defaults.items():
        is_given = f"--{name}" in given or f"--{name.replace('_', '-')}" in given
        if value is not None and not is_given:
            setattr(portable, name, value)
            LOGGER.info("--%s %s, because it was not given", name, value)
    _check_containers(options)


def _environment_type(options: PipelineOptions) -> str | None:
    """Return LOOPBACK if the engine is on this machine; None leaves the choice to Beam, which uses containers."""
    return "LOOPBACK" if engine_is_here(options) else None


def engine_is_here(options: PipelineOptions) -> bool:
    """Whether the engine, or the job service in front of it, is on this machine."""
    runner = short_runner_name(options)
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint:
        return endpoint == "embed" or is_this_machine(endpoint)
    if runner == "prism" or _starts_its_engine(runner, options):
        return True

    address = cluster_address(options)[1]
    return address is not None and is_this_machine(address)


def cluster_address(options: PipelineOptions) -> tuple[str, str | None]:
    """Return the flag that names the Flink or Spark cluster, and its address; None if the runner starts one."""
    runner = short_runner_name(options)
    flag = "spark_master_url" if runner == "spark" else "flink_master"
    if runner not in ("flink", "spark") or _starts_its_engine(runner, options):
        return f"--{flag}", None
    return f"--{flag}", str(options.get_all_options()[flag])


def is_this_machine(address: str) -> bool:
    """Whether an address such as "localhost:8081", "http://127.0.0.1:8081" or "spark://host:7077" is this machine's."""
    host = str(address).rpartition("://")[2].rpartition(":")[0] or str(address)
    return host.lower() in (*_THIS_MACHINE, os.uname().nodename.lower())


def _worker_command() -> str | None:
    """Return the configuration of PROCESS workers that use this installation; None if it has no worker script.

    The installation must be at the same path on every machine.
    """
    script = Path(sys.executable).parent / WORKER_SCRIPT
    return json.dumps({"command": str(script)}) if script.exists() else None


def _check_containers(options: PipelineOptions) -> None:
    """Raise UsageError for workers in Beam's own image, which does not hold Clozeline."""
    portable = options.view_as(PortableOptions)
    if portable.environment_type not in (None, "", "DOCKER"):
        return
    if portable.environment_config or portable.environment_options:
        return

    raise UsageError(
        f"The workers of {runner_as_written(options)} would run in Beam's own container, which has no Clozeline. Give "
        "--environment_type EXTERNAL --environment_config HOST:PORT for workers of `clozeline worker "
        "--pool`, --environment_type PROCESS for workers that the engine starts where Clozeline is installed, or "
        "--environment_type DOCKER --environment_config IMAGE for an image that has it. See docs/engines.md."
    )


def worker_location(options: PipelineOptions) -> WorkerLocation:
    """Return where the workers of the chosen runner run."""
    runner = short_runner_name(options)
    if runner in LOCAL_RUNNERS:
        return "here"
    if "dataflow" in runner:
        return "elsewhere"
    if runner not in PORTABLE_RUNNERS:
        return "shared"

    environment = options.view_as(PortableOptions).environment_type or _environment_type(options)
    if environment == "LOOPBACK":
        return "here"
    if environment in (None, "", "DOCKER"):
        return "elsewhere"
    return "shared"


def _starts_its_engine(runner: str, options: PipelineOptions) -> bool:
    """Whether the runner starts Flink or Spark on this machine instead of connecting to a cluster."""
    values = options.get_all_options()
    if runner == "flink":
        return values["flink_master"] in _NO_CLUSTER
    return runner == "spark" and str(values["spark_master_url"]).startswith("local")


def path_for_workers(flag: str, path: str, options: PipelineOptions) -> str:
    """Return `path` in the form that workers need: absolute if they may run in another folder.

    Raises UsageError for a path on this machine if the workers cannot see its disk.
    """
    location = worker_location(options)
    if location == "here" or not storage.is_local(path):
        return path

    if location == "shared":
        return storage.filesystem(path)[1]

    advice = "Give a URL that they can reach, such as gs://bucket/folder or s3://bucket/folder"
    if short_runner_name(options) in PORTABLE_RUNNERS:
        advice += ", or set --environment_type to LOOPBACK, PROCESS or EXTERNAL"
    raise UsageError(
        f"{flag} {storage.printable(path)} is a path on this machine ({os.uname().nodename}), but the workers of "
        f"{runner_as_written(options)} run in containers or on other machines and would not see it. {advice}."
    )


SHUFFLES_ITSELF = ("portable", "flink", "spark")
"""Runners whose own shuffle can carry bulk data. Local runners and Prism keep every element in memory."""


def chosen_shuffle(wanted: Shuffle | Literal["auto"], options: PipelineOptions) -> Shuffle:
    """Return how rows travel between workers: as the user chose or, for "auto", as suits the runner."""
    if wanted != "auto":
        return wanted

    runner = short_runner_name(options)
    return "service" if runner in SHUFFLES_ITSELF or "dataflow" in runner else "files"
