"""Saving and resuming, by all ranks together: each writes and reads its own part, another one checks it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, ClozelineError, StorageError
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint import safetensors_io as tensor_files
from trainer.checkpoint.layout import STATE, WEIGHTS, TrainingState
from trainer.checkpoint.safetensors_io import TensorFile, layout_of
from trainer.checkpoint.shared_writes import (
    HeldBytes,
    WrittenPiece,
    hashing_order,
    read_back,
    second_readers,
    write_together,
)
from trainer.checkpoint.write_plan import Extent, Range, assign_writers
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0
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

_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def save_checkpoint(
    engine: DeepSpeedEngine, run: str, state: TrainingState, keep: int, figures: dict[str, Any]
) -> None:
    """Write, check and publish a checkpoint with its evaluation's figures, then prune older ones. A collective call.

    Raises StorageError on every rank when one of them cannot write, or reads back other bytes than were written; what
    was published before is still there.
    """
    whole = state.model_copy(update={"updates": updates_made(engine), "loss_scale": _loss_scale(engine)})
    shapes = _shapes(engine)
    parts = [part for part in parameter_slices(engine) if part.written]
    nodes = nodes_of_ranks()
    try:
        partial = run_on_rank_0(lambda: _begin(run, whole, shapes, figures))
        written = _write(partial, shapes, parts, nodes, torch.device(engine.device or "cpu"))
        names = run_on_rank_0(lambda: _names_in(partial))
        checked = run_on_all_ranks(lambda: _check(partial, names, written, nodes))
        entries = [entry for mine in checked for entry in mine]
        run_on_rank_0(lambda: _publish(partial, run, whole.step, entries, keep))
    except ClozelineError:
        run_on_rank_0(lambda: checkpoints.remove_partial(run))
        raise


def find_checkpoint(run: str) -> tuple[Path, TrainingState, list[str]] | None:
    """(newest checkpoint that verifies, its state, what was wrong with newer ones), or None when there is none.

    One rank looks, so all take the same one. Raises CheckpointError on every rank when there are some but all are bad.
    """

    def look() -> tuple[Path, TrainingState, list[str]] | None:
        found = checkpoints.newest(run)
        return None if found is None else (found[0], checkpoints.read_state(found[0]), found[1])

    return run_on_rank_0(look)


def load_checkpoint(engine: DeepSpeedEngine, path: Path, state: TrainingState) -> None:
    """Put a checkpoint's weights, moments and counts into the engine, whatever layout wrote it. A collective call."""
    parts = parameter_slices(engine)
    run_on_all_ranks(lambda: _read(engine, path, parts))
    publish_weights(engine)
    set_updates_made(engine, state.updates)
    for name, value in state.loss_scale.items():
        if hasattr(_scaler(engine), name):
            setattr(_scaler(engine), name, value)


def _values_of() -> dict[str, Callable[[ParameterSlice], Any]]:
    """By file, what of a part it holds."""
    return {WEIGHTS: lambda part: part.weights} | {
        f"{key}.safetensors": lambda part, key=key: part.moments[key] for key in MOMENTS
    }


def _shapes(engine: DeepSpeedEngine) -> dict[str, tuple[int, ...]]:
    """Of every parameter as the model knows it; stage 3 keeps an empty stand-in."""
    return {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in named_parameters(engine)}


def _begin(run: str, state: TrainingState, shapes: dict[str, tuple[int, ...]], figures: dict[str, Any]) -> Path:
    partial = checkpoints.begin(run, state.step)
    with checkpoints.writing(partial):
        for name in _values_of():
            tensor_files.create(partial / name, shapes)
        storage.publish(str(partial / STATE), state.model_dump_json().encode())
    if figures:
        checkpoints.add_evaluation(partial, figures)
    return partial


def _write(
    partial: Path,
    shapes: dict[str, tuple[int, ...]],
    parts: list[ParameterSlice],
    nodes: list[int],
    device: torch.device,
) -> dict[str, list[WrittenPiece]]:
    """What was written into each file, by all ranks, in file order. A collective call."""
    layout = layout_of(shapes)
    header = WrittenPiece(0, len(layout.header), zlib.crc32(layout.header), 0)
    names = list(_values_of())
    held: dict[str, HeldBytes] = {}

    def hold_all() -> list[Range]:
        for name, value_of in _values_of().items():
            held[name] = HeldBytes([(layout.begins[part.name] + 4 * part.start, value_of(part)) for part in parts])
        return held[WEIGHTS].ranges

    # The files have the same tensors in the same places, so one assignment serves them all.
    ranges = run_on_all_ranks(hold_all)
    extents = assign_writers(ranges, nodes, len(layout.header))
    by_rank = run_on_all_ranks(lambda: _write_all(partial, extents, held, device))
    return {name: sorted([header, *chain.from_iterable(found[i] for found in by_rank)]) for i, name in enumerate(names)}


