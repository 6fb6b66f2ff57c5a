"""Saves and loads checkpoints by all ranks together. Each rank writes and reads only the elements that it holds.

How a checkpoint is saved; every step is collective, and an error on one rank is raised on all of them:

    1. Rank 0 creates a partial folder with state.json, evaluation.json and the tensor files: header and full size,
       elements still missing.
    2. All ranks write their float32 elements at their offsets and sync them   (write_plan.py, shared_writes.py)
    3. All ranks read the files back, compare and hash them                    (verification.py)
    4. Rank 0 writes the manifest, renames the folder to its final name and removes old checkpoints   (layout.py)

A kill before the rename in step 4 leaves a partial folder that is never read, and the checkpoints from before. An error
leaves those checkpoints only: the partial folder is deleted. After the rename the checkpoint is complete.

What is written is a snapshot (snapshot.py). The four steps need nothing else of the engine, so a thread may do them
while training continues (background.py).

When loading, each rank reads the elements that it holds under its own layout, whatever layout wrote them.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, StorageError
from trainer.checkpoint import layout
from trainer.checkpoint.disk_errors import write_errors_of
from trainer.checkpoint.layout import STATE, WEIGHTS_FILE
from trainer.checkpoint.manifest import Entry, seal
from trainer.checkpoint.node_folders import NodeFolders
from trainer.checkpoint.part_writes import save_parts
from trainer.checkpoint.safetensors_io import Shapes, TensorFile, TensorLayout, create, layout_of
from trainer.checkpoint.shared_writes import HeldBytes, WrittenPiece, cut_at_pieces, write_together
from trainer.checkpoint.snapshot import Snapshot, moment_shapes_of, shapes_of, snapshot_of
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.checkpoint.verification import check_files, fault_found_together, merged_entries
from trainer.checkpoint.write_plan import Extent, Range, assign_writers
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0
from trainer.distributed.deepspeed_internals import is_partitioned, set_loss_scaler_state
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    MOMENTS,
    ParameterSlice,
    named_parameters,
    parameter_slices,
    publish_weights,
    set_updates_made,
)

_MOMENT_OF_FILE = {f"{moment}.safetensors": moment for moment in MOMENTS}
_TENSOR_FILES = (WEIGHTS_FILE, *_MOMENT_OF_FILE)


def save_checkpoint(
    engine: DeepSpeedEngine,
    run: str,
    state: TrainingState,
    keep: int,
    metrics: dict[str, Any],
    folders: NodeFolders | None = None,
) -> None:
    """Write, check and publish a checkpoint, then remove all but the newest `keep` and the best. A collective call.

    metrics: of the evaluation of these weights, or empty.
    folders: which ranks see the same folder; None if all do. If nodes have separate folders, each writes its part
    there, to be uploaded (parts.py).

    Raises StorageError on every rank if one of them cannot write, or reads back other bytes than were written. Earlier
    checkpoints are not affected.
    """
    write_snapshot(snapshot_of(engine, state, metrics), run, keep, folders)


def write_snapshot(snapshot: Snapshot, run: str, keep: int, folders: NodeFolders | None = None) -> None:
    """Do what `save_checkpoint` does with a snapshot that was taken before. A collective call."""
    nodes = nodes_of_ranks()

    try:
        partial = run_on_rank_0(lambda: _begin(run, snapshot))
        if folders is not None and folders.several:
            partial = layout.checkpoint_path(run, snapshot.state.step).with_name(partial.name)
            leads_other = folders.leads(dist.get_rank()) and dist.get_rank() > 0
            run_on_all_ranks(lambda: _create_tensor_files(partial, snapshot) if leads_other else None)
            written = _write(partial, snapshot, folders.of_ranks)
            save_parts(partial, run, written, folders, keep)
            return

        written = _write(partial, snapshot, nodes)

        # One rank lists the folder: what another machine sees of it may be seconds old.
        names = run_on_rank_0(lambda: _names_in(partial))
        shares = run_on_all_ranks(lambda: check_files(partial, names, written, nodes))
        entries = merged_entries(shares, written)
        run_on_rank_0(lambda: _publish(partial, run, snapshot.state.step, entries, keep))
    except ClozelineError:
        leads = dist.get_rank() == 0 if folders is None else folders.leads(dist.get_rank())
        run_on_all_ranks(lambda: layout.remove_partial(run) if leads else None)
        raise


def find_checkpoint(run: str, folders: NodeFolders | None = None) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if there is no checkpoint. A collective call.

    All ranks take the same one, from the list that rank 0 sees. The ranks that see rank 0's folder verify it together.
    folders: which ranks do; None if all do.

    Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    folder_of_rank = [0] * dist.get_world_size() if folders is None else folders.of_ranks
    readers = [rank for rank, folder in enumerate(folder_of_rank) if folder == folder_of_rank[0]]

    saved = run_on_rank_0(lambda: layout.saved_checkpoints(run))
    try:
        newest = layout.newest_sound(run, saved, lambda path: fault_found_together(path, readers))
    except CheckpointError as error:
        error.everywhere = True
        raise
    if newest is None:
        return None

    state = run_on_rank_0(lambda: layout.read_state(newest.path))
    # Nodes may keep their folders in different places.
    return FoundCheckpoint(layout.checkpoint_path(run, state.step), state, newest.faults)


def load_checkpoint(engine: DeepSpeedEngine, path: Path, state: TrainingState) -> None:
    """Load a checkpoint's weights, moments and counts into the engine. A collective call.

    Raises CheckpointError on every rank if the files do not fit the model or hold a NaN or an infinity.
    """
    slices = parameter_slices(engine)
    run_on_all_ranks(lambda: _read(engine, path, slices))
    publish_weights(engine)
    set_updates_made(engine, state.updates)
    set_loss_scaler_state(engine, state.loss_scale)


# Saving


def _begin(run: str, snapshot: Snapshot) -> Path:
    """Create the partial folder with everything but the elements of the tensors. Rank 0 alone calls this."""
    partial = layout.begin(run, snapshot.state.step)

    _create_tensor_files(partial, snapshot)
    with write_errors_of(partial):
        storage.publish(str(partial / STATE), snapshot.state.model_dump_json().encode())

    if snapshot.metrics:
        layout.add_evaluation(partial, snapshot.metrics)
    return partial


def _create_tensor_files(partial: Path, snapshot: Snapshot) -> None:
    """Create the tensor files without their elements. One rank of a folder calls this.

    The ranks write into existing files: if each created them, one could cut off what another has written.
    """
    with write_errors_of(partial):
        partial.mkdir(exist_ok=True)
        for file_name in _TENSOR_FILES:
            create(partial / file_name, _shapes_in(file_name, snapshot.shapes, snapshot.moment_shapes))


def _shapes_in(file_name: str, shapes: Shapes, moment_shapes: dict[str, Shapes]) -> Shapes:
    """Return the shapes of a tensor file: of all weights, or of those that have the file's moment."""
    if file_name == WEIGHTS_FILE:
        return shapes
    return moment_shapes[_MOMENT_OF_FILE[file_name]]


