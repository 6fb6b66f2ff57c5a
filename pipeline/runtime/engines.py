"""Where the workers of a runner are, and which paths they can open.

here        in processes of the launcher, or in the launcher itself
shared      in processes that another program started, perhaps on other machines; relative paths mean nothing there
elsewhere   in containers or on a cloud's machines, which do not see the launcher's disk
"""

from __future__ import annotations

import os
from typing import Literal

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from pipeline.runtime.exchange import Shuffle
from pipeline.runtime.runner_names import LOCAL_RUNNERS, PORTABLE_RUNNERS, short_name
from schemas import storage
from schemas.errors import UsageError

Place = Literal["here", "shared", "elsewhere"]


def runner_as_written(options: PipelineOptions) -> str:
    """The value of --runner, as the user wrote it."""
    return str(options.view_as(StandardOptions).runner)


def short_runner_name(options: PipelineOptions) -> str:
    """The runner in lower case, without its module and without "Runner". Example: "flink"."""
    return short_name(runner_as_written(options))


def runs_locally(options: PipelineOptions) -> bool:
    """Whether the job runs in this process or in worker processes that it starts, so that it ends with them."""
    return short_runner_name(options) in LOCAL_RUNNERS


def workers_place(options: PipelineOptions) -> Place:
    """Where the workers of the chosen runner are."""
    runner = short_runner_name(options)
    if runner in LOCAL_RUNNERS:
        return "here"
    if "dataflow" in runner:
        return "elsewhere"
    if runner not in PORTABLE_RUNNERS:
        return "shared"

    environment = options.view_as(PortableOptions).environment_type
    if not environment and (runner == "prism" or _starts_its_engine(runner, options)):
        environment = "LOOPBACK"  # Beam's own default for an engine that the launcher starts
    if environment == "LOOPBACK":
        return "here"
    if environment in (None, "", "DOCKER"):
        return "elsewhere"
    return "shared"


def _starts_its_engine(runner: str, options: PipelineOptions) -> bool:
    """Whether the runner starts Flink or Spark on this machine instead of connecting to a cluster."""
    values = options.get_all_options()
    if runner == "flink":
        return values["flink_master"] in ("[auto]", "[local]")
    return runner == "spark" and str(values["spark_master_url"]).startswith("local")


def path_for_workers(flag: str, path: str, options: PipelineOptions) -> str:
    """Return `path` as workers need it: absolute where they may run in another folder.

    Raises UsageError for a path on this machine when the workers cannot see its disk.
    """
    place = workers_place(options)
    if place == "here" or not storage.is_local(path):
        return path

    if place == "shared":
        return storage.filesystem(path)[1]

    advice = "Give a URL that they can reach, such as gs://bucket/folder or s3://bucket/folder"
    if short_runner_name(options) in PORTABLE_RUNNERS:
        advice += ", or set --environment_type to LOOPBACK, PROCESS or EXTERNAL"
    raise UsageError(
        f"{flag} {storage.printable(path)} is a path on this machine ({os.uname().nodename}), but the workers of "
        f"{runner_as_written(options)} run in containers or on other machines and would not see it. {advice}."
    )


SHUFFLES_ITSELF = ("portable", "flink", "spark")
"""Runners whose own shuffle takes bulk data. Local runners and Prism keep every element in memory."""


def chosen_shuffle(wanted: Shuffle | Literal["auto"], options: PipelineOptions) -> Shuffle:
    """Return how rows travel between workers: as the user says, or as suits the runner."""
    if wanted != "auto":
        return wanted

    runner = short_runner_name(options)
    return "service" if runner in SHUFFLES_ITSELF or "dataflow" in runner else "files"
