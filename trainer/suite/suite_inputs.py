"""The inputs of a suite, which OUTPUT/inputs.json records, so that results of different inputs are never mixed.

A later start may add tasks, encoders and seeds. Those that are already in the file must be unchanged.
"""

from __future__ import annotations

import hashlib
from typing import Any

from schemas import storage
from trainer.finetune.files.sets import path_in
from trainer.finetune.inputs import fingerprint_of
from trainer.finetune.task import Task
from trainer.suite.encoders import Encoder
from trainer.suite.needed_files import files_of, matching
from trainer.suite.plan import Plan


def inputs_of(plan: Plan) -> dict[str, Any]:
    """Return everything that the results depend on: values of tasks, hashes of files and of encoders."""
    # A fine-tuning records its encoder under this name, so that neither takes the other's folder.
    inputs: dict[str, Any] = {"encoder": "those of a suite"}
    if plan.suite is not None:
        for name, of_suite in plan.suite.tasks.items():
            values = inputs_of_task(of_suite.task, plan.data or of_suite.folder)
            inputs[f"task {name}"] = values | {"starts_from": of_suite.entry.starts_from}
        for name, pairs in plan.suite.minimal_pairs.items():
            folder = plan.data or plan.suite.folder
            files = digests_of(matching(folder, pairs.files), folder)
            inputs[f"minimal pairs {name}"] = {"variant": pairs.variant, "files": files}

    if plan.probe is not None:
        inputs["probe"] = inputs_of_task(plan.probe.task, plan.probe.data)
    for encoder in plan.encoders:
        inputs[f"encoder {encoder.label}"] = {"weights": weights_of(encoder)}
    return inputs


def inputs_of_task(task: Task, data: str) -> dict[str, Any]:
    """Return the values of a task, and the hash of each of its files. data: the folder of the files."""
    return task.model_dump(mode="json") | {"files": digests_of(files_of(task.data), data)}


def digests_of(files: list[str], data: str) -> dict[str, str]:
    """Return the SHA-256 of the content of each file. Size and date would miss an edited label."""
    digests = {}
    for name in files:
        with storage.open_input(path_in(data, name)) as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return digests


def weights_of(encoder: Encoder) -> str:
    """Return a hash that identifies an encoder."""
    if encoder.manifest is not None:
        # The checkpoint may not be exported yet, so hash its manifest, which holds the hashes of all its files. The
        # step alone would be the same in another run, or after this run was trained again.
        return storage.sha256(storage.read(encoder.manifest))[:16]
    return f"{fingerprint_of(encoder.folder)}{' random' if encoder.random_weights else ''}"
