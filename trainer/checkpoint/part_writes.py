"""Checks the parts of a checkpoint that a node wrote into its own folder, and keeps them for the upload (parts.py)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch.distributed as dist

from schemas import storage
from schemas.errors import ClozelineError
from trainer.checkpoint.disk_errors import read_errors_of, write_errors_of
from trainer.checkpoint.layout import EVALUATION, STATE
from trainer.checkpoint.manifest import MANIFEST, ManifestEntry, describe_file
from trainer.checkpoint.node_folders import NodeFolders
from trainer.checkpoint.offset_writer import WrittenPiece
from trainer.checkpoint.parts import (
    NODE,
    PARTS_FOLDER,
    Part,
    joined,
    length_of,
    manifest_of,
    part_name,
    saved_parts,
)
from trainer.checkpoint.verification import read_back
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0


def save_parts(
    partial: Path,
    run: str,
    written: dict[str, list[WrittenPiece]],
    folders: NodeFolders,
    keep: int,
) -> None:
    """Check what was written in each node's folder and keep it for the upload. A collective call.

    If uploads are slower than saves, all nodes keep the newest `keep` checkpoints and those that any node is uploading.
    If nodes removed these, or different checkpoints, a slow store would never get all parts of any checkpoint.

    partial: this node's folder. written: what all ranks wrote, by file, in file order.
    Raises StorageError on every rank if a rank reads back other bytes than were written.
    """
    rank = dist.get_rank()
    step_name, save, _ = partial.name.split(".")
    parts_by_rank = run_on_all_ranks(lambda: read_back_parts(partial, written, folders.of_ranks, rank, save))

    sizes = {name: pieces[-1].end for name, pieces in written.items()}
    manifest = manifest_of(run_on_rank_0(lambda: _whole_files(partial)), sizes, parts_by_rank)
    leads = folders.leads(rank)
    waiting = run_on_all_ranks(lambda: [folder.name for folder in saved_parts(run)] if leads else [])
    spared = {names[0] for names in waiting if names}

    kept = Path(run, PARTS_FOLDER, f"{step_name}.{save}")
    try:
        run_on_all_ranks(lambda: publish_parts(partial, kept, manifest, folders.of_ranks[rank]) if leads else None)
    except ClozelineError:
        # If one node cannot keep its parts, the checkpoint can never be completed, so no node keeps them.
        run_on_all_ranks(lambda: shutil.rmtree(kept, ignore_errors=True) if leads else None)
        raise
    run_on_all_ranks(lambda: prune_parts(run, keep, spared) if leads else None)


def _whole_files(partial: Path) -> list[ManifestEntry]:
    """Return manifest entries of the files that rank 0 wrote alone. Raises StorageError if one cannot be read."""
    files = [partial / name for name in (STATE, EVALUATION) if (partial / name).exists()]
    entries = []
    for file in files:
        with read_errors_of(file):
            entries.append(describe_file(partial, file))
    return entries


def read_back_parts(
    partial: Path,
    written: dict[str, list[WrittenPiece]],
    folders: list[int],
    rank: int,
    save: str,
) -> dict[str, Part]:
    """Read back this rank's share of what its node wrote, and return the parts that it read whole, by file.

    Nodes have no common folder, so only the ranks of a node can read what the node wrote. For each file, one of them
    reads the node's part and computes its SHA-256. What that rank wrote itself is read again by another rank, as in
    verification.py.

    written: what all ranks wrote, by file, in file order. folders: the number of each rank's folder. save: the random
    name of this save (parts.py). Raises StorageError if a file holds other bytes than were written.
    """
    number = folders[rank]
    here = [other for other, folder in enumerate(folders) if folder == number]
    parts: dict[str, Part] = {}
    for turn, (name, pieces) in enumerate(written.items()):
        mine = [piece for piece in pieces if folders[piece.rank] == number]
        reader = here[turn % len(here)]
        second = here[(turn + 1) % len(here)]

        if rank == second and second != reader:
            read_back(partial / name, [piece for piece in mine if piece.rank == reader], from_server=False)
        if rank == reader and mine:
            sha256 = read_back(partial / name, mine, from_server=False)
            ranges = joined(mine)
            path = part_name(name, number, max(folders) + 1, save)
            parts[name] = Part(path=path, bytes=length_of(ranges), sha256=sha256, ranges=ranges)
    return parts


def publish_parts(partial: Path, kept: Path, manifest: bytes, number: int) -> None:
    """Write the manifest and the node's number, and rename `partial` to `kept` for the upload. Raises StorageError."""
    with write_errors_of(partial):
        kept.parent.mkdir(exist_ok=True)
        (partial / NODE).write_text(str(number))
        storage.publish(str(partial / MANIFEST), manifest)
        os.replace(partial, kept)


def prune_parts(run: str, keep: int, spared: set[str]) -> None:
    """Remove the folders of parts, except the newest `keep` and those with names in `spared`."""
    for old in saved_parts(run)[:-keep]:
        if old.name not in spared:
            shutil.rmtree(old, ignore_errors=True)