def _write(partial: Path, snapshot: Snapshot, nodes: list[int]) -> dict[str, list[WrittenPiece]]:
    """Write all tensor files and return, by file, what all ranks wrote, in file order. A collective call."""
    layouts = _layouts_of(snapshot)
    held: dict[str, HeldBytes] = {}

    def locate_held_bytes() -> dict[str, list[Range]]:
        for file_name in _TENSOR_FILES:
            held[file_name] = _held_bytes(layouts[file_name], snapshot.slices, file_name)
        return {file_name: held[file_name].ranges for file_name in _files_with_own_layout(layouts)}

    ranges_by_rank = run_on_all_ranks(locate_held_bytes)
    plans = _plans_of(layouts, ranges_by_rank, nodes)
    written_by_rank = run_on_all_ranks(lambda: _write_files(partial, plans, held, snapshot.device))

    # Rank 0 wrote the headers when it created the files; they are checked like everything else.
    written: dict[str, list[WrittenPiece]] = {}
    for file_name in _TENSOR_FILES:
        header = layouts[file_name].header
        pieces = []
        for begin, end in cut_at_pieces(0, len(header)):
            pieces.append(WrittenPiece(begin, end, zlib.crc32(header[begin:end]), rank=0))
        for written_by_one_rank in written_by_rank:
            pieces += written_by_one_rank[file_name]
        written[file_name] = sorted(pieces)
    return written


def _layouts_of(snapshot: Snapshot) -> dict[str, TensorLayout]:
    """Return the layout of each tensor file. Files of the same tensors share one."""
    layout_of_weights = layout_of(snapshot.shapes)
    layouts = {}
    for file_name in _TENSOR_FILES:
        shapes = _shapes_in(file_name, snapshot.shapes, snapshot.moment_shapes)
        layouts[file_name] = layout_of_weights if shapes == snapshot.shapes else layout_of(shapes)
    return layouts


def _files_with_own_layout(layouts: dict[str, TensorLayout]) -> list[str]:
    """Return the files whose layout is no earlier file's."""
    names = list(layouts)
    return [name for place, name in enumerate(names) if all(layouts[name] is not layouts[one] for one in names[:place])]


