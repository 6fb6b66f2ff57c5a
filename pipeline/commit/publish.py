"""Publishing a finished job: its pieces move from staging into the output folder, and the manifest is written last.

What an output folder holds, what a kill at that moment leaves, and what the next start of the same command does:

    moment                       in addition to _lease-<token>.json     after a kill, the next start
    ---------------------------  -------------------------------------  ------------------------------------------------
    it plans, builds its graph   an older result, if any; no lease yet  begins
    it holds the folder          + _unfinished-<job>                    begins
    pieces are made              the same                               makes the missing pieces
    the last step checks them    the same                               makes shards that were damaged again
    it removes the old manifest  old and new files, no manifest         makes no piece, and publishes from the start
    it moves pieces into place   the same                               the same
    it writes the manifest       the result and _unfinished-<job>       finds its result, and removes what is unfinished
    the launcher cleans up       the result and some of the rest        the same

With --holdout a job holds two folders. Once both are checked, it removes the old manifest of TEXT, then TEXT_heldout
passes all further moments up to its manifest, and then TEXT. The clean-up is that of both.

Of pieces other than shards, run files have checksums, and an error at one asks the user to delete the staging folder.

A lease that a killed process leaves ends with the process or when it expires; that of a job on an engine is kept, and
such a job may also finish by itself. The lease says that the job has published (`note_published`): a step that the
engine repeats then has nothing to do. Another job of the folder has a separate staging. Once a new result is in place,
the clean-up removes the unfinished work of all jobs.

No reader ever finds a manifest next to files of another result. Every shard is checked before any file outside of
staging changes: its size always, its bytes where they may have changed since they were written (`_fault`).

Engines run a step again when they lose its result, and some run two copies of it (twins) at the same time. So the last
step ends at once if its result is in place, accepts pieces that its twin has already moved, and removes nothing that
any step may need again. Unfinished files are removed by the launcher, once the engine reports that the job is done, or
by the last step if no launcher waits any longer.

Folders may have hundreds of thousands of shards. So entries are read a part at a time, folders are listed once instead
of being asked about each file, and operations on single files run concurrently.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from functools import partial

from pipeline.commit import leases
from pipeline.commit.staging import PREFIX, Staging
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError
from schemas.manifest import FolderKind, Manifest, Part, Shard, read_part
from schemas.storage import concurrently, remove_folder
from schemas.vocabulary import TOKENIZER_FILES
from schemas.vocabulary_kinds import VOCABULARY_KINDS

CARD_FILE = "card.html"
LEDGER_FILE = "ledger.parquet"

_PARTS = r"|manifest-(shards|inputs)-\d+-of-\d+\.json"
_COUNTS = "|".join(name for kind in VOCABULARY_KINDS.values() for name in kind.counted_as.values())
_REPLACED = {
    "text": r"text-\d+-of-\d+\.arrow|rejected/.*" + _PARTS,
    "counts": rf"({_COUNTS})-\d+-of-\d+\.arrow" + _PARTS,
    "vocab": "|".join(map(re.escape, sorted(TOKENIZER_FILES - {"spiece.model"}))) + _PARTS,
    "statistics": r"cooccurrences-\d+-of-\d+\.arrow" + _PARTS,
    "pairs": r"pairs-\d+-of-\d+\.arrow|vocabulary/.*" + _PARTS,
}
"""Paths that only a job of each kind writes, and that its next result may lack. Old ones are removed at publication."""


def would_replace(kind: FolderKind, name: str) -> bool:
    """Return whether a result of this kind replaces or removes a file or a folder of this name in its folder."""
    is_page = kind in ("text", "pairs") and name in (CARD_FILE, LEDGER_FILE)
    return is_page or any(re.fullmatch(_REPLACED[kind], path) for path in (name, f"{name}/"))


def publish_output(staging: Staging, manifest: Manifest, extra: dict[str, str] | None = None) -> None:
    """Move the pieces that the manifest names into place, then write it. Safe to repeat after a kill at any point.

    The manifest's parts must be in staging. `extra` maps further pieces to their paths in the output folder.

    Raises StorageError if the job has lost its lease or if a piece does not match the manifest. An older result is then
    unchanged, and pieces that do not match are gone from staging.
    """
    if is_published(staging, manifest):
        end_publication(staging)
        return

    leases.check_held(staging.output, staging.token)
    staged = check_pieces(staging, manifest)
    if is_published(staging, manifest):  # by a twin of this step, during the checks
        end_publication(staging)
        return

    output = staging.output
    manifest_url = storage.join(output, manifests.NAME)
    remove_older_manifest(manifest_url, manifest)

    extra_paths = extra or {}
    new_paths = {part.path for part in manifest.parts}
    new_paths.update(extra_paths.values())
    for entries in part_entries(staging, manifest):
        new_paths.update(shard.path for shard in entries)
    _remove_replaced(output, manifest.kind, new_paths)

    list(concurrently(lambda piece: _place(staging, piece), _staged_pieces(staging, manifest, staged)))
    # Copied, not moved: the manifest does not describe these files, so the next attempt after a kill could not tell
    # whether a file in place is this job's.
    copies = [(staging.url(name), storage.join(output, path)) for name, path in extra_paths.items()]
    list(concurrently(lambda urls: storage.copy(*urls), copies))

    storage.publish(manifest_url, manifest.to_json())
    end_publication(staging)


def remove_older_manifest(url: str, manifest: Manifest) -> None:
    """Remove the manifest at a URL unless it is this one, which a twin has just published: that must stay."""
    if storage.exists(url) and storage.read(url) != manifest.to_json():
        storage.remove(url)


def is_published(staging: Staging, manifest: Manifest) -> bool:
    """Whether this exact manifest is in place and this attempt has published: its lease says so, or is gone.

    An earlier job of the same kind may have published the same manifest while this attempt still has work to do.
    """
    with contextlib.suppress(DataError):  # there is none
        if storage.read(storage.join(staging.output, manifests.NAME)) == manifest.to_json():
            return not leases.may_publish(staging.output, staging.token)
    return False


def _staged_pieces(staging: Staging, manifest: Manifest, staged: set[str]) -> Iterator[Shard | Part]:
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
    put_into_place = storage.move if storage.is_local(source) else storage.copy
    try:
        put_into_place(source, target)
    except ClozelineError:
        # A twin of this step may have moved it.
        with contextlib.suppress(ClozelineError):
            if storage.sha256(storage.read(target)) == piece.sha256:
                return
        raise


def _remove_replaced(output: str, kind: FolderKind, new_paths: set[str]) -> None:
    """Remove files of the replaced result that the new one lacks: shards, another model's files, rejected records."""
    present = storage.names(output)
    paths = list(present)
    for folder in ("rejected", "vocabulary"):
        if folder in present:
            paths += [f"{folder}/{name}" for name in storage.names(storage.join(output, folder))]

    replaced = re.compile(_REPLACED[kind])
    old_paths = [path for path in paths if replaced.fullmatch(path) and path not in new_paths]
    storage.remove_files(output, old_paths)
    if kind == "text" and "rejected" in present and not any(path.startswith("rejected/") for path in new_paths):
        storage.remove(storage.join(output, "rejected"))  # empty now; a store has no empty folders


