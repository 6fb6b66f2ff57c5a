"""Keeps unfinished work in the output folder: a job that is killed and run again continues where it stopped.

    OUTPUT/_unfinished-<job>/   pieces and their reports, in a folder named for the job's options and inputs
    OUTPUT/_unfinished-owner.json  on object stores: whose shards are in the folder already; see shard_destination.py
    OUTPUT/_lease-<token>.json  who works in the folder; see leases.py
    OUTPUT/                     the finished shards, and manifest.json, written last

A piece is trusted once its report exists, and a report is written after its piece. A job with other options or inputs,
or of a version that makes different pieces, has another key, so it never sees pieces that are not its own. A finished
result stays until its replacement is complete, and unfinished work of other jobs stays until a new result is published
(see publication.py).

Shards of the result are kept with `keep_shard`, which may put them into the output folder at once. All other pieces
stay in staging.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from dataclasses import dataclass
from typing import Any

from pipeline.runtime import lease_files, leases, shard_destination
from pipeline.runtime.counters import Report
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, DataError
from schemas.manifest import FolderKind
from schemas.randomness import key
from schemas.storage import remove_folder

LOGGER = logging.getLogger("clozeline.pieces")

PIECES_VERSION = 8
"""The version of the files in staging. Raise it with every change after which old files must not be reused."""

PREFIX = "_unfinished-"
"""Prefix of the names of staging folders."""

DIRECT = "direct"
"""Key in a shard's report for the generation in which it was uploaded to the output folder; empty if it was staged."""


@dataclass(frozen=True)
class Staging:
    """The folder of one job's unfinished work. Cheap to send to workers: it holds three strings.

    output: the job's output folder, in which the staging folder is.
    job: the key of the job's options and inputs.
    token: names the lease that the job holds while it runs; each attempt has its own. Empty: no lease is checked.
    """

    output: str
    job: str
    token: str = ""

    def url(self, name: str) -> str:
        """Return the URL of a piece or a report, or of the folder itself for an empty name."""
        return storage.join(self.output, PREFIX + self.job, name)

    def is_begun(self) -> bool:
        """Whether any attempt has written to the staging folder."""
        return storage.exists(self.url("").rstrip("/"))

    def report(self, name: str) -> Report | None:
        """Return the report of a finished piece, or None if the piece is not finished."""
        kept = self._kept(name)
        return None if kept is None else kept["report"]

    def report_of_shard(self, name: str) -> Report | None:
        """Return what `keep_shard` returned for a finished shard, or None if the shard is not finished.

        A shard in the output folder no longer counts as finished once another job may have written there.
        """
        kept = self._kept(name)
        if kept is None:
            return None

        generation = kept.get(DIRECT, "")
        if generation and shard_destination.current(self.output, self.job, self.token).generation != generation:
            return None
        return kept["report"] | {DIRECT: generation}

    def made_now(self, name: str) -> bool:
        """Whether this attempt made the finished piece, so that no crash of the machine can have damaged it since."""
        kept = self._kept(name)
        return kept is not None and self.token != "" and kept["attempt"] == self.token

    def _kept(self, name: str) -> dict[str, Any] | None:
        """Return a report and the attempt that kept it; None if there is none, or if a machine crash damaged it."""
        try:
            kept = json.loads(storage.read(self.url(name + ".json")))
        except (DataError, ValueError):  # there is none, or it is no JSON
            return None

        is_whole = isinstance(kept, dict) and isinstance(kept.get("report"), dict) and "attempt" in kept
        return kept if is_whole else None

    def piece(self, name: str) -> bytes:
        """Return the bytes of a finished piece, whether or not it was moved into place already."""
        try:
            return storage.read(self.url(name))
        except DataError:
            published = storage.join(self.output, name)
            if not storage.exists(published):
                raise
            return storage.read(published)

    def put(self, name: str, data: bytes) -> None:
        """Write a piece. It is not trusted until its report is kept."""
        storage.publish(self.url(name), data, durable=False)

    def keep_report(self, name: str, report: Report, generation: str = "") -> Report:
        """Write a report as proof that the piece of that name is whole, and return it."""
        content = {"attempt": self.token, "report": report, DIRECT: generation}
        self.put(name + ".json", json.dumps(content).encode())
        LOGGER.info("finished %s", name)  # what an engine's console shows of a worker's progress
        return report

    def drop_report(self, name: str) -> None:
        """Remove a piece and its report from staging, so that the next attempt makes the piece again."""
        storage.remove(self.url(name + ".json"))
        storage.remove(self.url(name))

    def keep(self, name: str, data: bytes, report: Report) -> Report:
        """Write a piece and then its report, which is returned."""
        self.put(name, data)
        return self.keep_report(name, report)

    def keep_shard(self, name: str, data: bytes, report: Report) -> Report:
        """Write a shard of the result and then its report. Returns the report, with the shard's generation as DIRECT.

        If no result is to be replaced, the shard goes to an object store under its final name, so that it is uploaded
        only once. Raises StorageError if another job has taken over the folder.
        """
        destination = shard_destination.current(self.output, self.job, self.token)
        if not destination.is_direct:
            return self.keep(name, data, report) | {DIRECT: ""}

        shard_destination.upload(destination, self.output, name, data)
        return self.keep_report(name, report, destination.generation) | {DIRECT: destination.generation}


def plan_staging(output: str, kind: FolderKind, identity: dict[str, Any]) -> Staging:
    """Return the staging of the job that `identity` (its options and inputs) describes. Changes nothing.

    Raises StorageError if the output folder cannot be written.
    """
    storage.check_writable_folder(output)
    recorded = json.dumps(identity, sort_keys=True)
    job = f"{key(kind, PIECES_VERSION, recorded):016x}"
    return Staging(output, job, token=uuid.uuid4().hex)


def remove_if_published(staging: Staging) -> None:
    """Remove unfinished files if this job's own manifest is in place. Pieces that are not published yet stay."""
    marker = staging.url(manifests.NAME)
    with contextlib.suppress(ClozelineError):  # staging that cannot be removed only takes up space
        if not storage.exists(marker):
            return

        with leases.held(staging.output, staging.token):
            published = storage.read(storage.join(staging.output, manifests.NAME))
            if storage.read(marker) == published:
                remove_unfinished(staging)


def remove_unfinished(staging: Staging) -> None:
    """Remove what unfinished jobs left behind, once this job's result is in place.

    The lease guarantees that no other job is at work. This job's own staging is removed last, and its copy of the
    manifest last of all: while that exists, the next attempt sees that there is more to remove.
    """
    own = PREFIX + staging.job
    for name in storage.names(staging.output):
        is_partial = storage.is_partial(name) and not lease_files.is_lease(name)
        if is_partial or (name.startswith(PREFIX) and name != own):
            remove_folder(storage.join(staging.output, name), manifests.NAME)
    remove_folder(staging.url("").rstrip("/"), manifests.NAME)
