"""Publishing a finished job: its pieces move from staging into the output folder, and the manifest is written last.

The order makes a kill at any point harmless. Every piece is checked before anything changes. The old manifest is
removed first, so no reader ever finds a manifest next to files that are not its own; without a manifest the folder
counts as unfinished, and the same command resumes publication where it stopped.

Engines run a step again when they lose its result, and some run two copies of it (twins) at the same time. So the last
step ends at once if its result is in place, accepts pieces that its twin has already moved, and removes nothing that
any step may need again. Unfinished files are removed by the launcher, once the engine reports that the job is done, or
by the last step if no launcher waits any longer.

Folders may have hundreds of thousands of shards. So entries are read a part at a time, folders are listed once instead
of being asked about each file, and operations on single files run concurrently. Shards that were uploaded under their
final names (shard_destination.py) are only checked.
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
from schemas.storage import concurrently
from schemas.vocabulary import TOKENIZER_FILES

_PARTS = r"|manifest-(shards|inputs)-\d+-of-\d+\.json"
_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*" + _PARTS,
    "counts": r"(wordpiece_uncased|wordpiece_cased|bytebpe|unigram)-\d+-of-\d+\.arrow" + _PARTS,
    "vocab": "|".join(map(re.escape, sorted(TOKENIZER_FILES - {"spiece.model"}))) + _PARTS,
    "statistics": r"cooccurrences-\d+-of-\d+\.arrow" + _PARTS,
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*" + _PARTS,
}
"""Paths that only a job of each kind writes, and that its next result may lack. Old ones are removed at publication."""

Item = TypeVar("Item")


def publish_output(
    staging: Staging, manifest: Manifest, extra: dict[str, str] | None = None, generation: str = ""
) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    The manifest's parts must be in staging. `extra` maps further pieces to their paths in the output folder.
    `generation` is that of a FolderSummary: shards that were put into place in it need not be read again.

    Raises StorageError, with nothing in the output folder changed, if the job has lost its lease or if a piece does not
    match the manifest.
    """
    if is_published(staging, manifest):
        end_publication(staging)
        return
    if staging.token:
        leases.check_held(staging.output, staging.token)

    output = staging.output
    extra_paths = extra or {}
    staged = check_pieces(staging, manifest, generation)
    if is_published(staging, manifest):  # by a twin of this step, meanwhile
        end_publication(staging)
        return

    # Remove only a manifest that exists now: one that a twin publishes from here on must stay.
    old_manifest = storage.join(output, manifests.NAME)
    if storage.exists(old_manifest):
        storage.remove(old_manifest)
    # If this copy equals the manifest in the output folder, nothing in this staging is needed any longer. The copy is
    # written while no manifest is in place, so it cannot match an older result that happens to be identical.
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
    """Called by the launcher before the job runs: mark nothing as published by this attempt yet."""
    storage.remove(staging.url(manifests.NAME))


def is_published(staging: Staging, manifest: Manifest) -> bool:
    """Whether this exact manifest is in place and was published by this job, not by an earlier job of its kind."""
    data = manifest.to_json()
    if _read_if_there(storage.join(staging.output, manifests.NAME)) != data:
        return False
    if _read_if_there(staging.url(manifests.NAME)) == data:
        return True
    return staging.token != "" and not lease_files.may_publish(staging.output, staging.token)


def is_in_place(staging: Staging) -> bool:
    """Whether this attempt's result is in place; False if the disk or store does not answer. Called by the launcher."""
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

    Removes unfinished files and the job's lease, if no launcher is left to do so.
    """
    output = staging.output
    if not staging.token:
        remove_unfinished(staging)
        return

    launcher_waits = lease_files.launcher_waits(output, staging.token, storage.join(output, manifests.NAME))
    lease_files.note_published(output, staging.token)
    if launcher_waits:
        return

    # Without the lease this call is a repetition, and the folder may be another job's by now.
    if leases.is_held(output, staging.token):
        remove_unfinished(staging)
        lease_files.remove(output, staging.token)


def clean_up(staging: Staging) -> None:
    """Called by the launcher once the job is done: remove unfinished files. If that fails, the result still stands."""
    try:
        if leases.is_held(staging.output, staging.token):
            remove_unfinished(staging)
    except ClozelineError as error:
        print(
            f"clozeline: {staging.output} is finished, but {staging.url('')} could not be removed. {error}",
            file=sys.stderr,
        )


def _for_each(function: Callable[[Item], None], items: Iterable[Item]) -> None:
    """Call a function for each item, many concurrently. Raises the first error."""
    for _ in concurrently(function, items):
        pass


def _shard_names(staging: Staging, manifest: Manifest) -> Iterator[str]:
    for entries in part_entries(staging, manifest):
        for shard in entries:
            yield shard.path


def _staged_pieces(staging: Staging, manifest: Manifest, staged: set[str]) -> Iterator[Shard | Part]:
    """Yield all pieces that must be put into place."""
    for entries in part_entries(staging, manifest):
        for shard in entries:
            if shard.path in staged:
                yield shard
    yield from manifest.parts


def _place(staging: Staging, piece: Shard | Part) -> None:
    """Put a piece into the output folder: a rename on a disk, a server-side copy in a store.

    The original of a copy is removed with all of staging at the end, a thousand pieces per request.
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
    """Remove files of the replaced result that the new one lacks: shards, another model's files, rejected records."""
    paths = list(present)
    for folder in ("rejected", "vocabulary"):
        if folder in present:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    replaced = re.compile(_REPLACED[kind])
    old_paths = [path for path in paths if replaced.fullmatch(path) and path not in new_paths]
    storage.remove_files(output, old_paths)
    if kind == "text" and "rejected" in present and not any(path.startswith("rejected/") for path in new_paths):
        storage.remove(storage.join(output, "rejected"))  # empty now; a store has no empty folders