def _write_all(
    partial: Path, extents: list[Extent], held: dict[str, HeldBytes], device: torch.device
) -> list[list[WrittenPiece]]:
    """What this rank wrote into each file.

    A rank that failed in one file takes part in the exchanges of the others, and raises its first error after the last.
    """
    written: list[list[WrittenPiece]] = []
    errors: list[Exception] = []
    for name, mine in held.items():
        try:
            written.append(write_together(partial / name, extents, mine, device))
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return written


def _names_in(partial: Path) -> list[str]:
    """The files of a checkpoint. One rank lists them: what another machine sees of a folder may be seconds old."""
    return sorted(path.name for path in partial.iterdir() if path.is_file() and not path.name.startswith("."))


def _check(
    partial: Path, names: list[str], written: dict[str, list[WrittenPiece]], nodes: list[int]
) -> list[dict[str, Any]]:
    """Read back this rank's share of the named files and return the manifest's entries of those it read whole.

    Hashing takes longest of all, so ranks do it side by side.
    """
    rank = dist.get_rank()
    order = hashing_order(nodes)
    several_nodes = len(set(nodes)) > 1
    entries = []

    for number, name in enumerate(names):
        file = partial / name
        reader = order[number % len(order)]
        pieces = written.get(file.name)
        if pieces is None:
            if reader == rank:
                with checkpoints.reading(file):
                    entries.append(checkpoints.describe(partial, file))
            continue

        again = second_readers(pieces, reader, nodes)
        read_back(file, [p for p, second in zip(pieces, again, strict=True) if second == rank], several_nodes)
        if reader == rank:
            sha256 = read_back(file, pieces, several_nodes)
            with checkpoints.reading(file):
                size = file.stat().st_size
            if size != pieces[-1].end:
                raise StorageError(f"{file} has {size:,} bytes, but {pieces[-1].end:,} were written.")
            entries.append({"path": file.name, "bytes": size, "sha256": sha256})
    return entries


def _publish(partial: Path, run: str, step: int, entries: list[dict[str, Any]], keep: int) -> None:
    """Raises StorageError when a file is not in the manifest, or one of the manifest is not there."""
    names = _names_in(partial)
    listed = sorted(entry["path"] for entry in entries)
    if listed != names:
        raise StorageError(f"{partial} holds {', '.join(names)}, but the ranks have checked {', '.join(listed)}.")
    checkpoints.seal(partial, entries)
    checkpoints.publish(partial, checkpoints.checkpoint_path(run, step))
    checkpoints.prune(run, keep)


def _read(engine: DeepSpeedEngine, path: Path, parts: list[ParameterSlice]) -> None:
    shapes = _shapes(engine)
    for name, value_of in _values_of().items():
        with TensorFile(path / name) as file:
            if file.shapes != shapes:
                raise CheckpointError(f"{path / name} holds other tensors than this model. Use another run.output.")
            for part in parts:
                values_N = file.read(part.name, part.start, value_of(part).numel())
                _check_finite(path / name, part.name, values_N)
                value_of(part).copy_(values_N)
                progress()
            if name == WEIGHTS:
                _read_whole(engine, file)


def _check_finite(path: Path, name: str, values_N: Tensor) -> None:
    """Raise CheckpointError when a tensor holds a NaN or an infinity: no step could lead out of it."""
    if not bool(torch.isfinite(values_N).all()):
        raise CheckpointError(
            f"{path} holds values of {name} that are not finite. Delete {path.parent}, so that the run resumes from an "
            "older checkpoint, or use another run.output."
        )


def _read_whole(engine: DeepSpeedEngine, file: TensorFile) -> None:
    """All weights as the model computes with them; in stage 3 the ranks' parts are all there is."""
    for name, parameter in named_parameters(engine):
        if not hasattr(parameter, "ds_shape"):
            parameter.data.copy_(file.read(name, 0, parameter.numel()).view(parameter.shape))


def _scaler(engine: DeepSpeedEngine) -> Any:
    """DeepSpeed's loss scaler, by either of its names; None in fp32 at stage 0."""
    return getattr(engine.optimizer, "loss_scaler", None) or getattr(engine.optimizer, "loss_scale_config", None)


def _loss_scale(engine: DeepSpeedEngine) -> dict[str, float]:
    if not engine.fp16_enabled():
        return {}
    return {name: getattr(_scaler(engine), name) for name in _SCALER_FIELDS if hasattr(_scaler(engine), name)}
