"""Checks that the pieces of a result match its manifest, before anything is published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.runtime import shard_destination
from pipeline.runtime.staging import Staging
from schemas import storage
from schemas.errors import DataError, StorageError
from schemas.manifest import Manifest, Part, Shard, read_part
from schemas.storage import concurrently


def part_entries(staging: Staging, manifest: Manifest) -> Iterator[list[Shard]]:
    """Yield the shard entries of a manifest that is being published, a part at a time.

    A part may be in staging or already in the output folder.
    """
    parts = manifest.parts_of("shards")
    if not parts:
        yield manifest.shards
    for part in parts:
        yield _read_part(staging, part)


def _read_part(staging: Staging, part: Part) -> list[Shard]:
    try:
        return read_part(staging.url(""), part)
    except DataError:
        if storage.exists(staging.url(part.path)):  # it exists, so it is damaged
            raise
        return read_part(staging.output, part)


def check_pieces(staging: Staging, manifest: Manifest, generation: str = "") -> set[str]:
    """Check that each piece matches its manifest entry, and return the names of those in staging. Moves nothing.

    A piece is in staging, or in the output folder, where the job uploaded it directly or moved it before it was killed
    while publishing. Another job may have written over a piece in the output folder, unless all were put there in
    `generation` and that is still the current one.

    Raises StorageError for the first piece that differs, after the reports of all such pieces are dropped.
    """
    prefix = f"{manifest.kind}-" if manifest.kind in ("text", "pairs") else ""
    staged = storage.sizes(staging.url(""), prefix)
    in_place = storage.sizes(staging.output, prefix)
    trusted = generation != "" and _generation(staging) == generation
    pieces = _Pieces(staging, staged, in_place, trusted)

    faults: list[str] = []
    for entries in part_entries(staging, manifest):
        for shard, fault in zip(entries, concurrently(pieces.fault, entries), strict=True):
            if fault:
                faults.append(fault)
                staging.drop_report(shard.path)

    if faults:
        others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise StorageError(
            f"{faults[0]}{others}: it was cut or damaged, or another job wrote there. This job published nothing. Run "
            "the same command again: it makes such pieces again and reuses the others."
        )
    return set(staged)


def read_piece(staging: Staging, shard: Shard) -> bytes:
    """Return the bytes of one piece. If they are not what was written, drop its report and raise StorageError."""
    try:
        data = staging.piece(shard.path)
    except DataError:  # it no longer exists
        data = b""
    if storage.sha256(data) != shard.sha256:
        staging.drop_report(shard.path)
        raise StorageError(
            f"{shard.path} has other bytes than were written to {staging.output}: it was cut or damaged, or another "
            "job wrote there. This job published nothing. Run the same command again: it makes this piece again."
        )
    return data


def _generation(staging: Staging) -> str:
    return shard_destination.current(staging.output, staging.job, staging.token).generation


@dataclass(frozen=True)
class _Pieces:
    """Two listings, of sizes by name, and whether the pieces in the output folder are known to be this job's."""

    staging: Staging
    staged: dict[str, int]
    in_place: dict[str, int]
    in_place_is_trusted: bool

    def fault(self, shard: Shard) -> str:
        """Return what is wrong with a piece; empty if nothing is."""
        is_staged = shard.path in self.staged
        size = self.staged[shard.path] if is_staged else self.in_place.get(shard.path)
        url = self.staging.url(shard.path) if is_staged else storage.join(self.staging.output, shard.path)
        if size is None:
            return f"{url} is missing"
        if size != shard.bytes:
            return f"{url} has {size:,} bytes where {shard.bytes:,} were written"

        if self._must_be_read(shard, is_staged):
            # Not read at `url`: a twin of this step may have moved it since the listing.
            digest = storage.sha256(self.staging.piece(shard.path))
            if digest != shard.sha256:
                return f"{url} has other bytes than were written"
        return ""

    def _must_be_read(self, shard: Shard, is_staged: bool) -> bool:
        """Whether checking the size of a piece is not enough, so that its sha256 must be compared.

        Reading everything again would double the traffic of a job on an object store. Two kinds of pieces are read:
        those in place already, where another job may have written, and those that an earlier attempt left on a local
        disk, which a crash of the machine may have filled with zeros.
        """
        if not is_staged:
            return not self.in_place_is_trusted
        return storage.is_local(self.staging.output) and not self.staging.made_now(shard.path)
