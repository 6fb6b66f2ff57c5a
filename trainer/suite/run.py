"""Runs a suite; the entry point is `run_suite`.

OUTPUT/table.md, OUTPUT/report.html, OUTPUT/results.json   the scores
OUTPUT/inputs.json                                         what the scores depend on
OUTPUT/tasks, folders, checkpoints, logs                   see plan.py
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

from schemas import storage
from schemas.errors import ClozelineError, UsageError
from trainer.checkpoint.run_lock import held
from trainer.config.parse import Origin
from trainer.distributed.stop import StopRequest
from trainer.finetune.files.sets import check_task_files, path_in
from trainer.finetune.inputs import check_inputs, fingerprint_of, record_inputs, write_json
from trainer.finetune.results import RESULTS_FILE
from trainer.finetune.task import Task
from trainer.finetune.task_file import data_folder, is_shipped, read_task
from trainer.logs import logger
from trainer.metrics.presentation import keep_running
from trainer.suite.encoders import Encoder, encoders_of
from trainer.suite.jobs import Job, Scheduler, slots
from trainer.suite.needed_files import Missing, files_of, matching, without_missing
from trainer.suite.plan import FOLDERS, Plan, jobs_of, write_tasks
from trainer.suite.suite_file import NO_SUITE, Suite, SuiteTask, TaskEntry, changes_for_all, open_suite, suite_names
from trainer.suite.suite_results import count_without_score, results_of
from trainer.suite.tables import markdown, page

TABLE_FILE = "table.md"
REPORT_FILE = "report.html"

PROBED_KINDS = ("sentence", "pair", "tags")


def run_suite(options: argparse.Namespace, stop: StopRequest) -> None:
    """Run all jobs and write the table.

    Raises UsageError and DataError for invalid inputs before any job starts, PreemptedError after a stop request
    once all jobs have saved, and ClozelineError at the end if a job failed or a reported set has no labels.
    """
    plan, jobs = plan_of(options)
    inputs = inputs_of(plan)
    # Before the lock, which is a file in the folder: nothing is written to a folder of something else.
    check_inputs(plan.output, with_results(plan, inputs), "Choose another folder, or remove this one.")
    with held(plan.output):
        record_inputs(plan.output, inputs)
        write_tasks(plan)
        scheduler = Scheduler(jobs, slots(options.workers), plan.output / "logs", stop)
        try:
            scheduler.run()
        finally:
            left = [job.name for job in jobs if job.name not in scheduler.done]
            content = results_of(plan, {name: scheduler.errors.get(name, "not done") for name in left})
            write_results(plan, content)

        if plan.run is not None:
            from trainer.suite.checkpoints import write_scores

            write_scores(plan, content)

    logger.info("%s", markdown(content))
    table = plan.output / TABLE_FILE
    if scheduler.errors:
        raise ClozelineError(
            f"{len(scheduler.errors)} of {len(jobs)} jobs failed; {table} says why. Finished results are kept. Remove "
            "the causes; the same command then tries the failed jobs again."
        )
    missing = count_without_score(content)
    if missing > 0:
        raise ClozelineError(f"{missing} of the scores could not be computed; {table} says why.")


def plan_of(options: argparse.Namespace) -> tuple[Plan, list[Job]]:
    """Return the checked plan of a command line, and its jobs. Raises UsageError and DataError for wrong inputs."""
    suite, skipped = NO_SUITE, []
    if options.suite is None:
        check_probe_alone(options)
    else:
        suite, skipped = suite_of(options)
    probe = probed_task(options) if options.probe is not None else None

    run, steps = None, []
    if options.checkpoints is None:
        encoders, exports = encoders_of(options.folders, options.random_weights), []
    else:
        # Reading checkpoints loads torch. A suite of folders does not need it in this process.
        from trainer.suite.checkpoints import exported, steps_of

        if len(options.folders) > 1 or options.random_weights:
            raise UsageError(
                "--checkpoints takes one run, without --random_weights. Score other folders with another command."
            )
        run = options.folders[0]
        steps = steps_of(run, options.checkpoints)
        encoders, exports = exported(run, steps, options.output)

    is_whole = not (options.only or skipped)
    plan = Plan(suite, encoders, options.output, options.seeds, probe, skipped, is_whole, run, steps)
    return plan, [*exports, *jobs_of(plan)]


def suite_of(options: argparse.Namespace) -> tuple[Suite, list[Missing]]:
    """Return the suite without the parts whose files are missing, and those parts."""
    if options.data is None and options.suite in suite_names():
        raise UsageError(f"--suite {options.suite} ships without data. Give the folder of its files with --data.")

    opened = open_suite(options.suite, options.only, options.set, options.data)
    suite, skipped = without_missing(opened, options.skip_missing)
    for part in skipped:
        logger.info("%s is left out: %s cannot be found.", part.name, ", ".join(part.files))
    return suite, skipped


def check_probe_alone(options: argparse.Namespace) -> None:
    """Raise UsageError if --probe is missing as well as --suite, or if a flag chooses tasks of a suite."""
    if options.probe is None:
        raise UsageError("neither --suite nor --probe is given. Give one of them, or both.")
    if options.only:
        raise UsageError("--only chooses tasks of a suite. Give --suite, or leave it out.")


def probed_task(options: argparse.Namespace) -> SuiteTask:
    """Return the task to probe. Changes of --set for a single task of the suite do not apply to it.

    With a suite, --data is for the suite's files, and the probe's files are in its task file's folder. Without a suite,
    and for a task that ships with Clozeline, which has no files next to it, --data comes first.
    Raises UsageError if the file is not a task or cannot be probed, and DataError for a missing file.
    """
    changes = options.set if options.suite is None else list(changes_for_all(options.set))
    task = read_task(options.probe, changes, "--probe")
    check_probed(task)

    data_is_of_suite = options.suite is not None and not is_shipped(options.probe)
    data = data_folder(options.probe, None if data_is_of_suite else options.data, "--probe")
    check_task_files(task, data, Origin(options.probe, changes))
    return SuiteTask(TaskEntry(), task, data)


def check_probed(task: Task) -> None:
    """Raise UsageError unless a task has classes of texts or of words, which a linear probe needs."""
    if task.kind not in PROBED_KINDS or task.is_regression:
        what = "whose labels are numbers" if task.is_regression else f"of kind {task.kind!r}"
        raise UsageError(
            f"--probe: {task.name} is a task {what}. A linear probe needs classes of texts or of words: one of the "
            f"kinds {', '.join(PROBED_KINDS)}."
        )


def inputs_of(plan: Plan) -> dict[str, Any]:
    """Return everything that the results depend on: values of tasks, hashes of files and of encoders.

    A later start may add tasks, encoders and seeds. Those that have results must be unchanged.
    """
    # A fine-tuning records its encoder under this name, so that neither takes the other's folder.
    inputs: dict[str, Any] = {"encoder": "those of a suite"}
    for name, of_suite in plan.suite.tasks.items():
        values = inputs_of_task(of_suite.task, of_suite.folder)
        inputs[f"task {name}"] = values | {"starts_from": of_suite.entry.starts_from}
    for name, pairs in plan.suite.minimal_pairs.items():
        files = digests_of(matching(plan.suite.folder, pairs.files), plan.suite.folder)
        inputs[f"minimal pairs {name}"] = {"variant": pairs.variant, "files": files}
    if plan.probe is not None:
        inputs["probe"] = inputs_of_task(plan.probe.task, plan.probe.folder)
    for encoder in plan.encoders:
        inputs[f"encoder {encoder.label}"] = {"weights": weights_of(encoder)}
    return inputs


def with_results(plan: Plan, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs that a finished job rests on, or an exported checkpoint. Those of failed jobs may be mended."""
    places = [path.parent for path in (plan.output / FOLDERS).glob(f"*/*/{RESULTS_FILE}")]
    done = {f"encoder {place.parent.name}" for place in places}
    for place in places:
        done |= {place.name, f"task {place.name}", f"minimal pairs {place.name}"}
    if plan.run is not None:
        done |= {f"encoder {encoder.label}" for encoder in plan.encoders}
    return {name: values for name, values in inputs.items() if name in done or name == "encoder"}


