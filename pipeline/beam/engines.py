"""What follows from a job's flags: its engine, where the workers run, and which paths they can open.

    here        workers in processes of the launcher, or in the launcher itself
    shared      in processes that another program started, perhaps on other machines; relative paths mean nothing there
    elsewhere   in containers or on a cloud's machines, which do not see the launcher's disk

Flags are parsed and checked before a file is listed or an engine is contacted.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)

from pipeline.beam import internals
from pipeline.beam.internals import DEFAULT_RUNNER, LOCAL_RUNNERS, PORTABLE_RUNNERS, full_name, short_name
from pipeline.exchange.blocks import Shuffle
from pipeline.processes import WORTH_A_PROCESS
from schemas import storage
from schemas.command_line import flag_hint, unknown_flags
from schemas.errors import UsageError
from schemas.host_limits import available_bytes, usable_cores

WorkerLocation = Literal["here", "shared", "elsewhere"]

LOGGER = logging.getLogger("clozeline.engines")

KEEP_WORKERS_MILLIS = 30_000
"""How long an engine keeps an idle worker for the job's next step.

By default Beam does not keep it, so that every step starts new workers, which takes seconds. The drawback: a killed
worker is kept for this long too, and assigned work again.
"""

JOB_SERVER_TIMEOUT = 30 * 24 * 3600
"""In seconds. Beam's default of 300 s also limits how long it listens to a Prism job, so longer jobs appear to fail."""

MEMORY_OF_A_PROCESS = 1 << 30  # bytes, about

_NEEDED_BY_DATAFLOW = {
    "project": "--project, the id of the Google Cloud project that pays for the job",
    "region": "--region, for example us-central1; take the region of the buckets",
    "temp_location": "--temp_location, for example gs://bucket/tmp",
    "sdk_container_image": "--sdk_container_image, an image with Clozeline, for example one of deploy/images",
}
"""What to give for each missing option, by Beam's name for it."""


class LauncherOptions(PipelineOptions):
    """Options of the launcher itself, kept among Beam's so that any code with the job's options can read them."""

    @classmethod  # a hook that Beam documents
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no_wait", action="store_true", help="submit the job and exit")


def runner_as_written(options: PipelineOptions) -> str:
    """Return Beam's name of the runner, or the path of its class."""
    return str(options.view_as(StandardOptions).runner)


def short_runner_name(options: PipelineOptions) -> str:
    """Return the runner in lower case, without its module and without "Runner". Example: "flink"."""
    return short_name(runner_as_written(options))


def runs_locally(options: PipelineOptions) -> bool:
    """Whether the job runs in this process or in worker processes that it starts, so that it ends with them."""
    return short_runner_name(options) in LOCAL_RUNNERS


def is_dataflow(options: PipelineOptions) -> bool:
    return "dataflow" in short_runner_name(options)


def is_dry_run(options: PipelineOptions) -> bool:
    """Whether the job is only checked. Beam treats any value of --dry_run as true."""
    return bool(options.view_as(TestOptions).dry_run)


def leaves_job(options: PipelineOptions) -> bool:
    """Whether the launcher submits the job and does not wait for it."""
    return options.view_as(LauncherOptions).no_wait


def makes_template(options: PipelineOptions) -> bool:
    """Whether the job is only written to a template file, which Dataflow starts after the launcher has exited."""
    return is_dataflow(options) and bool(options.view_as(GoogleCloudOptions).template_location)


# From flags to options


def _hint(flag: str, known: Iterable[str]) -> str:
    is_of_workers = flag.lstrip("-").removeprefix("num_") in ("workers", "processes", "proc", "jobs", "threads", "cpus")
    return " Did you mean --direct_num_workers?" if is_of_workers else flag_hint(flag, known)


