"""Builds the jobs of a suite. Their files:

    OUTPUT/tasks/TASK.toml         a task with all its values and the changes of --set
    OUTPUT/folders/LABEL/TASK      the output of `clozeline finetune`, or the scores of minimal pairs
    OUTPUT/folders/LABEL/probe     the scores of the linear probes
    OUTPUT/checkpoints/step-N      a run's checkpoint in the Hugging Face format
    OUTPUT/logs                    the output of each job

A job writes its results last. It is done if they exist, belong to this encoder, and include all requested seeds.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from schemas import storage
from trainer.config.record import flatten
from trainer.finetune.inputs import fingerprint_of, read_inputs_of, read_json
from trainer.finetune.results import RESULT_FILE, RESULTS_FILE
from trainer.finetune.task import Task
from trainer.finetune.task_file import dump_task
from trainer.logs import logger
from trainer.suite.encoders import Encoder
from trainer.suite.jobs import Job
from trainer.suite.needed_files import Missing
from trainer.suite.suite_file import Suite, SuiteTask

PROBE = "probe"
FOLDERS = "folders"


@dataclass(frozen=True)
class Plan:
    """The encoders and the tasks to score them on.

    suite: NO_SUITE for a probe alone. probe: the task to probe. skipped: the parts of the suite whose files are
    missing. is_whole: whether no part was left out. run: the folder of the run whose checkpoints of these steps are
    scored, None if the encoders are folders.
    """

    suite: Suite
    encoders: Sequence[Encoder]
    output: Path
    seeds: int
    probe: SuiteTask | None = None
    skipped: Sequence[Missing] = ()
    is_whole: bool = True
    run: str | None = None
    steps: Sequence[int] = ()

    def place(self, encoder: Encoder, name: str) -> Path:
        """Return the folder for the results of a task, of minimal pairs or of the probe."""
        return self.output / FOLDERS / encoder.label / name

    def results(self, encoder: Encoder, name: str) -> dict[str, Any]:
        return read_json(self.place(encoder, name) / RESULTS_FILE) or {}

    def task_file(self, name: str) -> Path:
        return self.output / "tasks" / f"{name}.toml"


def write_tasks(plan: Plan) -> None:
    tasks = {name: of_suite.task for name, of_suite in plan.suite.tasks.items()}
    if plan.probe is not None:
        tasks[PROBE] = plan.probe.task
    for name, task in tasks.items():
        storage.publish(str(plan.task_file(name)), dump_task(task).encode())


def jobs_of(plan: Plan) -> list[Job]:
    """Return the jobs of all encoders, those that train nothing first: what they refuse is then known early."""
    jobs: list[Job] = []
    if plan.probe is not None:
        words = ["trainer.suite.probe", "--task", str(plan.task_file(PROBE)), "--data", plan.probe.folder]
        jobs += [frozen_job(plan, encoder, PROBE, words, shown_best_layer) for encoder in plan.encoders]
    for name, pairs in plan.suite.minimal_pairs.items():
        words = ["trainer.suite.minimal_pairs", "--data", plan.suite.folder]
        words += ["--files", pairs.files, "--variant", pairs.variant]
        jobs += [frozen_job(plan, encoder, name, words, shown_accuracy) for encoder in plan.encoders]
    for name, task in plan.suite.tasks.items():
        jobs += [job_of_task(plan, name, task, encoder) for encoder in plan.encoders]
    return jobs


def job_name(label: str, part: str) -> str:
    """Return the name of the job that scores the encoder of a label on a part: a task, minimal pairs or the probe."""
    return f"{label}/{part}"


def job_of_task(plan: Plan, name: str, task: SuiteTask, encoder: Encoder) -> Job:
    output = plan.place(encoder, name)
    source = task.entry.starts_from
    folder, needs, first_weights = encoder.folder, encoder.needs, weights_flag(encoder)
    if source is not None:
        folder = str(plan.place(encoder, source) / "hf")
        needs, first_weights = (job_name(encoder.label, source),), ["--new_head"]

    words = ["trainer.finetune.cli", folder, "--task", str(plan.task_file(name)), "--data", task.folder]
    words += ["--output", str(output), "--seeds", str(plan.seeds), *first_weights]
    return Job(
        name=job_name(encoder.label, name),
        words=tuple(words),
        needs=needs,
        is_done=partial(is_finetuned, output, folder, plan.seeds),
        prepare=partial(remove_if_of_another, output, folder if source is not None else None, task.task),
        score=lambda: shown_score(plan, plan.results(encoder, name), task),
    )


def frozen_job(
    plan: Plan, encoder: Encoder, name: str, words: list[str], shown: Callable[[Mapping[str, Any]], str]
) -> Job:
    """Return a job that trains nothing.

    words: its module and flags, but those of the encoder and of the output. shown: the score of its results.
    """
    return Job(
        name=job_name(encoder.label, name),
        words=(*words, "--output", str(plan.place(encoder, name)), *weights_flag(encoder), encoder.folder),
        needs=encoder.needs,
        is_done=lambda: plan.results(encoder, name).get("encoder") == fingerprint_of(encoder.folder),
        score=lambda: shown(plan.results(encoder, name)),
    )


def weights_flag(encoder: Encoder) -> list[str]:
    return ["--random_weights"] if encoder.random_weights else []


# ---- Scores for the log ----


def seeds_of(results: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """Return the seeds below `count` of a task's results, sorted. An earlier command may have asked for more."""
    asked = [seed for seed in results["seeds"] if seed["seed"] < count]
    return sorted(asked, key=lambda seed: seed["seed"])