def _plans_of(
    layouts: dict[str, TensorLayout], ranges_by_rank: list[dict[str, list[Range]]], nodes: list[int]
) -> dict[str, list[Extent]]:
    """Return who writes what of each file. Files of one layout hold the same tensors, so one plan serves them."""
    plans: dict[str, list[Extent]] = {}
    for planned in _files_with_own_layout(layouts):
        held = [ranges[planned] for ranges in ranges_by_rank]
        extents = assign_writers(held, nodes, len(layouts[planned].header))
        plans |= {name: extents for name, file_layout in layouts.items() if file_layout is layouts[planned]}
    return plans


def _held_bytes(file_layout: TensorLayout, slices: list[ParameterSlice], file_name: str) -> HeldBytes:
    """Return where in a file the elements of this rank's slices lie."""
    parts = []
    for part in slices:
        values_N = _values_of(part, file_name)
        if values_N is not None:
            begin = file_layout.begins[part.name] + 4 * part.start  # bytes of float32
            parts.append((begin, values_N))
    return HeldBytes(parts)


def _values_of(part: ParameterSlice, file_name: str) -> Tensor | None:
    """Return what a tensor file holds of a slice, as (N,); None if the file has a moment that the parameter lacks."""
    if file_name == WEIGHTS_FILE:
        return part.weights
    return part.moments.get(_MOMENT_OF_FILE[file_name])


def _write_files(
    partial: Path,
    plans: dict[str, list[Extent]],
    held: dict[str, HeldBytes],
    device: torch.device,
) -> dict[str, list[WrittenPiece]]:
    """Write this rank's part of each file, and return what it wrote by file.

    A rank that fails in one file still takes part in the exchanges of the others, because the other ranks wait for it
    there. It raises its first error after the last file.
    """
    written: dict[str, list[WrittenPiece]] = {}
    errors: list[Exception] = []
    for file_name, held_of_file in held.items():
        try:
            written[file_name] = write_together(partial / file_name, plans[file_name], held_of_file, device)
        except Exception as error:
            errors.append(error)

    if errors:
        raise errors[0]
    return written


def _names_in(partial: Path) -> list[str]:
    """Return the names of a checkpoint's files, without the hidden ones that a failed write may have left."""
    names = [path.name for path in partial.iterdir() if path.is_file()]
    return sorted(name for name in names if not name.startswith("."))


def _publish(partial: Path, run: str, step: int, entries: list[Entry], keep: int) -> None:
    """Write the manifest, publish the checkpoint and remove old ones.

    Raises StorageError if the folder's files are not exactly those that the ranks checked.
    """
    names = _names_in(partial)
    checked = sorted(entry["path"] for entry in entries)
    if checked != names:
        raise StorageError(f"{partial} holds {', '.join(names)}, but the ranks have checked {', '.join(checked)}.")

    seal(partial, entries)
    layout.publish_checkpoint(partial, layout.checkpoint_path(run, step))
    layout.prune(run, keep, step)


# Loading


def _read(engine: DeepSpeedEngine, path: Path, slices: list[ParameterSlice]) -> None:
    """Copy this rank's elements from the files into the optimizer's tensors. Raises CheckpointError."""
    shapes = shapes_of(engine)
    moment_shapes = moment_shapes_of(engine)
    for file_name in _TENSOR_FILES:
        with TensorFile(path / file_name) as file:
            if file.shapes != _shapes_in(file_name, shapes, moment_shapes):
                raise CheckpointError(
                    f"{path / file_name} holds other tensors than this model. Use another run.output."
                )

            # The values are views of what the optimizer works on, so copying into them loads the optimizer.
            for part in slices:
                target_N = _values_of(part, file_name)
                if target_N is None:
                    continue
                values_N = file.read(part.name, part.start, target_N.numel())
                _check_finite(path / file_name, part.name, values_N)
                target_N.copy_(values_N)
                progress()

            # The model computes with its own copy of the weights, except in fp32 at stage 0.
            if file_name == WEIGHTS_FILE:
                _read_whole(engine, file)


def _check_finite(path: Path, name: str, values_N: Tensor) -> None:
    """Raise CheckpointError if a tensor holds a NaN or an infinity: no later step could recover from it."""
    if not bool(torch.isfinite(values_N).all()):
        raise CheckpointError(
            f"{path} holds values of {name} that are not finite. Delete {path.parent}, so that the run resumes from an "
            "older checkpoint, or use another run.output."
        )


def _read_whole(engine: DeepSpeedEngine, file: TensorFile) -> None:
    """Copy all weights into the model itself, which computes with a copy in its own precision.

    Parameters that are partitioned (stage 3) are left to `publish_weights`, which gathers them from the ranks.
    """
    for name, parameter in named_parameters(engine):
        if not is_partitioned(parameter):
            values_N = file.read(name, 0, parameter.numel())
            parameter.data.copy_(values_N.view(parameter.shape))