# Checks of the pieces, before anything changes.


def part_entries(staging: Staging, manifest: Manifest) -> Iterator[list[Shard]]:
    """Yield the shard entries of a manifest that is being published, a part at a time.

    A part may be in staging or already in the output folder.
    """
    parts = manifest.parts_of("shards")
    if not parts:
        yield manifest.shards
    for part in parts:
        try:
            yield read_part(staging.url(""), part)
        except DataError:
            if storage.exists(staging.url(part.path)):  # it exists, so it is damaged
                raise
            yield read_part(staging.output, part)


def check_pieces(staging: Staging, manifest: Manifest) -> set[str]:
    """Check that each piece matches its manifest entry, and return the names of those in staging. Moves nothing.

    A piece is in staging, or in the output folder, to which the job moved it before it was killed while publishing.

    Raises StorageError for the first piece that differs, after the reports of all such pieces are dropped.
    """
    prefix = f"{manifest.kind}-" if manifest.kind in ("text", "pairs") else ""
    staged = storage.sizes(staging.url(""), prefix)
    in_place = storage.sizes(staging.output, prefix)
    find_fault = partial(_fault, staging=staging, staged=staged, in_place=in_place)

    faults: list[str] = []
    for entries in part_entries(staging, manifest):
        for shard, fault in zip(entries, concurrently(find_fault, entries), strict=True):
            if fault:
                faults.append(fault)
                staging.drop_piece(shard.path)

    if faults:
        others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise StorageError(
            f"{faults[0]}{others}: it was cut or damaged, or another job wrote there. This job published nothing. Run "
            "the same command again: it makes such pieces again and reuses the others."
        )
    return set(staged)