def unlabeled_sets(seeds: Sequence[Mapping[str, Any]], task: SuiteTask) -> list[str]:
    """Return the reported sets that have no score, because they have no labels."""
    return [name for name in task.entry.sets if name not in seeds[0]["scores"]]


def values_of(seeds: Sequence[Mapping[str, Any]], task: SuiteTask) -> list[float]:
    """Return for each seed the mean of the reported metric over the reported sets, all of which have scores."""
    return [fmean(seed["scores"][name][task.metric] for name in task.entry.sets) for seed in seeds]


def shown_score(plan: Plan, results: Mapping[str, Any], task: SuiteTask) -> str:
    """Return the mean over the seeds for a log line, such as "accuracy 0.8123", or "" if a set has no labels."""
    seeds = seeds_of(results, plan.seeds)
    return "" if unlabeled_sets(seeds, task) else f"{task.metric} {fmean(values_of(seeds, task)):.4f}"


def shown_accuracy(results: Mapping[str, Any]) -> str:
    return f"accuracy {results['accuracy']:.4f}"


def shown_best_layer(results: Mapping[str, Any]) -> str:
    """Return the best score of a probe for a log line, such as "accuracy 0.8123 (layer 3 of 0 to 6)"."""
    layers = results["layers"]
    best = max(range(len(layers)), key=layers.__getitem__)
    return f"{results['metric']} {layers[best]:.4f} (layer {best} of 0 to {len(layers) - 1})"


# ---- What is done ----


def is_finetuned(output: Path, folder: str, seeds: int) -> bool:
    """Return whether a task's folder holds results of the encoder in `folder` for at least this number of seeds."""
    results = read_json(output / RESULTS_FILE) or {}
    finished = {seed["seed"] for seed in results.get("seeds", [])}
    return set(range(seeds)) <= finished and is_of_encoder(output, folder)


def is_of_encoder(output: Path, folder: str) -> bool:
    """Return whether the results in a task's folder belong to the encoder in `folder`.

    A user may have removed the fine-tuned folder that a task started from, to save space: results then stay valid.
    """
    recorded = read_inputs_of(output) or {}
    if not Path(folder).is_dir():
        return bool(recorded)
    return recorded.get("encoder") == fingerprint_of(folder)


def remove_if_of_another(output: Path, folder: str | None, task: Task) -> None:
    """Remove the results of a task if the encoder that it started from has changed, or what a failed job has left.

    folder: of an earlier task's encoder, which changes when more seeds are run and one of these is the best; None if
    the encoder is the suite's. A job may have failed because of a value of the task, which is then another one; what a
    seed has finished stays.
    """
    recorded = read_inputs_of(output)
    if recorded is None:
        return
    if folder is not None and not is_of_encoder(output, folder):
        logger.info("%s: the encoder that this task starts from has changed, so it starts over.", output)
        shutil.rmtree(output)
    elif not any(output.glob(f"seed-*/{RESULT_FILE}")) and not (output / RESULTS_FILE).exists():
        before, now = flatten(recorded.get("task", {})), flatten(tomllib.loads(dump_task(task)))
        if any(before.get(key, value) != value for key, value in now.items()):
            logger.info("%s: the task has changed since this job failed, so it starts over.", output)
            shutil.rmtree(output)
