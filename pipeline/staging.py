"""Unfinished work beside the finished: a job that is killed and run again continues where it was.

    OUTPUT/_unfinished-<job>/   pieces and their reports, in a folder named for the job's options and inputs
    OUTPUT/_lease-<token>.json  who works in the folder; see leases.py
    OUTPUT/                     the finished shards, moved there at the end, and manifest.json, written last

A piece is trusted when its report exists, and a report is written after its piece. A job with other options or inputs,
or of a version that makes other pieces, has another key, so it never meets pieces that are not its own. What was
finished before stays until all is ready, and what other jobs left unfinished stays until a new result is finished.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from pipeline import leases
from pipeline.reports import Report
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.manifest import Kind, Manifest
from schemas.randomness import key

PIECES_VERSION = 2
"""Of the pieces, reports and runs in staging. Raise it with every change after which old pieces must not be reused."""

_PREFIX = "_unfinished-"
_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*",
    "vocab": r"vocab\.txt|vocab\.json|merges\.txt",
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*",
}
"""By kind, the paths that only the folder's own job writes and that another result of that kind may lack."""


@dataclass(frozen=True)
class Staging:
    """The folder of one job's unfinished work. Cheap to send to workers: it holds three strings.

    token: of the lease that the job holds while it runs; without one nothing is checked.
    """

    output: str
    job: str
    token: str = ""

    def url(self, name: str) -> str:
        return storage.join(self.output, _PREFIX + self.job, name)

    def report(self, name: str) -> Report | None:
        """What was kept with a piece, or None when the piece is not finished."""
        url = self.url(name + ".json")
        return json.loads(storage.read(url)) if storage.exists(url) else None

    def piece(self, name: str) -> bytes:
        """A finished piece, whether or not it was moved into place already."""
        staged = self.url(name)
        return storage.read(staged if storage.exists(staged) else storage.join(self.output, name))

    def put(self, name: str, data: bytes) -> None:
        """Write a piece; it is not trusted before its report is kept."""
        storage.publish(self.url(name), data, durable=False)

    def keep_report(self, name: str, report: Report) -> Report:
        """Keep a report as proof that the piece of that name is whole."""
        self.put(name + ".json", json.dumps(report).encode())
        return report

    def keep(self, name: str, data: bytes, report: Report) -> Report:
        """Write a piece and keep its report, which is returned."""
        self.put(name, data)
        return self.keep_report(name, report)


def plan_staging(output: str, kind: Kind, overwrite: bool, identity: dict[str, Any]) -> Staging:
    """The staging of the job that `identity` (its options and inputs) names. Touches nothing.

    Raises UsageError when the folder holds a finished result that must not be replaced, DataError when it holds a
    manifest that cannot be read and `overwrite` is off, and StorageError when it cannot be written.
    """
    storage.check_writable_folder(output)
    url = storage.join(output, manifests.NAME)
    if storage.exists(url):
        check_replaceable(output, kind, overwrite)

    recorded = json.dumps(identity, sort_keys=True)
    job = f"{key(kind, PIECES_VERSION, recorded):016x}"
    return Staging(output, job, token=uuid.uuid4().hex)


def check_replaceable(output: str, kind: Kind, overwrite: bool) -> None:
    """Raises UsageError or DataError unless the manifest of a finished folder may be replaced by one of this kind."""
    url = storage.join(output, manifests.NAME)
    data = storage.read(url)
    try:
        found = manifests.parse_manifest(data, url)
    except DataError as error:
        if overwrite:  # whatever it was, a new result takes its place
            return
        raise DataError(f"{error} Give another --output, or --overwrite to replace what is in {output}.") from error

    if found.kind != kind:
        raise UsageError(f"{output} holds finished {found.kind}; {kind} needs a folder of its own.")
    if not overwrite:
        raise UsageError(
            f"{output} holds a finished result ({found.kind}, fingerprint {found.fingerprint}), which is kept. "
            "Give another --output, or --overwrite to replace it."
        )


def publish_folder(staging: Staging, manifest: Manifest, extra: dict[str, str] | None = None) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    `extra` holds further pieces and their paths in the output folder. Raises StorageError, with nothing changed, when
    the job has lost its lease.
    """
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    targets = {shard.path: shard.path for shard in manifest.shards} | (extra or {})
    storage.remove(storage.join(output, manifests.NAME))
    for name, target in targets.items():
        if storage.exists(staging.url(name)):
            storage.move(staging.url(name), storage.join(output, target))
    storage.publish(storage.join(output, manifests.NAME), manifest.to_json())

    _remove_replaced(output, manifest.kind, set(targets.values()))
    _remove_unfinished(output)


def _remove_replaced(output: str, kind: Kind, kept: set[str]) -> None:
    """Remove what a replaced result had and this one has not: other shards, another model's files, rejected records."""
    paths = storage.names(output)
    for folder in ("rejected", "vocabulary"):
        if folder in paths:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    for path in paths:
        if re.fullmatch(_REPLACED[kind], path) and path not in kept:
            storage.remove(storage.join(output, path))


def _remove_unfinished(output: str) -> None:
    """Remove what jobs left that ended before they were finished; this job's lease says that no other one lives."""
    for name in storage.names(output):
        is_partial = name.endswith(storage.PARTIAL) and not leases.is_lease(name)
        if name.startswith(_PREFIX) or is_partial:
            storage.remove(storage.join(output, name))
