"""Records the inputs of a suite in OUTPUT/suite.json, so that results of different inputs are never mixed.

A later start may add tasks, encoders and seeds. Those that are already in the file must be unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError
from trainer.checkpoint.run_lock import LOCK_FILES
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.task import Task
from trainer.suite.encoders import Encoder
from trainer.suite.jobs import read_json
from trainer.suite.needed_files import files_of, joined, matching
from trainer.suite.plan import Plan

INPUTS_FILE = "suite.json"

BLOCK = 1 << 20
"""Bytes to read from a file at a time."""

MAX_NAMED = 3
"""The maximum number of changed inputs that a message names."""


def inputs_of(plan: Plan) -> dict[str, Any]:
    """Return everything that the results depend on: values of tasks, hashes of files and of encoders."""
    inputs: dict[str, Any] = {}
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
        digest = hashlib.sha256()
        with storage.open_input(joined(data, name)) as file:
            while block := file.read(BLOCK):
                digest.update(block)
        digests[name] = digest.hexdigest()
    return digests


def weights_of(encoder: Encoder) -> str:
    """Return a hash that identifies an encoder."""
    if encoder.manifest is not None:
        # The checkpoint may not be exported yet, so hash its manifest, which holds the hashes of all its files. The
        # step alone would be the same in another run, or after this run was trained again.
        return storage.sha256(storage.read(encoder.manifest))[:16]
    return f"{fingerprint_of(encoder.folder)}{' random' if encoder.random_weights else ''}"


def check_owner(output: Path) -> None:
    """Raise UsageError if a folder holds files but no suite. The folder does not need to exist."""
    if read_json(output / INPUTS_FILE):
        return

    # A suite that ended before it wrote suite.json leaves the files of its lock behind.
    names = sorted(name for name in storage.names(str(output)) if not name.startswith("."))
    foreign = [name for name in names if name not in LOCK_FILES]
    if foreign:
        raise UsageError(
            f"--output {output} holds files that do not belong to a suite, such as {foreign[0]}: it has no valid "
            f"{INPUTS_FILE}. Choose another folder."
        )


def claim(output: Path, inputs: dict[str, Any]) -> None:
    """Write the inputs of an output folder, with those of earlier starts.

    Raises UsageError if the folder holds results of other inputs, or files of something else.
    """
    check_owner(output)
    earlier = read_json(output / INPUTS_FILE)
    changed = [key for name in inputs if name in earlier for key in differing(earlier[name], inputs[name], name)]
    if changed:
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        raise UsageError(
            f"--output {output} holds results of other inputs. These differ: {', '.join(changed[:MAX_NAMED])}{more}. "
            "Choose another folder, or remove this one."
        )
    storage.publish(str(output / INPUTS_FILE), (json.dumps(earlier | inputs, indent=1) + "\n").encode())


def differing(earlier: Any, now: Any, key: str) -> Iterator[str]:
    """Yield the keys of nested tables whose values differ, such as "task rte: training.epochs"."""
    if not isinstance(earlier, dict) or not isinstance(now, dict):
        if earlier != now:
            yield key
        return

    for inner in sorted(earlier.keys() | now.keys()):
        yield from differing(earlier.get(inner), now.get(inner), f"{key}.{inner}" if ": " in key else f"{key}: {inner}")
