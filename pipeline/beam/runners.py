"""Beam's names of its runners. Imports no Beam, for `--help`."""

from __future__ import annotations

from schemas.errors import UsageError, nearest_name

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
