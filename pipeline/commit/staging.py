"""Keeps unfinished work in the output folder: a job that is killed and run again continues where it stopped.

    OUTPUT/_unfinished-<job>/       pieces and their reports, in a folder named for the job's options and inputs
    OUTPUT/_unfinished-owner.json   on object stores: whose shards are in the folder already

A piece is trusted once its report exists, and a report is written after its piece. A job with other options or inputs,
or of a version that makes different pieces, has another key, so it never sees pieces that are not its own.

On a disk, shards of the result are staged like all pieces, because a rename costs nothing. A store has no rename: a
staged shard is copied when it is published. So if the output folder holds no finished result, shards are uploaded under
their final names at once, and only their reports are in staging. A finished result must stay intact until its
replacement is complete, so shards are staged then.

Two jobs, one after the other, may leave shards with the same names in one folder of a store. A job that takes over a
folder from another one begins a new generation, under its lease. A shard in the output folder counts only if its report
names the current generation: no other job wrote there between two attempts with the same generation.

On an engine, a worker may outlive its launcher and its lease. So it checks the owner before and after an upload:
before, so that it writes nothing once another job has taken over; after, in case that happened during the upload. Then
it removes the shard that it may have overwritten, and the other job finds that the shard is missing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.commit.reports import Report
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import DataError, StorageError
from schemas.manifest import FolderKind
from schemas.randomness import key

LOGGER = logging.getLogger("clozeline.pieces")

PIECES_VERSION = 18
"""The version of the files in staging. Raise it with every change after which old files must not be reused."""

PREFIX = "_unfinished-"
"""Prefix of the names of staging folders."""

OWNER = PREFIX + "owner.json"


@dataclass(frozen=True)
class Destination:
    """Where the finished shards of a job go until all are complete. On stores it is the content of OWNER.

    job: the key of the job's options and inputs.
    generation: identifies the period in which no other job wrote there.
    is_direct: shards are uploaded under their final names at once.
    """

    job: str
    generation: str = ""
    is_direct: bool = False


@dataclass(frozen=True)
class Staging:
    """The folder of one job's unfinished work. Cheap to send to workers: it holds three strings.

    output: the job's output folder, in which the staging folder is.
    job: the key of the job's options and inputs.
    token: names the lease that the job holds while it runs; each attempt has its own.
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
        """Return the report of a finished shard of the result, or None if the shard is not finished.

        A shard in the output folder no longer counts as finished once another job may have written there.
        """
        kept = self._kept(name)
        if kept is None or (kept["generation"] and kept["generation"] != self.destination().generation):
            return None
        return kept["report"]

    def made_now(self, name: str) -> bool:
        """Whether this attempt made the finished piece, so that no crash of the machine can have damaged it since."""
        kept = self._kept(name)
        return kept is not None and kept["attempt"] == self.token

    def _kept(self, name: str) -> dict[str, Any] | None:
        """Return a report and who kept it; None if there is none, or if a crash of the machine damaged it."""
        try:
            kept = json.loads(storage.read(self.url(name + ".json")))
        except (DataError, ValueError):  # there is none, or it is no JSON
            return None
        return kept if isinstance(kept, dict) and kept.keys() == {"attempt", "generation", "report"} else None

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
        content = {"attempt": self.token, "generation": generation, "report": report}
        self.put(name + ".json", json.dumps(content).encode())
        LOGGER.info("finished %s", name)  # what an engine's console shows of a worker's progress
        return report

    def drop_piece(self, name: str) -> None:
        """Remove a piece and its report from staging, so that the next attempt makes the piece again."""
        storage.remove(self.url(name + ".json"))
        storage.remove(self.url(name))

    def keep(self, name: str, data: bytes, report: Report) -> Report:
        """Write a piece and then its report, which is returned."""
        self.put(name, data)
        return self.keep_report(name, report)

    def keep_shard(self, name: str, data: bytes, report: Report) -> Report:
        """Write a shard of the result and then its report, which is returned.

        Raises StorageError if another job has taken over the folder.
        """
        destination = self.destination()
        if not destination.is_direct:
            return self.keep(name, data, report)

        self._upload(destination, name, data)
        return self.keep_report(name, report, destination.generation)

    def _upload(self, destination: Destination, name: str, data: bytes) -> None:
        """Write a shard under its final name. Raises StorageError if another job takes over during that."""
        url = storage.join(self.output, name)
        storage.publish(url, data)

        owner = self._owner()
        if owner == destination:
            return

        # Without an owner the result is finished, perhaps by another attempt of this job with the same bytes, so the
        # shard stays.
        if owner is not None:
            storage.remove(url)
        raise StorageError(
            f"{self.output} was taken over by another job while {name} was written. Run the same command again."
        )

    def decide_destination(self) -> None:
        """Decide where this job's shards go, and record it for the workers. The caller holds the folder's lease.

        A job that resumes its own work keeps its decision, unless it uploads directly and a result was finished there
        since.
        """
        if storage.is_local(self.output):
            return

        owner = self._owner()
        has_result = storage.exists(storage.join(self.output, manifests.NAME))
        if owner is not None and owner.job == self.job and not (owner.is_direct and has_result):
            return

        new = Destination(self.job, generation=self.token, is_direct=not has_result)
        storage.publish(storage.join(self.output, OWNER), json.dumps(asdict(new)).encode())

    def destination(self) -> Destination:
        """Return where the shards of the running job go. One request to a store; none to a disk.

        Raises StorageError if another job has taken over the folder.
        """
        if storage.is_local(self.output):
            return Destination(self.job)

        owner = self._owner()
        if owner is None or owner.job != self.job:
            raise StorageError(
                f"{self.output} is no longer held by this job: it was finished or stopped, or another job took over. "
                "Run the same command again once no other job works there; finished pieces are reused."
            )
        return owner

    def _owner(self) -> Destination | None:
        """Return who owns the shards in a store's folder; None if no job does, or if the file is not one of ours."""
        with contextlib.suppress(DataError, ValueError, TypeError):
            return Destination(**json.loads(storage.read(storage.join(self.output, OWNER))))
        return None


def plan_staging(output: str, kind: FolderKind, identity: dict[str, Any]) -> Staging:
    """Return the staging of the job that `identity` (its options and inputs) describes. Changes nothing."""
    recorded = json.dumps(identity, sort_keys=True)
    job = f"{key(kind, PIECES_VERSION, recorded):016x}"
    return Staging(output, job, token=uuid.uuid4().hex)
