"""What happens if the output is finished already: the same command does nothing, and any other is refused.

A launcher may die while its job continues and publishes. A script or cluster that then reruns the command must see
success. The manifest records what the folder was made from: format version, options, seed and inputs. Folders among the
inputs are compared by fingerprint. Files are compared by path and size, and local ones must not be newer than the
manifest; a change to a file on an object store that keeps its size is not detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.commit.publish import clean_up_after_kill, would_replace
from pipeline.commit.staging import Staging
from schemas import manifest as manifests
from schemas import storage
from schemas.errors import DataError, UsageError
from schemas.folder_kinds import BEFORE_RUNS, UNFINISHED
from schemas.manifest import FolderKind, Input, Manifest, read_manifest
from schemas.terminal import one_line, tell, tell_warning
from schemas.urls import refuse_read_only

ADDED_BY_STEPS = {
    "text": (),
    "counts": ("partitions",),
    "vocab": (),
    "pairs": ("vocabulary", "vocabulary_size"),
    "statistics": ("vocabulary", "vocabulary_size"),
}
"""For each kind of manifest, the options that are not flags of its command, because they follow from the inputs."""


NO_SEED = 0  # of jobs in which nothing is random


@dataclass(frozen=True)
class Provenance:
    """What a folder is made from, as its manifest records it. Known before the job starts."""

    options: dict[str, Any]
    inputs: list[Input]
    seed: int


def folder_as_input(folder: str, fingerprint: str) -> Input:
    """Return a finished folder as an input of a job, in the form that its manifest records."""
    return Input(path=storage.printable(folder), fingerprint=fingerprint)


@dataclass(frozen=True)
class Wanted:
    """The folder that a command should make. overwrite: whether to replace a finished one."""

    kind: FolderKind
    provenance: Provenance
    overwrite: bool


def finished_manifest(wanted: Wanted, staging: Staging, dry_run: bool = False) -> Manifest | None:
    """Return the manifest of the output folder if this exact command has finished it; None if there is work to do.

    Raises UsageError if the folder has another finished result, which must not be replaced, DataError if its manifest
    cannot be read and `overwrite` is off, and StorageError if it has to be written and cannot. If this job's result is
    in place, removes what is left of its staging, except in a dry run.
    """
    output = staging.output
    if not is_finished(wanted, staging, dry_run):
        return None

    place = one_line(storage.printable(output))
    tell(f"{place} is already finished by this command; nothing was done.")
    return read_manifest(output, wanted.kind)


def is_finished(wanted: Wanted, staging: Staging, dry_run: bool = False) -> bool:
    """Return whether this exact command has finished the output folder. Raises as `finished_manifest` does."""
    output = staging.output
    refuse_read_only(output)
    has_result = storage.exists(storage.join(output, manifests.NAME))
    root = _replaceable_root(wanted, output) if has_result else None
    if root is None or wanted.overwrite:
        storage.check_writable_folder(output)
        return False

    difference = next(_differences(wanted, root, output), "")
    if difference:
        raise UsageError(
            f"{output} holds a finished result ({root.kind}, fingerprint {root.fingerprint}), which is kept: "
            f"{difference}. Give another --output, or --overwrite to replace it."
        )
    if not dry_run:
        clean_up_after_kill(staging)
    return True


def check_other_files(wanted: Wanted, output: str) -> None:
    """Look for files of others in an output folder in which no job has worked yet.

    Raises UsageError, unless `overwrite` is on, if the result would replace one. Otherwise prints a warning with the
    first.
    """
    names = storage.names(output)
    if manifests.NAME in names or any(name.startswith(UNFINISHED) for name in names):
        return
    lost = [name for name in names if would_replace(wanted.kind, name)]
    if lost and not wanted.overwrite:
        raise UsageError(
            f"--output {storage.printable(output)} holds {lost[0]}, which the result would replace, and no "
            f"{manifests.NAME} says that a job wrote it. Give a new --output, or --overwrite to replace it."
        )
    others = [name for name in names if not BEFORE_RUNS.fullmatch(name)]
    if others:
        tell_warning(
            f"{one_line(storage.printable(output))} holds other files, the first: {one_line(others[0])}. They stay, "
            "and the result is written next to them. Give a new --output to keep them separate."
        )


def _replaceable_root(wanted: Wanted, output: str) -> Manifest | None:
    """Return the manifest in place without its parts; None if it is unreadable and will be replaced."""
    url = storage.join(output, manifests.NAME)
    data = storage.read(url)
    try:
        root = manifests.parse_manifest(data, url)
    except DataError as error:
        if wanted.overwrite:  # a new result replaces it, whatever it was
            return None
        raise DataError(f"{error} Give another --output, or --overwrite to replace what is in {output}.") from error

    if root.kind != wanted.kind:
        raise UsageError(f"{output} holds finished {root.kind}; {wanted.kind} needs a separate folder.")
    return root


def _differences(wanted: Wanted, root: Manifest, output: str) -> Iterator[str]:
    """Yield each way in which a finished result was made differently. Inputs are read last."""
    options = wanted.provenance.options
    for name in {**options, **root.options}:
        if name in ADDED_BY_STEPS[wanted.kind]:
            continue
        there = root.options.get(name)
        here = options.get(name)
        if there != here and not _is_the_default(name, here, root):
            yield f"it was made with --{name} {_shown(there)}, and this command has {_shown(here)}"

    if root.seed != wanted.provenance.seed:
        yield f"it was made with --seed {root.seed}, and this command has {wanted.provenance.seed}"

    inputs = read_manifest(output, wanted.kind).inputs
    if _identities(inputs) != _identities(wanted.provenance.inputs):
        yield "it was made from other inputs than this command names"
    changed = _changed_since(storage.join(output, manifests.NAME), inputs)
    if changed:
        yield f"{changed} was changed after it was made"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _is_the_default(name: str, here: Any, root: Manifest) -> bool:
    """Whether a recorded number of shards may be what `shard` chose because none was given.

    It chose by the amount of text before copies were dropped; the manifest records only the text that is left.
    """
    if name != "num_shards" or here is not None or not {"num_shards", "shard_megabytes", "dedup"} <= set(root.options):
        return False

    from pipeline.shard.survey import shards_for  # `shard` has loaded it, and other jobs need none of its modules

    recorded = root.options["num_shards"]
    of_what_is_left = shards_for(root.totals["text_bytes"], root.options["shard_megabytes"] << 20)
    if root.options["dedup"] == "none":
        return recorded == of_what_is_left
    return recorded >= of_what_is_left and recorded.bit_count() == 1


def _identities(inputs: list[Input]) -> list[tuple[Any, ...]]:
    """Return what identifies each input: a finished folder's content, wherever it is; a file's path and size."""
    return [(entry.fingerprint,) if entry.fingerprint else (entry.path, entry.bytes) for entry in inputs]


def _changed_since(manifest: str, inputs: list[Input]) -> str:
    """Return the path of a local input file that is newer than a manifest; empty if there is none."""
    finished = storage.modified(manifest)
    for entry in inputs:
        if entry.fingerprint is None and storage.is_local(entry.path):
            modified = storage.modified(entry.path)
            if finished is not None and modified is not None and modified > finished:
                return entry.path
    return ""
