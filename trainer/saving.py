"""Saving and going on, by all ranks together: every rank writes and reads its own part, one checks and publishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import CheckpointError, StorageError
from trainer import checkpoints, tensor_files
from trainer.agreement import from_rank_0, together
from trainer.checkpoints import STATE, WEIGHTS, TrainingState
from trainer.partitions import (
    MOMENTS,
    Part,
    named_parameters,
    parts_of,
    publish_weights,
    set_updates_made,
    updates_made,
)
from trainer.tensor_files import TensorFile

_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def save(engine: DeepSpeedEngine, run: str, state: TrainingState, keep: int, figures: dict[str, Any]) -> None:
    """Write, check and publish a checkpoint with its evaluation's figures, then prune older ones. A collective call.

    Raises StorageError on every rank when one of them cannot write; what was published before is still there.
    """
    parts = [part for part in parts_of(engine) if part.written]
    whole = state.model_copy(update={"updates": updates_made(engine), "loss_scale": _loss_scale(engine)})
    try:
        partial = from_rank_0(lambda: _begin(run, whole, _shapes(engine), figures))
        together(lambda: _write(partial, parts))
        entries = together(lambda: _describe(partial))
        listed = [entry for mine in entries for entry in mine]
        from_rank_0(lambda: _publish(partial, run, whole.step, listed, keep))
    except (CheckpointError, StorageError):
        from_rank_0(lambda: checkpoints.remove_partial(run))
        raise


def find(run: str) -> tuple[Path, TrainingState, list[str]] | None:
    """(newest checkpoint that verifies, its state, what was wrong with newer ones), or None when there is none.

    One rank looks, so all take the same one. Raises CheckpointError on every rank when there are some but all are bad.
    """

    def look() -> tuple[Path, TrainingState, list[str]] | None:
        found = checkpoints.newest(run)
        return None if found is None else (found[0], checkpoints.read_state(found[0]), found[1])

    return from_rank_0(look)


def load(engine: DeepSpeedEngine, path: Path, state: TrainingState) -> None:
    """Put a checkpoint's weights, moments and counts into the engine, whatever layout wrote it. A collective call."""
    parts = parts_of(engine)
    together(lambda: _read(engine, path, parts))
    publish_weights(engine)
    set_updates_made(engine, state.updates)
    for name, value in state.loss_scale.items():
        if hasattr(_scaler(engine), name):
            setattr(_scaler(engine), name, value)


def _values_of() -> dict[str, Callable[[Part], Any]]:
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
        checkpoints.add_figures(partial, figures)
    return partial


def _write(partial: Path, parts: list[Part]) -> None:
    with checkpoints.writing(partial):
        for name, value_of in _values_of().items():
            with TensorFile(partial / name, "r+b") as file:
                for part in parts:
                    file.write(part.name, part.start, value_of(part))
                file.sync()


def _describe(partial: Path) -> list[dict[str, Any]]:
    """Entries of this rank's share of the files: hashing takes longest of all, so ranks do it side by side."""
    files = sorted(path for path in partial.iterdir() if path.is_file())
    with checkpoints.writing(partial):
        return [checkpoints.describe(partial, file) for file in files[dist.get_rank() :: dist.get_world_size()]]


def _publish(partial: Path, run: str, step: int, entries: list[dict[str, Any]], keep: int) -> None:
    checkpoints.seal(partial, entries)
    checkpoints.publish(partial, checkpoints.checkpoint_path(run, step))
    checkpoints.prune(run, keep)


def _read(engine: DeepSpeedEngine, path: Path, parts: list[Part]) -> None:
    shapes = _shapes(engine)
    for name, value_of in _values_of().items():
        with TensorFile(path / name) as file:
            if file.shapes != shapes:
                raise CheckpointError(f"{path / name} holds other tensors than this model. Use another run.output.")
            for part in parts:
                value_of(part).copy_(file.read(part.name, part.start, value_of(part).numel()))
            if name == WEIGHTS:
                _read_whole(engine, file)


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
