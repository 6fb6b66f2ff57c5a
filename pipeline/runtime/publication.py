"""Publishing a finished job: its pieces move from staging into the output folder, and the manifest is written last.

The order makes a kill at any point harmless. Every piece is checked before anything changes. The old manifest goes
first, so no reader ever finds a manifest next to files that are not its own; without a manifest the folder counts as
unfinished, and the same command publishes again from where it stopped.
"""

from __future__ import annotations

import re

from pipeline.runtime import leases
from pipeline.runtime.staging import PREFIX, Staging
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import StorageError
from schemas.manifest import FolderKind, Manifest, Shard

_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*",
    "counts": r"(wordpiece_uncased|wordpiece_cased|bytebpe)-\d+-of-\d+\.arrow",
    "vocab": r"vocab\.txt|vocab\.json|merges\.txt",
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*",
}
"""By kind, the paths that only the folder's own job writes and that another result of that kind may lack."""


def publish_output(staging: Staging, manifest: Manifest, extra: dict[str, str] | None = None) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    `extra` holds further pieces and their paths in the output folder. Raises StorageError, with nothing in the output
    folder changed, when the job has lost its lease or when a piece is not what the manifest says of it.
    """
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    extra_paths = extra or {}
    staged = check_pieces(staging, manifest.shards)

    # While this copy equals the manifest in place, nothing of this staging is needed any more.
    data = manifest.to_json()
    staging.put(manifests.NAME, data)

    storage.remove(storage.join(output, manifests.NAME))
    new_paths = {shard.path for shard in manifest.shards}
    new_paths.update(extra_paths.values())
    _remove_replaced(output, manifest.kind, new_paths)

    for shard in manifest.shards:
        if shard.path in staged:
            storage.move(staging.url(shard.path), storage.join(output, shard.path))

    # Copied, not moved: the manifest does not describe these files, so the next attempt after a kill could not tell
    # whether a file in place is this job's.
    for name, path in extra_paths.items():
        content = storage.read(staging.url(name))
        storage.publish(storage.join(output, path), content)

    storage.publish(storage.join(output, manifests.NAME), data)

    _remove_unfinished(output)
    if staging.token:
        leases.release_kept(output, staging.token)


def check_pieces(staging: Staging, shards: list[Shard]) -> set[str]:
    """Check that each piece is what its manifest entry says, and return the names in staging. Moves nothing.

    A piece lies in staging, or in the output folder if an attempt that was killed while it published has put it there.
    Another job may have written over it since.

    Raises StorageError for the first piece that differs, after the reports of all such pieces are dropped.
    """
    staged = storage.sizes(staging.url(""))
    in_place = storage.sizes(staging.output)

    faults: list[str] = []
    for shard in shards:
        is_staged = shard.path in staged
        sizes = staged if is_staged else in_place
        size = sizes.get(shard.path)
        fault = _fault(staging, shard, size, is_staged)
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


def _fault(staging: Staging, shard: Shard, size: int | None, is_staged: bool) -> str:
    """What is wrong with a piece of `size` bytes, None if it does not exist; empty when nothing is wrong."""
    url = staging.url(shard.path) if is_staged else storage.join(staging.output, shard.path)
    if size is None:
        return f"{url} is missing"
    if size != shard.bytes:
        return f"{url} has {size:,} bytes where {shard.bytes:,} were written"

    if _must_be_read(staging, shard, is_staged):
        digest = storage.sha256(storage.read(url))
        if digest != shard.sha256:
            return f"{url} has other bytes than were written"
    return ""


def _must_be_read(staging: Staging, shard: Shard, is_staged: bool) -> bool:
    """Whether the size of a piece says too little, so that its sha256 is compared.

    Reading everything again would double the traffic of a job on an object store. Two kinds of pieces are read: those
    in place already, where another job may have written, and those that an earlier attempt left on a local disk,
    which a crash of the machine may have filled with zeros.
    """
    if not is_staged:
        return True
    return storage.is_local(staging.output) and not staging.made_now(shard.path)


def _remove_replaced(output: str, kind: FolderKind, new_paths: set[str]) -> None:
    """Remove what a replaced result had and this one has not: other shards, another model's files, rejected records."""
    paths = storage.names(output)
    for folder in ("rejected", "vocabulary"):
        if folder in paths:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    for path in paths:
        if re.fullmatch(_REPLACED[kind], path) and path not in new_paths:
            storage.remove(storage.join(output, path))


def _remove_unfinished(output: str) -> None:
    """Remove what jobs left that ended before they were finished. This job's lease says that no other one lives."""
    for name in storage.names(output):
        is_partial = storage.is_partial(name) and not leases.is_lease(name)
        if name.startswith(PREFIX) or is_partial:
            storage.remove(storage.join(output, name))
