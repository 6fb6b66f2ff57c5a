"""What the results in a folder are made from: reads it on all ranks, and records it.

So results of different inputs are never mixed. The record is a JSON object: names of inputs, and their values or
hashes. The error for another folder names those that differ. Does not import torch in a single process, because the
process of a suite stays small.

Every rank reads the files because every rank needs the examples. If one of them fails, all fail together: otherwise
eight ranks would print the same error eight times, and a file that is missing on one machine would leave the other
ranks waiting for its rank.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError
from schemas.terminal import counted
from trainer.checkpoint.run_lock import LOCK_FILES
from trainer.config.record import flatten
from trainer.distributed.stop import StopRequest

INPUTS_FILE = "inputs.json"

HASHED = {".json", ".safetensors", ".bin", ".txt", ".model"}
"""The endings of an encoder's files that its hash covers."""

TIMEOUT_SECONDS = 600.0
"""How long a rank may go without progress before the watchdog ends its process."""

T = TypeVar("T")

MAX_NAMED = 3
"""The maximum number of differing inputs that a message names."""

MAX_SHOWN = 60
"""The maximum length of a value in a message."""


def record_inputs(folder: Path, inputs: dict[str, Any]) -> None:
    """Write the inputs of a folder's results. What is recorded under other names at the top level stays."""
    content = (read_inputs_of(folder) or {}) | inputs
    storage.publish(str(folder / INPUTS_FILE), (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def check_inputs(folder: Path, inputs: dict[str, Any], remedy: str) -> None:
    """Raise UsageError if a folder holds results of other inputs, or files of something else.

    inputs: by name; values that are tables are compared key by key. A name at the top level that only one side has is
    no difference, so that inputs can be added. remedy: what to do, as a sentence.
    """
    names = sorted(name for name in storage.names(str(folder)) if not name.startswith(".") and name not in LOCK_FILES)
    if not names:
        return
    if INPUTS_FILE not in names:
        raise UsageError(
            f"--output {folder} holds files that belong to something else, such as {names[0]}: it has no "
            f"{INPUTS_FILE}. Choose another folder."
        )

    recorded = read_inputs_of(folder)
    if recorded is None:
        raise UsageError(f"{folder / INPUTS_FILE} is damaged, so it is not known what its results belong to. {remedy}")

    inputs = json.loads(json.dumps(inputs))  # as they are read back
    shared = [name for name in inputs if name in recorded]
    there = flatten({name: recorded[name] for name in shared})
    here = flatten({name: inputs[name] for name in shared})
    changes = [
        f"{key} = {_shown(there, key)} instead of {_shown(here, key)}"
        for key in (*here, *(key for key in there if key not in here))
        if there.get(key) != here.get(key)
    ]
    if changes:
        more = len(changes) - MAX_NAMED
        raise UsageError(
            f"--output {folder} holds results with {', '.join(changes[:MAX_NAMED])}"
            f"{' and ' + counted(more, 'more difference') if more > 0 else ''}. {remedy}"
        )


def read_inputs_of(folder: Path) -> dict[str, Any] | None:
    """Return the recorded inputs of a folder, None if it has no readable record."""
    return read_json(folder / INPUTS_FILE)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if the file is missing or damaged. Raises StorageError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}. The same command tries again.") from error
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: Any) -> None:
    """Publish a JSON file, which is there whole or not at all. Raises StorageError."""
    storage.publish(str(path), (json.dumps(content, indent=1) + "\n").encode())


def _shown(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "(unset)"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


# ---- The encoder ----


def fingerprint_of(folder: str) -> str:
    """Return a hash of a folder's configuration, tokenizer and weights, as 16 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).iterdir()):
        if path.suffix not in HASHED or not path.is_file():
            continue
        status = path.stat()
        digest.update(path.name.encode() + b"\0")
        digest.update(_hash_of_file(path, (status.st_size, status.st_mtime_ns, status.st_ino)))
    return digest.hexdigest()[:16]


@cache
def _hash_of_file(path: Path, state: tuple[int, int, int]) -> bytes:
    """Return the SHA-256 of a file. state: its size, time and inode, because a suite asks for each of its tasks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


# ---- Several ranks ----


def read_on_all_ranks(read: Callable[[], T], stop: StopRequest) -> T:
    """Return what `read` returned on this rank. A collective call, which joins the process group if there are several.

    stop: ends the wait for other ranks.

    If `read` fails on any rank, every rank raises the error of the first rank that failed.
    """
    # A single process reports errors in the files before it loads torch and DeepSpeed, which takes seconds.
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return read()

    from trainer.distributed.collectives import succeed_on_all_ranks
    from trainer.distributed.process_group import start_distributed
    from trainer.run_context import watch_ranks

    start_distributed(TIMEOUT_SECONDS, stop)
    with watch_ranks(TIMEOUT_SECONDS) as watchdog:
        watchdog.at("reading the task's files")
        return succeed_on_all_ranks(read)


def agreed(inputs: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Check that `inputs` returns the same on all ranks, and return it. A collective call.

    Raises DataError on every rank if the inputs or the code of two ranks differ. The message groups the ranks that
    agree.
    """
    from trainer.distributed.collectives import differences_of, facts_of_code, listed, run_on_all_ranks

    found = run_on_all_ranks(lambda: (inputs(), facts_of_code()))
    facts = [{key: repr(value) for key, value in flatten(of_rank).items()} | code for of_rank, code in found]
    for key, ranks in differences_of(facts).items():
        groups = "; ".join(listed(of_value) for of_value in ranks.values())
        error = DataError(
            f"{key} differs between ranks. Ranks that agree: {groups}. Copy the same files to every machine."
        )
        error.everywhere = True
        raise error
    return found[0][0]
