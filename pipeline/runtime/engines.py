"""Where the workers of a runner are, and which paths they can open.

here        in processes of the launcher, or in the launcher itself
shared      in processes that another program started, perhaps on other machines; relative paths mean nothing there
elsewhere   in containers or on a cloud's machines, which do not see the launcher's disk
"""

from __future__ import annotations

import os
from typing import Literal

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, StandardOptions

from schemas import storage
from schemas.errors import UsageError

Place = Literal["here", "shared", "elsewhere"]

_LOCAL = ("fnapi", "direct", "switchingdirect", "bundlebaseddirect", "interactive")
_PORTABLE = ("portable", "flink", "spark", "prism")


def short_name(options: PipelineOptions) -> str:
    """Beam takes "FlinkRunner", "flink" and dotted paths alike. Example: "flink"."""
    name = str(options.view_as(StandardOptions).runner).rpartition(".")[2]
    return name.lower().removesuffix("runner")


def is_local(options: PipelineOptions) -> bool:
    """Whether the job runs in this process or in worker processes that it starts, so that it ends with them."""
    return short_name(options) in _LOCAL


def workers_place(options: PipelineOptions) -> Place:
    runner = short_name(options)
    if runner in _LOCAL:
        return "here"
    if "dataflow" in runner:
        return "elsewhere"
    if runner not in _PORTABLE:
        return "shared"

    environment = options.view_as(PortableOptions).environment_type
    if not environment and (runner == "prism" or _starts_an_engine(runner, options)):
        environment = "LOOPBACK"
    if environment == "LOOPBACK":
        return "here"
    return "elsewhere" if environment in (None, "", "DOCKER") else "shared"


def _starts_an_engine(runner: str, options: PipelineOptions) -> bool:
    values = options.get_all_options()
    if runner == "flink":
        return values["flink_master"] in ("[auto]", "[local]")
    return runner == "spark" and str(values["spark_master_url"]).startswith("local")


def path_for_workers(flag: str, path: str, options: PipelineOptions) -> str:
    """`path` as workers must be given it: made absolute where they may run in another folder.

    Raises UsageError for a path of this machine when the workers cannot see its disk.
    """
    place = workers_place(options)
    if place == "here" or not storage.is_local(path):
        return path

    if place == "shared":
        return storage.filesystem(path)[1]

    runner = options.view_as(StandardOptions).runner
    advice = "Give a URL that they can reach, such as gs://bucket/folder or s3://bucket/folder"
    if short_name(options) in _PORTABLE:
        advice += ", or set --environment_type to LOOPBACK, PROCESS or EXTERNAL"
    raise UsageError(
        f"{flag} {storage.shown(path)} is a path on this machine ({os.uname().nodename}), but the workers of {runner} "
        f"run in containers or on other machines and would not see it. {advice}."
    )
