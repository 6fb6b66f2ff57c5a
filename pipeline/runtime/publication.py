"""Publishing a finished job: its pieces move from staging into the output folder, and the manifest is written last.

The order makes a kill at any point harmless. Every piece is checked before anything changes. The old manifest goes
first, so no reader ever finds a manifest next to files that are not its own; without a manifest the folder counts as
unfinished, and the same command publishes again from where it stopped.

Folders may have hundreds of thousands of shards. Their entries are read a part at a time, folders are listed once and
not asked about each file, and what has to be done to each file is done to many at once. Shards that a store took under
their final names (placement.py) are only checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pipeline.runtime import leases
from pipeline.runtime.piece_checks import check_pieces, part_entries
from pipeline.runtime.staging import Staging, remove_unfinished
from schemas import manifest as manifests
from schemas import storage
from schemas.manifest import FolderKind, Manifest
from schemas.many_files import concurrently

_PARTS = r"|manifest-(shards|inputs)-\d+-of-\d+\.json"
_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*" + _PARTS,
    "counts": r"(wordpiece_uncased|wordpiece_cased|bytebpe)-\d+-of-\d+\.arrow" + _PARTS,
    "vocab": r"vocab\.txt|vocab\.json|merges\.txt" + _PARTS,
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*" + _PARTS,
}
"""By kind, the paths that only the folder's own job writes and that another result of that kind may lack."""

Item = TypeVar("Item")


def publish_output(
    staging: Staging, manifest: Manifest, extra: dict[str, str] | None = None, generation: str = ""
) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    Parts that the manifest names must lie in staging. `extra` holds further pieces and their paths in the output
    folder. `generation` is that of a FolderSummary: shards that were put into place in it need not be read again.
    Raises StorageError, with nothing in the output folder changed, when the job has lost its lease or when a piece is
    not what the manifest says of it.
    """
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    extra_paths = extra or {}
    staged = check_pieces(staging, manifest, generation)

    # While this copy equals the manifest in place, nothing of this staging is needed any more.
    data = manifest.to_json()
    staging.put(manifests.NAME, data)

    storage.remove(storage.join(output, manifests.NAME))
    present = storage.names(output)
    new_paths = {part.path for part in manifest.parts}
    new_paths.update(extra_paths.values())
    new_paths.update(_shard_names(staging, manifest))
    _remove_replaced(output, manifest.kind, present, new_paths)

    _for_each(lambda name: _place(staging, name), _staged_names(staging, manifest, staged))
    # Copied, not moved: the manifest does not describe these files, so the next attempt after a kill could not tell
    # whether a file in place is this job's.
    _for_each(lambda item: storage.copy(staging.url(item[0]), storage.join(output, item[1])), extra_paths.items())

    storage.publish(storage.join(output, manifests.NAME), data)

    remove_unfinished(staging)
    if staging.token:
        leases.release_kept(output, staging.token)


def _for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call a function for each item, many at once. Raises the first error."""
    for _ in concurrently(function, items):
        pass


def _shard_names(staging: Staging, manifest: Manifest) -> Iterator[str]:
    for entries in part_entries(staging, manifest):
        for shard in entries:
            yield shard.path


def _staged_names(staging: Staging, manifest: Manifest, staged: set[str]) -> Iterator[str]:
    """Yield the names of all pieces that have to be put into place."""
    for name in _shard_names(staging, manifest):
        if name in staged:
            yield name
    for part in manifest.parts:
        yield part.path


def _place(staging: Staging, name: str) -> None:
    """Put a piece into the output folder: a rename on a disk, a copy on the server of a store.

    The copy's original goes with all of staging at the end, a thousand pieces a request.
    """
    source = staging.url(name)
    target = storage.join(staging.output, name)
    if storage.is_local(source):
        storage.move(source, target)
    else:
        storage.copy(source, target)


def _remove_replaced(output: str, kind: FolderKind, present: list[str], new_paths: set[str]) -> None:
    """Remove what a replaced result had and this one has not: other shards, another model's files, rejected records."""
    paths = list(present)
    for folder in ("rejected", "vocabulary"):
        if folder in present:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    replaced = re.compile(_REPLACED[kind])
    old_paths = [path for path in paths if replaced.fullmatch(path) and path not in new_paths]
    storage.remove_files(output, old_paths)
