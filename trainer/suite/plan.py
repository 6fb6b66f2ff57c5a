"""Builds the jobs of a suite. Their files:

    OUTPUT/folders/LABEL/TASK      the output of `clozeline finetune`, or the scores of minimal pairs
    OUTPUT/folders/LABEL/probe     the scores of the linear probes
    OUTPUT/encoders/LABEL/TASK     the encoder of a task that other tasks start from
    OUTPUT/checkpoints/step-N      a run's checkpoint in the Hugging Face format
    OUTPUT/logs                    the output of each job

A job writes its results last. It is done if they exist, belong to this encoder, and include all requested seeds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.results import RESULTS_FILE
from trainer.logs import logger
from trainer.suite.encoders import Encoder
from trainer.suite.probe.tasks import OpenProbe
from trainer.suite.scheduler import Job
from trainer.suite.schema import MinimalPairs
from trainer.suite.seed_scores import shown_score
from trainer.suite.suite_file import OpenSuite, OpenTask

IDENTITY_FILE = "inputs.json"
SOURCE_FILE = "source.json"
"""The file in OUTPUT/encoders/LABEL/TASK that holds the hash of the fine-tuned folder the encoder was taken from."""

PROBE = "probe"


@dataclass(frozen=True)
class Plan:
    """The encoders and the tasks to score them on.

    data: the value of --data, for the suite's files. probe: the task to probe, which names the folder of its own files.
    is_whole: whether no part of the suite was left out for all encoders. unscored: by job name, why an encoder is not
    scored on a part.
    """

    suite: OpenSuite | None
    encoders: Sequence[Encoder]
    data: str | None
    output: Path
    seeds: int
    probe: OpenProbe | None = None
    is_whole: bool = True
    unscored: Mapping[str, str] = field(default_factory=dict)

    def place(self, encoder: Encoder, name: str) -> Path:
        """Return the folder for the results of a task, of minimal pairs or of the probe."""
        return self.output / "folders" / encoder.label / name

    def headless(self, encoder: Encoder, task: str) -> Path:
        """Return the folder of an encoder that was fine-tuned on a task, without its head, for other tasks."""
        return self.output / "encoders" / encoder.label / task


def jobs_of(plan: Plan) -> list[Job]:
    """Return the jobs of all encoders, in the order of tasks, so that the table fills row by row."""
    jobs: list[Job] = []
    if plan.suite is not None:
        for task in plan.suite.tasks:
            for encoder in plan.encoders:
                jobs += jobs_of_task(plan, task, encoder)
        for pairs in plan.suite.minimal_pairs:
            jobs += [job_of_pairs(plan, pairs, encoder) for encoder in plan.encoders]
    if plan.probe is not None:
        jobs += [job_of_probe(plan, encoder) for encoder in plan.encoders]
    return [job for job in jobs if job.name not in plan.unscored]


def job_name(label: str, part: str) -> str:
    """Return the name of the job that scores the encoder of a label on a part: a task, minimal pairs or the probe."""
    return f"{label}/{part}"


def jobs_of_task(plan: Plan, task: OpenTask, encoder: Encoder) -> list[Job]:
    """Return the job that fine-tunes on a task and, if other tasks start from it, the job that removes the head."""
    name = task.entry.name
    output = plan.place(encoder, name)

    source = task.entry.starts_from
    if source is None:
        folder = encoder.folder
        needs = encoder.needs
    else:
        folder = str(plan.headless(encoder, source))
        needs = (job_name(encoder.label, f"{source}-encoder"),)

    words = ["finetune", folder, "--task", str(task.path), "--data", task.data_folder(plan.data)]
    words += ["--output", str(output), "--seeds", str(plan.seeds)]
    words += [word for change in task.changes for word in ("--set", change)]
    if encoder.random_weights and source is None:
        words.append("--random_weights")

    fine_tuning = Job(
        name=job_name(encoder.label, name),
        words=tuple(words),
        needs=needs,
        is_done=partial(is_finetuned, output, folder, plan.seeds),
        prepare=partial(remove_if_of_another, output, folder) if source is not None else None,
        score=lambda: shown_score(read_json(output / RESULTS_FILE), plan.seeds, task.entry.sets, task.metric),
    )
    assert plan.suite is not None
    if all(other.entry.starts_from != name for other in plan.suite.tasks):
        return [fine_tuning]

    model = output / "hf"
    headless = plan.headless(encoder, name)
    removing_head = Job(
        name=job_name(encoder.label, f"{name}-encoder"),
        words=("new_head", str(model), "--output", str(headless)),
        needs=(fine_tuning.name,),
        is_done=partial(is_taken_from, headless, model),
    )
    return [fine_tuning, removing_head]


def job_of_pairs(plan: Plan, pairs: MinimalPairs, encoder: Encoder) -> Job:
    """Return the job that scores minimal pairs."""
    assert plan.suite is not None
    output = plan.place(encoder, pairs.name)
    words = ["minimal_pairs", encoder.folder, "--data", plan.suite.pairs_folder(plan.data), "--files", pairs.files]
    words += ["--output", str(output), "--variant", pairs.variant]
    if encoder.random_weights:
        words.append("--random_weights")
    return Job(
        name=job_name(encoder.label, pairs.name),
        words=tuple(words),
        needs=encoder.needs,
        is_done=_is_of(output, encoder),
        score=lambda: f"accuracy {read_json(output / RESULTS_FILE)['accuracy']:.4f}",
    )


def job_of_probe(plan: Plan, encoder: Encoder) -> Job:
    """Return the job that probes all layers of an encoder."""
    assert plan.probe is not None
    output = plan.place(encoder, PROBE)
    words = ["probe", encoder.folder, "--task", plan.probe.path, "--data", plan.probe.data, "--output", str(output)]
    words += [word for change in plan.probe.changes for word in ("--set", change)]
    if encoder.random_weights:
        words.append("--random_weights")
    return Job(
        name=job_name(encoder.label, PROBE),
        words=tuple(words),
        needs=encoder.needs,
        is_done=_is_of(output, encoder),
        score=lambda: shown_best_layer(read_json(output / RESULTS_FILE)),
    )


def shown_best_layer(results: Mapping[str, Any]) -> str:
    """Return the best score of a probe for a log line, such as "accuracy 0.8123 (layer 3 of 0 to 6)"."""
    layers = results["layers"]
    best = max(range(len(layers)), key=layers.__getitem__)
    return f"{results['metric']} {layers[best]:.4f} (layer {best} of 0 to {len(layers) - 1})"


def _is_of(output: Path, encoder: Encoder) -> Callable[[], bool]:
    return lambda: read_json(output / RESULTS_FILE).get("encoder") == fingerprint_of(encoder.folder)


def is_finetuned(output: Path, folder: str, seeds: int) -> bool:
    """Return whether a task's folder holds results of the encoder in `folder` for at least this number of seeds."""
    results = read_json(output / RESULTS_FILE)
    finished = {seed["seed"] for seed in results.get("seeds", [])}
    return set(range(seeds)) <= finished and is_of_encoder(output, folder)


def is_of_encoder(output: Path, folder: str) -> bool:
    """Return whether the results in a task's folder belong to the encoder in `folder`."""
    return read_json(output / IDENTITY_FILE).get("encoder") == fingerprint_of(folder)


def is_taken_from(headless: Path, model: Path) -> bool:
    """Return whether an encoder without a head was taken from the current version of a fine-tuned folder.

    A user may have removed the fine-tuned folder since then, to save space. The encoder is then still its own.
    """
    source = read_json(headless / SOURCE_FILE).get("source")
    if not model.is_dir():
        return source is not None
    return source == fingerprint_of(str(model))


def remove_if_of_another(output: Path, folder: str) -> None:
    """Remove the results of a task if the encoder that it started from has changed.

    That encoder changes when more seeds of the earlier task are run and one of the new seeds is the best.
    """
    if (output / IDENTITY_FILE).is_file() and not is_of_encoder(output, folder):
        logger.info("%s: the encoder that this task starts from has changed, so it starts over.", output)
        shutil.rmtree(output)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
