"""Keeps unfinished work in the output folder: a job that is killed and run again continues where it stopped.

    OUTPUT/_unfinished-<job>/       pieces and their reports, in a folder named for the job's options and inputs

A piece is trusted once its report exists, and a report is written after its piece. A job with other options or inputs,
or of a version that makes different pieces, has another key, so it never sees pieces that are not its own. Nothing
outside of the folder changes before all pieces are complete (publish.py).
"""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import dataclass
from typing import Any

from pipeline.commit.reports import Report
from schemas import storage
from schemas.errors import DataError
from schemas.manifest import FolderKind
from schemas.randomness import key

LOGGER = logging.getLogger("clozeline.pieces")

PIECES_VERSION = 19
"""The version of the files in staging. Raise it with every change after which old files must not be reused."""

PREFIX = "_unfinished-"
"""Prefix of the names of staging folders."""


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
        return storage.exists(self.url("").rstrip("/"))

    def report(self, name: str) -> Report | None:
        """Return the report of a finished piece, or None if the piece is not finished."""
        kept = self._kept(name)
        return None if kept is None else kept["report"]

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
        return kept if isinstance(kept, dict) and kept.keys() == {"attempt", "report"} else None

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

    def keep_report(self, name: str, report: Report) -> Report:
        """Write a report as proof that the piece of that name is whole, and return it."""
        self.put(name + ".json", json.dumps({"attempt": self.token, "report": report}).encode())
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


def plan_staging(output: str, kind: FolderKind, identity: dict[str, Any]) -> Staging:
    """Return the staging of the job that `identity` (its options and inputs) describes. Changes nothing."""
    recorded = json.dumps(identity, sort_keys=True)
    job = f"{key(kind, PIECES_VERSION, recorded):016x}"
    return Staging(output, job, token=uuid.uuid4().hex)
