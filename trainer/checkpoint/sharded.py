"""Saves and loads checkpoints by all ranks together. Each rank writes and reads only the elements that it holds.

How a checkpoint is saved; every step is collective, and an error on one rank is raised on all of them:

    1. Rank 0 creates a partial folder with state.json, evaluation.json and the tensor files: header and full size,
       elements still missing.
    2. All ranks write their float32 elements at their offsets and sync them   (write_plan.py, shared_writes.py)
    3. All ranks read the files back, compare and hash them                    (verification.py)
    4. Rank 0 writes the manifest, renames the folder to its final name and removes old checkpoints   (layout.py)

A kill before the rename in step 4 leaves a partial folder that nobody reads, and the checkpoints from before. An error
leaves those checkpoints only: the partial folder is deleted. After the rename the checkpoint is complete.

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
from trainer.checkpoint.manifest import ManifestEntry, seal
from trainer.checkpoint.node_folders import NodeFolders
from trainer.checkpoint.part_writes import save_parts
from trainer.checkpoint.safetensors_io import Shapes, TensorFile, TensorLayout, create, layout_of
from trainer.checkpoint.shared_writes import HeldBytes, WrittenPiece, write_together
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.checkpoint.verification import check_files
from trainer.checkpoint.write_plan import Extent, Range, assign_writers
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0
from trainer.distributed.deepspeed_internals import (
    full_shape_of,
    is_partitioned,
    loss_scaler_state,
    set_loss_scaler_state,
)
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    MOMENTS,
    ParameterSlice,
    named_parameters,
    parameter_slices,
    publish_weights,
    set_updates_made,
    updates_made,
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
    folders: which ranks see the same folder; None if all do. If nodes have folders of their own, each writes its part
    there, to be uploaded (parts.py).

    Raises StorageError on every rank if one of them cannot write, or reads back other bytes than were written. Earlier
    checkpoints are not affected.
    """
    counts = {"updates": updates_made(engine), "loss_scale": _loss_scale(engine)}
    saved_state = state.model_copy(update=counts)
    shapes = _shapes(engine)
    # What all ranks hold alike (stage 0) is marked as written on one of them only.
    slices = [part for part in parameter_slices(engine) if part.written]
    nodes = nodes_of_ranks()
    device = torch.device(engine.device or "cpu")

    try:
        partial = run_on_rank_0(lambda: _begin(run, saved_state, shapes, metrics))
        if folders is not None and folders.several:
            partial = layout.checkpoint_path(run, state.step).with_name(partial.name)
            leads_other = folders.leads(dist.get_rank()) and dist.get_rank() > 0
            run_on_all_ranks(lambda: _create_tensor_files(partial, shapes) if leads_other else None)
            written = _write(partial, shapes, slices, folders.of_ranks, device)
            save_parts(partial, run, written, folders, keep)
            return

        written = _write(partial, shapes, slices, nodes, device)

        # One rank lists the folder: what another machine sees of it may be seconds old.
        names = run_on_rank_0(lambda: _names_in(partial))
        entries_by_rank = run_on_all_ranks(lambda: check_files(partial, names, written, nodes))

        entries = [entry for entries_of_rank in entries_by_rank for entry in entries_of_rank]
        run_on_rank_0(lambda: _publish(partial, run, state.step, entries, keep))
    except ClozelineError:
        leads = dist.get_rank() == 0 if folders is None else folders.leads(dist.get_rank())
        run_on_all_ranks(lambda: layout.remove_partial(run) if leads else None)
        raise