def check_flags(arguments: list[str], known_flags: Sequence[str] = ()) -> PipelineOptions:
    """Check the flags that are not a command's own, and return Beam's options with the engine's defaults.

    known_flags: the command's own, to suggest one for a misspelled flag.
    Raises UsageError for an unknown flag or runner, for a Dataflow flag that is missing, for workers without Clozeline,
    and for flags that have no effect or contradict each other.
    """
    parser = internals.flag_parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise unknown_flags(unknown, [*known_flags, *internals.flag_names(parser)], hint=_hint)

    options = PipelineOptions(arguments)
    options.view_as(StandardOptions).runner = full_name(parsed.runner or DEFAULT_RUNNER)
    given = {argument.partition("=")[0].replace("-", "_") for argument in arguments}
    if "__num_workers" in given and runs_locally(options):
        raise UsageError(
            f"--num_workers has no effect with {runner_as_written(options)}, which runs on this machine. "
            "Use --direct_num_workers N for N worker processes."
        )
    workers = options.view_as(DirectOptions).direct_num_workers
    if workers < 0:
        raise UsageError(f"--direct_num_workers {workers}: expected a number of processes; 0 is one for each core.")
    _set_engine_defaults(options, given)
    if is_dataflow(options):
        _check_dataflow(options)
    if leaves_job(options):
        _check_leaving(options)
    return options


