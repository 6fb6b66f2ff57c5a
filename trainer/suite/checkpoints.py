"""Scores the checkpoints of a pretraining run as encoders of a suite, and adds the scores to the run's report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError
from trainer.checkpoint.format import MANIFEST, checkpoint_path, no_checkpoint, steps_saved
from trainer.finetune.inputs import write_json
from trainer.metrics.curves import SCORES_FILE, read_scores
from trainer.metrics.log import read_metrics
from trainer.metrics.presentation import keep_running
from trainer.metrics.run_page import write_report
from trainer.suite.encoders import Encoder
from trainer.suite.jobs import Job
from trainer.suite.plan import Plan


def steps_of(run: str, which: str) -> list[int]:
    """Return the steps that --checkpoints asks for, sorted.

    which: "all", "last", or comma-separated steps. Raises UsageError if the run is a URL or lacks such a checkpoint.
    """
    if not storage.is_local(run):
        raise UsageError(
            f"{run} is a URL. --checkpoints writes scores next to the run's report, so it needs a local folder."
        )
    saved = steps_saved(run)
    if not saved:
        raise no_checkpoint(run)
    if which == "all":
        return saved
    if which == "last":
        return saved[-1:]

    steps = []
    for word in which.split(","):
        if not word.strip().isdecimal() or int(word) not in saved:
            raise UsageError(
                f"--checkpoints {which}: {run} has no checkpoint {word.strip()!r}. It has "
                f"{', '.join(map(str, saved))}; or write all, or last."
            )
        steps.append(int(word))
    return sorted(set(steps))


def exported(run: str, steps: Sequence[int], output: Path) -> tuple[list[Encoder], list[Job]]:
    """Return the checkpoints of a run as encoders, and the jobs that export them in the Hugging Face format."""
    encoders, jobs = [], []
    for step in steps:
        label = f"step-{step}"
        folder = output / "checkpoints" / label
        words = ("trainer.export.cli", run, "--step", str(step), "--output", str(folder))
        job = Job(f"{label}/export", words, is_done=partial(Path.exists, folder / "config.json"))
        jobs.append(job)

        manifest = str(checkpoint_path(run, step) / MANIFEST)
        encoders.append(Encoder(label, str(folder), needs=(job.name,), manifest=manifest))
    return encoders, jobs


def write_scores(plan: Plan, content: dict[str, Any]) -> None:
    """Add the scores to RUN/suite_scores.json and write the run's report again. Does nothing without run or suite.

    content: that of results.json. Scores of other suites, of other steps in this suite, and of tasks that were left out
    this time are kept. Only a whole suite has an average, so that averages of different steps are over the same tasks.
    """
    if plan.run is None or not plan.suite.name:
        return

    run = plan.run
    hours = hours_of(run)
    everything = read_scores(run)
    merged = {line["step"]: line for line in everything.get(content["suite"], [])}
    for step in plan.steps:
        cells = content["scores"][f"step-{step}"]
        scores = {name: cell["spread"]["mean"] for name, cell in cells.items() if cell["spread"] is not None}
        average = content["averages"][f"step-{step}"]
        if average is not None and plan.is_whole:
            scores = {"average": average["spread"]["mean"], **scores}
        earlier = merged.get(step, {"scores": {}})["scores"]
        merged[step] = {"step": step, "hours": hours.get(step), "scores": earlier | scores}
    everything[content["suite"]] = [merged[step] for step in sorted(merged)]
    write_json(Path(run) / SCORES_FILE, everything)

    with keep_running("report.html"):
        write_report(run)


def hours_of(run: str) -> dict[int, float]:
    """Return the hours of training up to each checkpoint by step, from the run's metrics."""
    lines = [line for line in read_metrics(run) if line.get("seconds") is not None]
    hours = {}
    for step in steps_saved(run):
        before = [line["seconds"] for line in lines if line["step"] <= step]
        if before:
            hours[step] = max(before) / 3600
    return hours
