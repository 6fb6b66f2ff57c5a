"""Finds the files that the suite's report links to: the report and the log of each task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.finetune.report import REPORT_FILE
from trainer.suite.plan import PROBE, Plan, job_name
from trainer.suite.scheduler import log_name

LOGS = "logs"
"""The folder of the jobs' output, in the output folder of a suite."""


@dataclass(frozen=True)
class Link:
    """A link of the report. path: relative to the report's folder."""

    text: str
    path: str


def links_of(plan: Plan) -> dict[str, list[Link]]:
    """Return the links to the files that exist, by the name of the job that wrote them (`plan.job_name`)."""
    parts = plan.suite.entry.names if plan.suite is not None else []
    if plan.probe is not None:
        parts = [*parts, PROBE]

    links = {}
    for encoder in plan.encoders:
        for part in parts:
            job = job_name(encoder.label, part)
            files = {
                "report": plan.place(encoder, part) / REPORT_FILE,
                "log": plan.output / LOGS / log_name(job),
            }
            links[job] = [Link(text, _relative(path, plan)) for text, path in files.items() if path.is_file()]
    return links


def _relative(path: Path, plan: Plan) -> str:
    return path.relative_to(plan.output).as_posix()