def _fault(shard: Shard, staging: Staging, staged: dict[str, int], in_place: dict[str, int]) -> str:
    """Return what is wrong with a piece; empty if nothing is. staged, in_place: sizes by name, from two listings."""
    is_staged = shard.path in staged
    size = staged[shard.path] if is_staged else in_place.get(shard.path)
    url = staging.url(shard.path) if is_staged else storage.join(staging.output, shard.path)
    if size is None:
        return f"{url} is missing"
    if size != shard.bytes:
        return f"{url} has {size:,} bytes where {shard.bytes:,} were written"

    # Reading everything again would double the traffic of a job on an object store. Only two kinds of pieces are read:
    # those in place already, where another job may have written, and those that an earlier attempt left on a local
    # disk, which a crash of the machine may have filled with zeros.
    must_be_read = not is_staged or (storage.is_local(staging.output) and not staging.made_now(shard.path))
    # Not read at `url`: a twin of this step may have moved it since the listing.
    if must_be_read and not _is_whole(staging.piece(shard.path), shard):
        return f"{url} has other bytes than were written"
    return ""


def read_piece(staging: Staging, shard: Shard) -> bytes:
    """Return the bytes of one piece. If they are not what was written, drop its report and raise StorageError."""
    try:
        data = staging.piece(shard.path)
    except DataError:  # it no longer exists
        data = b""
    if not _is_whole(data, shard):
        staging.drop_piece(shard.path)
        raise StorageError(
            f"{shard.path} has other bytes than were written to {staging.output}: it was cut or damaged, or another "
            "job wrote there. This job published nothing. Run the same command again: it makes this piece again."
        )
    return data


def _is_whole(data: bytes, piece: Shard | Part) -> bool:
    return storage.sha256(data) == piece.sha256


# What is left to do once the result is in place.


def end_publication(staging: Staging) -> None:
    """Called by the last step once the result is in place. Safe to repeat.

    Removes unfinished files and the job's lease, if no launcher is left to do so.
    """
    output = staging.output
    launcher_waits = leases.launcher_waits(output, staging.token, storage.join(output, manifests.NAME))
    leases.note_published(output, staging.token)
    if launcher_waits:
        return

    # Without the lease this call is a repetition, and the folder may be another job's by now.
    if leases.is_held(output, staging.token):
        remove_unfinished(staging)
        leases.remove(output, staging.token)


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


def clean_up_after_kill(staging: Staging) -> None:
    """Remove what is unfinished if this job has staging although its result is finished, and no job works there."""
    with contextlib.suppress(ClozelineError):  # staging that cannot be removed only takes up space
        if staging.is_begun():
            with leases.held(staging.output, staging.token):
                remove_unfinished(staging)


def remove_unfinished(staging: Staging) -> None:
    """Remove what unfinished jobs left behind, once this job's result is in place.

    The lease guarantees that no other job is at work. This job's own staging is removed last: while it exists, the next
    start sees that there is more to remove.
    """
    own = PREFIX + staging.job
    for name in storage.names(staging.output):
        is_partial = storage.is_partial(name) and not leases.is_lease(name)
        if is_partial or (name.startswith(PREFIX) and name != own):
            remove_folder(storage.join(staging.output, name))
    remove_folder(staging.url("").rstrip("/"))
