"""Records hashes of a suite's inputs in OUTPUT/suite.json, so that results of different inputs are never mixed.

A later start may add tasks, encoders and seeds. Tasks and encoders that are already in the file must be unchanged.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from schemas import storage
from schemas.errors import UsageError
from trainer.checkpoint.run_lock import LOCK_FILES
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.task_file import dump_task
from trainer.suite.encoders import Encoder
from trainer.suite.needed_files import files_of, joined, matching
from trainer.suite.plan import Plan, read_json

IDENTITY_FILE = "suite.json"

BLOCK = 1 << 20
"""Bytes to read from a file at a time."""


def identity_of(plan: Plan) -> dict[str, Any]:
    """Return hashes of everything that the results depend on, by name: tasks, minimal pairs, probe and encoders."""
    parts: dict[str, Any] = {}
    if plan.suite is not None:
        for task in plan.suite.tasks:
            text = dump_task(task.task) + repr(task.entry.starts_from)
            parts[f"task {task.entry.name}"] = _hash(
                text, digests_of(files_of(task.task.data), task.data_folder(plan.data))
            )
        for pairs in plan.suite.minimal_pairs:
            folder = plan.suite.pairs_folder(plan.data)
            digests = digests_of(matching(folder, pairs.files), folder)
            parts[f"minimal pairs {pairs.name}"] = _hash(pairs.variant, digests)

    if plan.probe is not None:
        files = files_of(plan.probe.task.data)
        parts["probe"] = _hash(dump_task(plan.probe.task), digests_of(files, plan.probe.data))

    for encoder in plan.encoders:
        parts[f"encoder {encoder.label}"] = _hash_of_encoder(encoder)
    return parts


def digests_of(files: list[str], data: str) -> list[tuple[str, str]]:
    """Return (name, SHA-256 of the content) for each file. Size and date would miss an edited label."""
    digests = []
    for name in files:
        digest = hashlib.sha256()
        with storage.open_input(joined(data, name)) as file:
            while block := file.read(BLOCK):
                digest.update(block)
        digests.append((name, digest.hexdigest()))
    return digests


def _hash_of_encoder(encoder: Encoder) -> str:
    if encoder.manifest is not None:
        # The checkpoint may not be exported yet, so hash its manifest, which holds the hashes of all its files. The
        # step alone would be the same in another run, or after this run was trained again.
        return storage.sha256(storage.read(encoder.manifest))[:16]
    return f"{fingerprint_of(encoder.folder)}{' random' if encoder.random_weights else ''}"


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def check_owner(output: Path) -> None:
    """Raise UsageError if a folder holds files but no suite. The folder does not need to exist."""
    if read_json(output / IDENTITY_FILE):
        return

    # A suite that ended before it wrote suite.json leaves the files of its lock behind.
    names = sorted(name for name in storage.names(str(output)) if not name.startswith("."))
    foreign = [name for name in names if name not in LOCK_FILES]
    if foreign:
        raise UsageError(
            f"--output {output} holds files that do not belong to a suite, such as {foreign[0]}: it has no valid "
            f"{IDENTITY_FILE}. Choose another folder."
        )


def claim(output: Path, identity: dict[str, Any]) -> None:
    """Write the identity of an output folder.

    Raises UsageError if the folder holds results of other inputs, or files of something else.
    """
    check_owner(output)
    before = read_json(output / IDENTITY_FILE)

    for name, value in identity.items():
        if before.get(name, value) != value:
            raise UsageError(
                f"--output {output} holds results of another {name}: its values, its files or its weights have "
                "changed. Choose another folder, or remove this one."
            )
    storage.publish(str(output / IDENTITY_FILE), (json.dumps(before | identity, indent=1) + "\n").encode())
