"""Runs a suite; the entry point is `run_suite`.

OUTPUT/table.md, OUTPUT/report.html, OUTPUT/results.json   the scores
OUTPUT/suite.json                                          hashes of the inputs, see identity.py
OUTPUT/folders, encoders, checkpoints, logs                see plan.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from schemas import storage
from schemas.errors import ClozelineError, UsageError
from trainer.checkpoint.run_lock import held
from trainer.finetune.results import RESULTS_FILE
from trainer.finetune.shipped import shipped_task_names
from trainer.finetune.task_file import data_folder as folder_of_task
from trainer.logs import logger
from trainer.metrics.presentation import keep_running
from trainer.suite.encoders import encoders_of
from trainer.suite.identity import check_owner, claim, identity_of
from trainer.suite.left_out import pairs_left_out
from trainer.suite.links import LOGS, links_of
from trainer.suite.needed_files import Missing, missing_files, without_missing
from trainer.suite.outcomes import JobStates, count_without_score, outcome
from trainer.suite.plan import Plan, jobs_of
from trainer.suite.probe.tasks import open_probe
from trainer.suite.report import REPORT_FILE, report
from trainer.suite.scheduler import Job, Scheduler
from trainer.suite.slots import slots
from trainer.suite.stop import Stop
from trainer.suite.suite_file import OpenSuite, changes_for_all, is_shipped, open_suite
from trainer.suite.table import markdown

TABLE_FILE = "table.md"


@dataclass(frozen=True)
class Order:
    """A suite as the command line asks for it.

    skipped: the parts of the suite whose files are missing. run: the folder of the run whose checkpoints are scored,
    None if encoders are. steps: the steps of these checkpoints.
    """

    plan: Plan
    skipped: list[Missing]
    jobs: list[Job]
    run: str | None = None
    steps: Sequence[int] = ()


def run_suite(options: argparse.Namespace, stop: Stop) -> None:
    """Run all jobs and write the table.

    Raises UsageError and DataError for invalid inputs before any job starts, SuiteStoppedError after a stop request
    once all jobs have saved, and ClozelineError at the end if a job failed or a reported set has no labels.
    """
    order = order_of(options)
    with claimed(order.plan):
        scheduler = Scheduler(order.jobs, slots(options.workers), order.plan.output / LOGS, stop)
        try:
            scheduler.run()
        finally:
            errors = {**order.plan.unscored, **scheduler.errors}
            content = outcome(order.plan, JobStates(scheduler.done, errors), order.skipped)
            write_outcome(order.plan, content)

        if order.run is not None:
            from trainer.suite.checkpoints import write_scores

            write_scores(order.run, order.steps, order.plan, content)

    logger.info("%s", markdown(content))
    if scheduler.errors:
        count = len(scheduler.errors)
        raise ClozelineError(
            f"{count} of {len(order.jobs)} jobs failed; {order.plan.output / TABLE_FILE} says why. Finished results "
            "are kept. Remove the causes; the same command then tries the failed jobs again."
        )
    missing = count_without_score(content) - len(order.plan.unscored)
    if missing > 0:
        raise ClozelineError(
            f"{missing} of the scores could not be computed; {order.plan.output / TABLE_FILE} says why."
        )


def order_of(options: argparse.Namespace) -> Order:
    """Return the checked order of a command line. Raises UsageError and DataError for invalid flags and files."""
    if options.suite is None:
        check_probe_alone(options)

    suite, skipped = None, []
    if options.suite is not None:
        check_has_data(options)
        opened = open_suite(options.suite, options.only, options.set)
        suite, skipped = checked_files(opened, options.data, options.skip_missing)
    probe = open_probe(options.probe, probe_data(options), options.set) if options.probe is not None else None

    run, steps = None, []
    if options.checkpoints is None:
        encoders, exports = encoders_of(options.folders, options.random_weights), []
    else:
        # Reading checkpoints loads torch. A suite of folders does not need it in this process.
        from trainer.suite.checkpoints import encoders_of_run, export_jobs, steps_of

        run = run_of(options)
        steps = steps_of(run, options.checkpoints)
        encoders = encoders_of_run(run, steps, options.output)
        exports = export_jobs(run, steps, options.output)

    unscored = pairs_left_out(suite, encoders, options.skip_missing) if suite is not None else {}
    is_whole = not options.only and not skipped
    plan = Plan(suite, encoders, options.data, options.output, options.seeds, probe, is_whole, unscored)
    jobs = jobs_of(plan)
    if not jobs:
        raise UsageError(f"{' '.join(dict.fromkeys(unscored.values()))} Nothing is left to run. Choose other tasks.")
    return Order(plan, skipped, [*exports, *jobs], run, steps)


def check_probe_alone(options: argparse.Namespace) -> None:
    """Raise UsageError if --probe is missing as well, or if a flag only affects tasks of a suite.

    For command lines without --suite, where such a flag would have no effect.
    """
    if options.probe is None:
        raise UsageError("neither --suite nor --probe is given. Give one of them, or both.")
    if options.only:
        raise UsageError("--only chooses tasks of a suite. Give --suite, or leave it out.")

    for change in options.set:
        if not changes_for_all([change]):
            for_probe = change.partition(":")[2]
            raise UsageError(
                f"--set {change}: without --suite there is only the probe's task. Write --set {for_probe}."
            )


def check_has_data(options: argparse.Namespace) -> None:
    """Raise UsageError for a shipped suite without --data."""
    if options.data is None and is_shipped(options.suite):
        raise UsageError(f"--suite {options.suite} ships without data. Give the folder of its files with --data.")


def probe_data(options: argparse.Namespace) -> str:
    """Return the folder of the probe's files.

    With a suite, --data is for the suite's files, and the probe's files are in its task file's folder. Without a suite,
    and for a task that ships with Clozeline, which has no files next to it, --data comes first.
    """
    data_is_of_suite = options.suite is not None and options.probe not in shipped_task_names()
    return folder_of_task(options.probe, None if data_is_of_suite else options.data)


def checked_files(suite: OpenSuite, data: str | None, skip: bool) -> tuple[OpenSuite, list[Missing]]:
    """Return the suite without the parts whose files are missing, and those parts.

    Raises DataError if required files are missing and `skip` is False.
    """
    kept, skipped = without_missing(suite, missing_files(suite, data), data, skip)
    for part in skipped:
        logger.info("%s is left out: %s cannot be found.", part.name, ", ".join(part.files))
    return kept, skipped


def run_of(options: argparse.Namespace) -> str:
    """Return the run whose checkpoints are scored. Raises UsageError if there are several folders."""
    if len(options.folders) > 1 or options.random_weights:
        raise UsageError(
            "--checkpoints takes one run, without --random_weights. Score other folders with another command."
        )
    return options.folders[0]


@contextlib.contextmanager
def claimed(plan: Plan) -> Iterator[None]:
    """Lock the output folder. Raises UsageError if it belongs to other inputs, StorageError if it is not writable."""
    # Before the lock, which is a file in the folder: nothing is written to a folder of something else.
    check_owner(plan.output)
    with held(plan.output):
        claim(plan.output, identity_of(plan))
        yield


def write_outcome(plan: Plan, content: dict[str, Any]) -> None:
    """Write results.json, table.md and report.html. content: that of results.json."""
    output = plan.output
    storage.publish(str(output / RESULTS_FILE), (json.dumps(content, indent=1) + "\n").encode())
    storage.publish(str(output / TABLE_FILE), markdown(content).encode())
    with keep_running(REPORT_FILE):
        page = report(content, links_of(plan))
        storage.publish(str(output / REPORT_FILE), page.encode(), durable=False)
