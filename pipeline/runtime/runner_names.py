"""Names of Beam's runners, without importing Beam.

A user may write "FlinkRunner", "flink" or a dotted path; the short name of all three is "flink".
"""

from __future__ import annotations

from schemas.errors import UsageError, nearest_name

DEFAULT_RUNNER = "FnApiRunner"
"""Beam's own local runner. Not DirectRunner: which runner that selects depends on the graph, and it may download a
binary."""

LOCAL_RUNNERS = ("fnapi", "direct", "switchingdirect", "bundlebaseddirect", "interactive")
"""Runners that work in the launcher's process, or in worker processes that it starts."""

PORTABLE_RUNNERS = ("portable", "flink", "spark", "prism")
"""Runners of a job service, whose workers run where --environment_type says."""

RUNNER_NAMES = {
    "fnapi": "FnApiRunner",
    "direct": "DirectRunner",
    "switchingdirect": "SwitchingDirectRunner",
    "bundlebaseddirect": "BundleBasedDirectRunner",
    "interactive": "InteractiveRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
    "prism": "PrismRunner",
    "portable": "PortableRunner",
    "dataflow": "DataflowRunner",
}
"""Beam's name of each runner that --runner takes by its short name."""


def short_name(runner: str) -> str:
    """Return a runner's short name. Example: `short_name("some.module.FlinkRunner")` -> `"flink"`."""
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def full_name(runner: str) -> str:
    """Return Beam's name of a runner. Examples: "flink" -> "FlinkRunner"; a dotted path stays as it is.

    Raises UsageError for a name without a dot that is not a runner's.
    """
    if "." in runner:
        return runner

    name = RUNNER_NAMES.get(short_name(runner))
    if name is None:
        known = ("FlinkRunner", "SparkRunner", "PrismRunner", "DataflowRunner", "PortableRunner", "FnApiRunner")
        raise UsageError(
            f"--runner {runner} is unknown.{nearest_name(runner, known)} Give one of {', '.join(known)}, or the path "
            "of a runner's class, such as package.module.SomeRunner."
        )
    return name
