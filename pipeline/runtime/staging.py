"""Unfinished work beside the finished: a job that is killed and run again continues where it was.

    OUTPUT/_unfinished-<job>/   pieces and their reports, in a folder named for the job's options and inputs
    OUTPUT/_lease-<token>.json  who works in the folder; see leases.py
    OUTPUT/                     the finished shards, moved there at the end, and manifest.json, written last

A piece is trusted when its report exists, and a report is written after its piece. A job with other options or inputs,
or of a version that makes other pieces, has another key, so it never meets pieces that are not its own. What was
finished before stays until all is ready, and what other jobs left unfinished stays until a new result is finished.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from pipeline.runtime import leases
from pipeline.runtime.counters import Report
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError, UsageError
from schemas.manifest import Kind, Manifest, Shard
from schemas.randomness import key

PIECES_VERSION = 3
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

    token: of the lease that the job holds while it runs, another one at each attempt; without one nothing is checked.
    """

    output: str
    job: str
    token: str = ""

    def url(self, name: str) -> str:
        return storage.join(self.output, _PREFIX + self.job, name)

    def report(self, name: str) -> Report | None:
        """What was kept with a piece, or None when the piece is not finished."""
        kept = self._kept(name)
        return None if kept is None else kept["report"]

    def made_now(self, name: str) -> bool:
        """Whether this attempt made the finished piece, so that no crash of the machine came after it."""
        kept = self._kept(name)
        return kept is not None and bool(self.token) and kept["attempt"] == self.token

    def _kept(self, name: str) -> dict[str, Any] | None:
        """A report and the attempt that kept it. One that a crash of the machine left damaged counts as none."""
        url = self.url(name + ".json")
        if not storage.exists(url):
            return None
        try:
            kept = json.loads(storage.read(url))
        except ValueError:
            return None
        is_whole = isinstance(kept, dict) and isinstance(kept.get("report"), dict) and "attempt" in kept
        return kept if is_whole else None

    def piece(self, name: str) -> bytes:
        """A finished piece, whether or not it was moved into place already."""
        staged = self.url(name)
        return storage.read(staged if storage.exists(staged) else storage.join(self.output, name))

    def put(self, name: str, data: bytes) -> None:
        """Write a piece; it is not trusted before its report is kept."""
        storage.publish(self.url(name), data, durable=False)

    def keep_report(self, name: str, report: Report) -> Report:
        """Keep a report as proof that the piece of that name is whole."""
        self.put(name + ".json", json.dumps({"attempt": self.token, "report": report}).encode())
        return report

    def drop_report(self, name: str) -> None:
        """Have the next attempt make the piece of that name again."""
        storage.remove(self.url(name + ".json"))

    def keep(self, name: str, data: bytes, report: Report) -> Report:
        """Write a piece and keep its report, which is returned."""
        self.put(name, data)
        return self.keep_report(name, report)


def plan_staging(output: str, kind: Kind, overwrite: bool, identity: dict[str, Any], dry_run: bool = False) -> Staging:
    """The staging of the job that `identity` (its options and inputs) names. A job that may start touches nothing here.

    Raises UsageError when the folder holds a finished result that must not be replaced, DataError when it holds a
    manifest that cannot be read and `overwrite` is off, and StorageError when it cannot be written. When that result
    is this very job's, what a kill left of its staging is removed, but not by a dry run.
    """
    storage.check_writable_folder(output)
    recorded = json.dumps(identity, sort_keys=True)
    job = f"{key(kind, PIECES_VERSION, recorded):016x}"
    staging = Staging(output, job, token=uuid.uuid4().hex)

    if storage.exists(storage.join(output, manifests.NAME)):
        try:
            check_replaceable(output, kind, overwrite)
        except UsageError:
            if not dry_run:
                _remove_if_published(staging)
            raise
    return staging


def _remove_if_published(staging: Staging) -> None:
    """Remove the staging of a job whose own manifest is in place; what is not published yet stays."""
    marker = staging.url(manifests.NAME)
    with contextlib.suppress(ClozelineError):  # what cannot be removed is only in the way
        if not storage.exists(marker):
            return
        with leases.held(staging.output, staging.token):
            if storage.read(marker) == storage.read(storage.join(staging.output, manifests.NAME)):
                storage.remove(staging.url(""))


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

    `extra` holds further pieces and their paths in the output folder. Raises StorageError, with nothing in the output
    folder changed, when the job has lost its lease or when a piece is not what the manifest says of it.
    """
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    others = extra or {}
    staged = check_pieces(staging, manifest.shards)
    data = manifest.to_json()
    # Equal to the manifest in place, it says that nothing of this staging is needed any more.
    staging.put(manifests.NAME, data)

    storage.remove(storage.join(output, manifests.NAME))
    _remove_replaced(output, manifest.kind, {shard.path for shard in manifest.shards} | set(others.values()))
    for shard in manifest.shards:
        if shard.path in staged:
            storage.move(staging.url(shard.path), storage.join(output, shard.path))
    # Copied, not moved: the manifest does not describe these files, so another attempt could not tell whose they are.
    for name, target in others.items():
        storage.publish(storage.join(output, target), storage.read(staging.url(name)))
    storage.publish(storage.join(output, manifests.NAME), data)

    _remove_unfinished(output)
    if staging.token:
        leases.release_kept(output, staging.token)


def check_pieces(staging: Staging, shards: list[Shard]) -> set[str]:
    """Return the names in staging, once each piece was found to be what its manifest entry says. Moves nothing.

    A piece lies in staging, or where an attempt that was killed while it published has put it. There another job may
    have written over it since. Sizes come from two listings. To read all bytes again would double the traffic of a job
    on an object store, so sha256 is compared only where a size says too little: of pieces that are in place already,
    and of those that an earlier attempt left on a local disk, which a crash of the machine may have filled with zeros.

    Raises StorageError for the first piece that differs, with the reports of all such pieces dropped.
    """
    staged = storage.sizes(staging.url(""))
    in_place = storage.sizes(staging.output)
    is_local = storage.is_local(staging.output)

    faults: list[str] = []
    for shard in shards:
        is_staged = shard.path in staged
        url = staging.url(shard.path) if is_staged else storage.join(staging.output, shard.path)
        size = (staged if is_staged else in_place).get(shard.path)

        fault = ""
        if size is None:
            fault = f"{url} is missing"
        elif size != shard.bytes:
            fault = f"{url} has {size:,} bytes where {shard.bytes:,} were written"
        elif (not is_staged or (is_local and not staging.made_now(shard.path))) and (
            storage.sha256(storage.read(url)) != shard.sha256
        ):
            fault = f"{url} has other bytes than were written"

        if fault:
            faults.append(fault)
            staging.drop_report(shard.path)

    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise StorageError(
            f"{faults[0]}{more}: it was cut or damaged, or another job wrote there. This job published nothing. Run "
            "the same command again: it makes such pieces again and reuses the others."
        )
    return set(staged)


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
        is_partial = storage.is_partial(name) and not leases.is_lease(name)
        if name.startswith(_PREFIX) or is_partial:
            storage.remove(storage.join(output, name))