def find_checkpoint(run: str) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if there is no checkpoint. A collective call.

    Rank 0 searches, so all ranks take the same one. Raises CheckpointError on every rank if there are checkpoints but
    none verifies.
    """

    def search() -> FoundCheckpoint | None:
        newest = layout.newest_sound_checkpoint(run)
        if newest is None:
            return None
        return FoundCheckpoint(newest.path, layout.read_state(newest.path), newest.faults)

    found = run_on_rank_0(search)
    if found is None:
        return None
    # Nodes may keep their folders in different places.
    return found._replace(path=layout.checkpoint_path(run, found.state.step))


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


def _begin(run: str, state: TrainingState, shapes: Shapes, metrics: dict[str, Any]) -> Path:
    """Create the partial folder with everything but the elements of the tensors. Rank 0 alone calls this."""
    partial = layout.begin(run, state.step)

    _create_tensor_files(partial, shapes)
    with write_errors_of(partial):
        storage.publish(str(partial / STATE), state.model_dump_json().encode())

    if metrics:
        layout.add_evaluation(partial, metrics)
    return partial


def _create_tensor_files(partial: Path, shapes: Shapes) -> None:
    """Create the tensor files without their elements. One rank of a folder calls this.

    The ranks write into existing files: if each created them, one could cut off what another has written.
    """
    with write_errors_of(partial):
        partial.mkdir(exist_ok=True)
        for file_name in _TENSOR_FILES:
            create(partial / file_name, shapes)


def _write(
    partial: Path,
    shapes: Shapes,
    slices: list[ParameterSlice],
    nodes: list[int],
    device: torch.device,
) -> dict[str, list[WrittenPiece]]:
    """Write all tensor files and return, by file, what all ranks wrote, in file order. A collective call."""
    file_layout = layout_of(shapes)
    held: dict[str, HeldBytes] = {}

    def locate_held_bytes() -> list[Range]:
        for file_name in _TENSOR_FILES:
            held[file_name] = _held_bytes(file_layout, slices, file_name)
        return held[WEIGHTS_FILE].ranges

    # All files hold the same tensors at the same offsets, so one plan serves them all.
    ranges_by_rank = run_on_all_ranks(locate_held_bytes)
    extents = assign_writers(ranges_by_rank, nodes, len(file_layout.header))
    written_by_rank = run_on_all_ranks(lambda: _write_files(partial, extents, held, device))

    # Rank 0 wrote the header when it created the files; it is checked like everything else.
    checksum = zlib.crc32(file_layout.header)
    header = WrittenPiece(0, len(file_layout.header), checksum, rank=0)
    written: dict[str, list[WrittenPiece]] = {}
    for file_name in _TENSOR_FILES:
        pieces = [header]
        for written_by_one_rank in written_by_rank:
            pieces += written_by_one_rank[file_name]
        written[file_name] = sorted(pieces)
    return written


def _held_bytes(file_layout: TensorLayout, slices: list[ParameterSlice], file_name: str) -> HeldBytes:
    """Return where in a file the elements of this rank's slices lie."""
    parts = []
    for part in slices:
        begin = file_layout.begins[part.name] + 4 * part.start  # bytes of float32
        parts.append((begin, _values_of(part, file_name)))
    return HeldBytes(parts)


def _values_of(part: ParameterSlice, file_name: str) -> Tensor:
    """Return what a tensor file holds of a slice, as (N,)."""
    if file_name == WEIGHTS_FILE:
        return part.weights
    return part.moments[_MOMENT_OF_FILE[file_name]]


def _write_files(
    partial: Path,
    extents: list[Extent],
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
            written[file_name] = write_together(partial / file_name, extents, held_of_file, device)
        except Exception as error:
            errors.append(error)

    if errors:
        raise errors[0]
    return written


def _names_in(partial: Path) -> list[str]:
    """Return the names of a checkpoint's files, without the hidden ones that a failed write may have left."""
    names = [path.name for path in partial.iterdir() if path.is_file()]
    return sorted(name for name in names if not name.startswith("."))


def _publish(partial: Path, run: str, step: int, entries: list[ManifestEntry], keep: int) -> None:
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
    shapes = _shapes(engine)
    for file_name in _TENSOR_FILES:
        with TensorFile(path / file_name) as file:
            if file.shapes != shapes:
                raise CheckpointError(
                    f"{path / file_name} holds other tensors than this model. Use another run.output."
                )

            # The values are views of what the optimizer works on, so copying into them loads the optimizer.
            for part in slices:
                target_N = _values_of(part, file_name)
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


# Shapes, and the loss scale


def _shapes(engine: DeepSpeedEngine) -> Shapes:
    """Return the full shape of every parameter by name."""
    return {name: full_shape_of(parameter) for name, parameter in named_parameters(engine)}


def _loss_scale(engine: DeepSpeedEngine) -> dict[str, float]:
    """Return the fp16 loss scaler's state, as far as this scaler has it, or an empty dict without fp16."""
    if not engine.fp16_enabled():
        return {}
    return loss_scaler_state(engine)