def inputs_of_task(task: Task, data: str) -> dict[str, Any]:
    """Return the values of a task, and the hash of each of its files. data: the folder of the files."""
    values = task.model_dump(mode="json", exclude={"source": True, "training": {"save_every"}})  # change no result
    return values | {"files": digests_of(files_of(task.data), data)}


def digests_of(files: list[str], data: str) -> dict[str, str]:
    """Return the SHA-256 of the content of each file. Size and date would miss an edited label."""
    digests = {}
    for name in files:
        with storage.open_input(path_in(data, name)) as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return digests


def weights_of(encoder: Encoder) -> str:
    if encoder.manifest is not None:
        # The checkpoint may not be exported yet, so hash its manifest, which holds the hashes of all its files. The
        # step alone would be the same in another run, or after this run was trained again.
        return storage.sha256(storage.read(encoder.manifest))[:16]
    return f"{fingerprint_of(encoder.folder)}{' random' if encoder.random_weights else ''}"


def write_results(plan: Plan, content: dict[str, Any]) -> None:
    """Write results.json, table.md and report.html. content: that of results.json."""
    output = plan.output
    write_json(output / RESULTS_FILE, content)
    storage.publish(str(output / TABLE_FILE), markdown(content).encode())
    with keep_running(REPORT_FILE):
        storage.publish(str(output / REPORT_FILE), page(content).encode(), durable=False)