def beam_options(checked: PipelineOptions, arguments: list[str], input_bytes: int) -> PipelineOptions:
    """Return a copy of a job's options with the number of local workers, if its flags leave that open.

    checked: what `check_flags` returned for these `arguments`.
    By default a job runs on this machine, with one process per core as far as the input and the memory suffice.
    """
    options = copy.deepcopy(checked)
    direct = options.view_as(DirectOptions)
    is_open = not any(argument.startswith("--direct_") for argument in arguments)
    if is_open and runner_as_written(options) == DEFAULT_RUNNER:
        suffices_for = min(input_bytes // WORTH_A_PROCESS, available_bytes() // MEMORY_OF_A_PROCESS)
        direct.direct_num_workers = max(1, min(usable_cores(), suffices_for))
    elif direct.direct_num_workers == 0:  # for Beam, all cores of the machine, whatever this process may use
        direct.direct_num_workers = usable_cores()
    return options


def _set_engine_defaults(options: PipelineOptions, given: set[str]) -> None:
    """Set the Beam options that follow from the runner, except those whose flags the user gave.

    given: flags with underscores for all hyphens. Raises UsageError if the workers would run in containers without
    Clozeline.
    """
    if runs_locally(options):
        return
    if not {"__save_main_session", "__no_save_main_session"} & given:
        options.view_as(SetupOptions).save_main_session = False  # workers import our functions by name
    if short_runner_name(options) not in PORTABLE_RUNNERS:
        return

    portable = options.view_as(PortableOptions)
    defaults = {
        "environment_type": "LOOPBACK" if engine_is_here(options) else None,  # None: containers
        "environment_cache_millis": KEEP_WORKERS_MILLIS,
        "job_server_timeout": JOB_SERVER_TIMEOUT,
    }
    script = Path(sys.executable).parent / "clozeline-worker"  # installed, at the same path on every machine
    if portable.environment_type == "PROCESS" and not portable.environment_options and script.exists():
        defaults["environment_config"] = json.dumps({"command": str(script)})

    for name, value in defaults.items():
        if value is not None and f"__{name}" not in given:
            setattr(portable, name, value)
            LOGGER.info("--%s %s, because it was not given", name, value)

    is_described = portable.environment_config or portable.environment_options
    if portable.environment_type in (None, "", "DOCKER") and not is_described:
        raise UsageError(
            f"The workers of {runner_as_written(options)} would run in Beam's own container, which has no Clozeline. "
            "Give --environment_type EXTERNAL --environment_config HOST:PORT for workers of `clozeline worker "
            "--pool`, --environment_type PROCESS for workers that the engine starts where Clozeline is installed, or "
            "--environment_type DOCKER --environment_config IMAGE for an image that has it. See docs/engines.md."
        )


def _check_dataflow(options: PipelineOptions) -> None:
    """Raise UsageError for a missing Dataflow flag, before its client looks for the value over the network."""
    values = options.view_as(GoogleCloudOptions).get_all_options()
    worker = options.view_as(WorkerOptions)
    values["sdk_container_image"] = worker.sdk_container_image or worker.worker_harness_container_image

    missing = [advice for name, advice in _NEEDED_BY_DATAFLOW.items() if not values[name]]
    if missing:
        raise UsageError(f"--runner {runner_as_written(options)} needs {'; '.join(missing)}.")
    if makes_template(options) and not leaves_job(options) and not is_dry_run(options):
        raise UsageError(
            "--template_location writes the job to a file, and nothing runs that could be followed. Add --no_wait, and "
            "start one job from the file: its files in the output folder are for a single one."
        )


def _check_leaving(options: PipelineOptions) -> None:
    if worker_location(options) != "here":
        return

    where = "runs on this machine" if runs_locally(options) else "has its workers in this process (LOOPBACK)"
    raise UsageError(
        f"--no_wait cannot be used with --runner {runner_as_written(options)}, which {where}: the job would end with "
        "this command. Leave the flag out, or send the job to an engine that runs its own workers; see docs/engines.md."
    )


# What follows from the options


def engine_is_here(options: PipelineOptions) -> bool:
    """Whether the engine, or the job service in front of it, is on this machine."""
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint:
        return endpoint == "embed" or is_this_machine(endpoint)
    if short_runner_name(options) == "portable":
        return False

    address = cluster_address(options)[1]
    return address is None or is_this_machine(address)


def cluster_address(options: PipelineOptions) -> tuple[str, str | None]:
    """Return the flag that names the Flink or Spark cluster, and its address; None if the runner starts an engine."""
    runner = short_runner_name(options)
    flag = "spark_master_url" if runner == "spark" else "flink_master"
    address = str(options.get_all_options()[flag])
    starts_engine = (
        runner == "prism"
        or address in ("[auto]", "[local]", "local")
        or address.startswith(("local[", "local-cluster["))
    )
    return f"--{flag}", None if starts_engine else address


def is_this_machine(address: str) -> bool:
    """Whether an address such as "localhost:8081", "http://127.0.0.1:8081" or "spark://host:7077" is this machine's."""
    here = ("localhost", "127.0.0.1", "[::1]", "::1", "0.0.0.0", platform.node().lower())
    return all((host or port).lower() in here for host, port in hosts_and_ports(address))


def hosts_and_ports(address: str) -> list[tuple[str, str]]:
    """Return the parts of an address; of each master in "spark://a:7077,b:7077", of which one leads the cluster."""
    parts = [one.rpartition(":") for one in address.rpartition("://")[2].split(",")]
    return [(host, port) for host, _, port in parts]


def worker_location(options: PipelineOptions) -> WorkerLocation:
    runner = short_runner_name(options)
    if runner in LOCAL_RUNNERS:
        return "here"
    if is_dataflow(options):
        return "elsewhere"
    if runner not in PORTABLE_RUNNERS:
        return "shared"

    environment = options.view_as(PortableOptions).environment_type
    if environment == "LOOPBACK":
        return "here"
    return "elsewhere" if environment in (None, "", "DOCKER") else "shared"


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
        f"{flag} {storage.printable(path)} is a path on this machine ({platform.node()}), but the workers of "
        f"{runner_as_written(options)} run in containers or on other machines and would not see it. {advice}."
    )


def chosen_shuffle(wanted: Shuffle | Literal["auto"], options: PipelineOptions) -> Shuffle:
    """Return how rows travel between workers: as the user chose or, for "auto", as suits the runner."""
    if wanted != "auto":
        return wanted

    # Local runners and Prism keep every element in memory.
    can_carry_bulk_data = short_runner_name(options) in ("portable", "flink", "spark") or is_dataflow(options)
    return "service" if can_carry_bulk_data else "files"
