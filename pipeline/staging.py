"""Unfinished work beside the finished: a job that is killed and run again goes on where it was.

    OUTPUT/_unfinished-<job>/   pieces and their reports, in a folder named for the job's options and inputs
    OUTPUT/                     the finished shards, moved there at the end, and manifest.json, written last

A piece is trusted when its report exists, and a report is written after its piece. A job with other options or inputs
has another key, so it never meets pieces that are not its own. What was finished before stays until all is ready.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pipeline.reports import Report
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import UsageError
from schemas.manifest import Kind, Manifest
from schemas.randomness import key

_PREFIX = "_unfinished-"


@dataclass(frozen=True)
class Staging:
    """The folder of one job's unfinished work. Cheap to send to workers: it holds two strings."""

    output: str
    job: str

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


def open_staging(output: str, kind: Kind, overwrite: bool, identity: dict[str, Any]) -> Staging:
    """The staging of the job that `identity` (its options and inputs) names. Removes what other jobs left unfinished.

    Raises UsageError when the folder holds a finished result that may not be replaced.
    """
    url = storage.join(output, manifests.NAME)
    if storage.exists(url):
        found = manifests.parse_manifest(storage.read(url), url)
        if found.kind != kind:
            raise UsageError(f"{output} holds finished {found.kind}; {kind} needs a folder of its own.")
        if not overwrite:
            remove_unfinished(output, but=None)  # a kill after the manifest leaves its pieces behind
            raise UsageError(
                f"{output} holds a finished result ({found.kind}, fingerprint {found.fingerprint}), which is kept. "
                "Give another --output, or --overwrite to replace it."
            )
    staging = Staging(output, f"{key(kind, json.dumps(identity, sort_keys=True)):016x}")
    remove_unfinished(output, but=_PREFIX + staging.job)
    return staging


def remove_unfinished(output: str, but: str | None) -> None:
    """Remove what killed jobs left in a folder, all but the unfinished work named `but`."""
    for name in storage.names(output):
        if (name.startswith(_PREFIX) and name != but) or name.endswith(storage.PARTIAL):
            storage.remove(storage.join(output, name))


def publish_folder(staging: Staging, manifest: Manifest, beside: dict[str, str] | None = None) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    `beside` are further pieces and the names that they take in the output folder.
    """
    output, further = staging.output, beside or {}
    storage.remove(storage.join(output, manifests.NAME))
    for name, target in {shard.path: shard.path for shard in manifest.shards}.items() | further.items():
        if storage.exists(staging.url(name)):
            storage.move(staging.url(name), storage.join(output, target))
    storage.publish(storage.join(output, manifests.NAME), manifest.to_json())
    _remove_replaced(output, manifest, {shard.path for shard in manifest.shards} | set(further.values()))
    storage.remove(staging.url(""))


def _remove_replaced(output: str, manifest: Manifest, named: set[str]) -> None:
    """What a replaced result had and this one has not: shards of another number, rejected records."""
    replaced = re.compile(rf"{manifest.kind}-\d+-of-\d+\.arrow")
    for name in storage.names(output):
        if replaced.fullmatch(name) and name not in named:
            storage.remove(storage.join(output, name))
    for name in storage.names(storage.join(output, "rejected")):
        if f"rejected/{name}" not in named:
            storage.remove(storage.join(output, "rejected", name))
