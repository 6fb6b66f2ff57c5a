"""Publishing a finished job: its pieces move from staging into the output folder, and the manifest is written last.

The order makes a kill at any point harmless. Every piece is checked before anything changes. The old manifest goes
first, so no reader ever finds a manifest next to files that are not its own; without a manifest the folder counts as
unfinished, and the same command publishes again from where it stopped.

Engines run a step again when they lose its result, and some run it twice at the same time. So the last step ends at
once when its result is in place, takes pieces that its twin has moved for moved, and removes nothing that any step may
need again. What is unfinished is removed by the launcher, once the engine says that the job is done, and by the last
step only where no launcher waits any more.

Folders may have hundreds of thousands of shards. Their entries are read a part at a time, folders are listed once and
not asked about each file, and what has to be done to each file is done to many at once. Shards that a store took under
their final names (shard_destination.py) are only checked.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from pipeline.runtime import lease_files, leases
from pipeline.runtime.piece_checks import check_pieces, part_entries
from pipeline.runtime.staging import Staging, remove_unfinished
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, DataError
from schemas.manifest import FolderKind, Manifest, Part, Shard
from schemas.many_files import concurrently

_PARTS = r"|manifest-(shards|inputs)-\d+-of-\d+\.json"
_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*" + _PARTS,
    "counts": r"(wordpiece_uncased|wordpiece_cased|bytebpe|unigram)-\d+-of-\d+\.arrow" + _PARTS,
    "vocab": r"vocab\.txt|vocab\.json|merges\.txt" + _PARTS,
    "statistics": r"cooccurrences-\d+-of-\d+\.arrow" + _PARTS,
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*" + _PARTS,
}
"""The paths of each kind of folder that only its own job writes, and that another result of the kind may lack."""

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
    if is_published(staging, manifest):
        end_publication(staging)
        return
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    extra_paths = extra or {}
    staged = check_pieces(staging, manifest, generation)
    if is_published(staging, manifest):  # by a twin of this step, while it checked
        end_publication(staging)
        return

    # Asked first: a manifest that a twin publishes from now on must not be removed.
    old_manifest = storage.join(output, manifests.NAME)
    if storage.exists(old_manifest):
        storage.remove(old_manifest)
    # While this copy equals the manifest in place, nothing of this staging is needed any more. It is written when no
    # manifest is in place, so that it does not speak of an older result that was the same.
    data = manifest.to_json()
    staging.put(manifests.NAME, data)

    present = storage.names(output)
    new_paths = {part.path for part in manifest.parts}
    new_paths.update(extra_paths.values())
    new_paths.update(_shard_names(staging, manifest))
    _remove_replaced(output, manifest.kind, present, new_paths)

    _for_each(lambda piece: _place(staging, piece), _staged_pieces(staging, manifest, staged))
    # Copied, not moved: the manifest does not describe these files, so the next attempt after a kill could not tell
    # whether a file in place is this job's.
    _for_each(lambda item: storage.copy(staging.url(item[0]), storage.join(output, item[1])), extra_paths.items())

    storage.publish(storage.join(output, manifests.NAME), data)
    end_publication(staging)


def begin(staging: Staging) -> None:
    """Called by the launcher before the job runs: nothing counts as published by this attempt yet."""
    storage.remove(staging.url(manifests.NAME))


def is_published(staging: Staging, manifest: Manifest) -> bool:
    """Whether this very manifest is in place because this job has published it, and not an earlier one of its kind."""
    data = manifest.to_json()
    if _read_if_there(storage.join(staging.output, manifests.NAME)) != data:
        return False
    if _read_if_there(staging.url(manifests.NAME)) == data:
        return True
    return staging.token != "" and not lease_files.may_publish(staging.output, staging.token)


def is_in_place(staging: Staging) -> bool:
    """Whether this attempt's result is in place, as far as the disk or the store answers. Asked by the launcher."""
    with contextlib.suppress(ClozelineError):
        owner = lease_files.read(staging.output, staging.token)
        if owner is not None and owner.published:
            return True
        if owner is None and not staging.is_begun():  # the job's last step has cleaned up
            return storage.exists(storage.join(staging.output, manifests.NAME))

        copy = _read_if_there(staging.url(manifests.NAME))
        return copy is not None and copy == _read_if_there(storage.join(staging.output, manifests.NAME))
    return False


def _read_if_there(url: str) -> bytes | None:
    with contextlib.suppress(DataError):
        return storage.read(url)
    return None


def end_publication(staging: Staging) -> None:
    """Called by the last step once the result is in place. Safe to repeat.

    Removes what is unfinished, and the job's lease, if no launcher is left to do so.
    """
    output = staging.output
    if not staging.token:
        remove_unfinished(staging)
        return

    launcher_waits = lease_files.launcher_waits(output, staging.token, storage.join(output, manifests.NAME))
    lease_files.note_published(output, staging.token)
    if launcher_waits:
        return

    # Without the lease this is a repetition, and what lies in the folder may be another job's by now.
    if leases.is_held(output, staging.token):
        remove_unfinished(staging)
        lease_files.remove(output, staging.token)


def clean_up(staging: Staging) -> None:
    """Called by the launcher once the job is done: remove what is unfinished. The result stands if that fails."""
    try:
        if leases.is_held(staging.output, staging.token):
            remove_unfinished(staging)
    except ClozelineError as error:
        print(
            f"clozeline: {staging.output} is finished, but {staging.url('')} could not be removed. {error}",
            file=sys.stderr,
        )


def _for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call a function for each item, many at once. Raises the first error."""
    for _ in concurrently(function, items):
        pass


def _shard_names(staging: Staging, manifest: Manifest) -> Iterator[str]:
    for entries in part_entries(staging, manifest):
        for shard in entries:
            yield shard.path


def _staged_pieces(staging: Staging, manifest: Manifest, staged: set[str]) -> Iterator[Shard | Part]:
    """Yield all pieces that have to be put into place."""
    for entries in part_entries(staging, manifest):
        for shard in entries:
            if shard.path in staged:
                yield shard
    yield from manifest.parts


def _place(staging: Staging, piece: Shard | Part) -> None:
    """Put a piece into the output folder: a rename on a disk, a copy on the server of a store.

    The copy's original goes with all of staging at the end, a thousand pieces a request.
    """
    source = staging.url(piece.path)
    target = storage.join(staging.output, piece.path)
    try:
        if storage.is_local(source):
            storage.move(source, target)
        else:
            storage.copy(source, target)
    except ClozelineError:
        if not _is_in_place(target, piece):  # a twin of this step may have moved it
            raise


def _is_in_place(target: str, piece: Shard | Part) -> bool:
    with contextlib.suppress(ClozelineError):
        return storage.sha256(storage.read(target)) == piece.sha256
    return False


def _remove_replaced(output: str, kind: FolderKind, present: list[str], new_paths: set[str]) -> None:
    """Remove what a replaced result had and this one has not: other shards, another model's files, rejected records."""
    paths = list(present)
    for folder in ("rejected", "vocabulary"):
        if folder in present:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    replaced = re.compile(_REPLACED[kind])
    old_paths = [path for path in paths if replaced.fullmatch(path) and path not in new_paths]
    storage.remove_files(output, old_paths)
