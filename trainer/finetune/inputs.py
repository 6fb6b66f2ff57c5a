"""What a fine-tuning is asked for, and what every rank reads before it trains: the tokenizer and the examples.

Each rank reads the files itself, so that no rank has to send gigabytes of text to the others. A mistake in them is
reported once, and files that differ between machines are found before training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import DataError, UsageError
from trainer.distributed.collectives import run_on_all_ranks
from trainer.finetune.examples import Example, TaskData
from trainer.finetune.files.read import read_task_data
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.metrics.table import unsuitable
from trainer.finetune.model import check_folder, open_tokenizer
from trainer.finetune.task import Task
from trainer.finetune.task_file import dump_task

WHAT = {"task": "another task", "encoder": "another encoder", "weights": "other first weights", "data": "other data"}
"""The parts of an identity, as messages call a part that differs."""

Identity = dict[str, str]
"""Hashes of everything that results depend on, except the seed, by the names in WHAT."""


@dataclass(frozen=True)
class Order:
    """What the command line asks for. data: the folder that the task's paths are relative to."""

    folder: str
    task: Task
    data: str
    output: str
    seeds: Sequence[int]
    random_weights: bool = False


@dataclass(frozen=True)
class Inputs:
    """What has been read for an order."""

    tokenizer: Any
    data: TaskData
    identity: Identity


def open_inputs(order: Order) -> Inputs:
    """Read the encoder's tokenizer and the task's examples on every rank. A collective call.

    Raises the first rank's DataError or UsageError on all of them, and DataError if ranks have read different files.
    """
    own: list[Inputs] = []

    def read() -> Identity:
        own.append(read_inputs(order))
        return own[0].identity

    check_same(run_on_all_ranks(read))
    return own[0]


def read_inputs(order: Order) -> Inputs:
    """Read and check everything that an order names. Raises DataError and UsageError."""
    check_folder(order.folder, order.task.kind)
    tokenizer = open_tokenizer(order.folder, order.task.kind)
    data = read_task_data(order.task, order.data)
    check_metrics(order.task, data.labels)
    return Inputs(tokenizer, data, identity_of(order, data))


def check_metrics(task: Task, labels: Sequence[str]) -> None:
    """Raise UsageError if a metric does not fit the labels that were found in the training set."""
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, len(labels) if labels else None)
        if reason is not None:
            raise UsageError(f'metrics has "{metric}", which {reason}. The labels are {", ".join(labels)}.')


def check_same(identities: Sequence[Identity]) -> None:
    """Raise DataError if a rank has read something else than rank 0. identities: in the order of ranks."""
    for rank, identity in enumerate(identities):
        differs = [WHAT[name] for name in WHAT if identity[name] != identities[0][name]]
        if differs:
            error = DataError(
                f"Rank {rank} has read {' and '.join(differs)} than rank 0, so their machines hold different files "
                "under the same paths. Copy the same files to every machine, or use a shared folder."
            )
            error.everywhere = True
            raise error


# ---- Identities ----


def identity_of(order: Order, data: TaskData) -> Identity:
    """Return the identity of a fine-tuning."""
    return {
        "task": short_hash([dump_task(order.task)]),
        "encoder": fingerprint_of(order.folder),
        "weights": "random" if order.random_weights else "of the encoder",
        "data": hash_of_data(data),
    }


def hash_of_data(data: TaskData) -> str:
    """Return a hash of all examples and labels."""
    sets: dict[str, list[Example]] = {"train": data.train, "dev": data.dev, "test": data.test or [], **data.extra}

    def parts() -> Iterable[str]:
        yield repr(data.labels)
        for name in sorted(sets):
            yield f"{name}: {len(sets[name])}"
            yield from map(repr, sets[name])

    return short_hash(parts())


def short_hash(parts: Iterable[str]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of some texts, each of which ends with a zero byte."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", errors="surrogatepass") + b"\0")
    return digest.hexdigest()[:16]
