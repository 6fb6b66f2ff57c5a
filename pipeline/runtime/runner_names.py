"""Names of Beam's runners, without importing Beam.

A user may write "FlinkRunner", "flink" or a dotted path; the short name of all three is "flink".
"""

from __future__ import annotations

LOCAL_RUNNERS = ("fnapi", "direct", "switchingdirect", "bundlebaseddirect", "interactive")
"""Runners that work in the launcher's process, or in worker processes that it starts."""

PORTABLE_RUNNERS = ("portable", "flink", "spark", "prism")
"""Runners of a job service, whose workers run where --environment_type says."""


def short_name(runner: str) -> str:
    """Example: `short_name("some.module.FlinkRunner")` -> `"flink"`."""
    return runner.rpartition(".")[2].lower().removesuffix("runner")
