"""Loads a checkpoint into an engine: each rank reads the elements that it holds, whatever layout wrote them.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import CheckpointError
from trainer.checkpoint.layout import WEIGHTS_FILE
from trainer.checkpoint.safetensors_io import TensorFile
from trainer.checkpoint.snapshot import shapes_of
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.tensor_files import TENSOR_FILES, values_of
from trainer.distributed.collectives import run_on_all_ranks
from trainer.distributed.deepspeed_internals import is_partitioned, set_loss_scaler_state
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    ParameterSlice,
    named_parameters,
    parameter_slices,
    publish_weights,
    set_updates_made,
)


def load_checkpoint(engine: DeepSpeedEngine, path: Path, state: TrainingState) -> None:
    """Load a checkpoint's weights, moments, update count and loss scale into the engine. A collective call.

    Raises CheckpointError on every rank if the files do not fit the model or hold a NaN or an infinity.
    """
    slices = parameter_slices(engine)
    run_on_all_ranks(lambda: _read(engine, path, slices))
    publish_weights(engine)
    set_updates_made(engine, state.updates)
    set_loss_scaler_state(engine, state.loss_scale)


def _read(engine: DeepSpeedEngine, path: Path, slices: list[ParameterSlice]) -> None:
    """Copy this rank's elements from the files into the optimizer's tensors. Raises CheckpointError."""
    shapes = shapes_of(engine)
    for file_name in TENSOR_FILES:
        with TensorFile(path / file_name) as file:
            if file.shapes != shapes:
                raise CheckpointError(
                    f"{path / file_name} holds other tensors than this model. Use another run.output."
                )

            # The targets are views of the optimizer's own tensors, so copying into them loads the optimizer.
            for part in slices:
                target_N = values_of(part, file_name)
                values_N = file.read(part.name, part.start, target_N.numel())
                _check_finite(path / file_name, part.name, values_N)
                target_N.copy_(values_N)
                progress()

            # The model computes with its own copy of the weights, except in fp32 at stage 0.
            if file_name == WEIGHTS_FILE:
                _read_whole(engine, file)


def _check_finite(path: Path, name: str, values_N: Tensor) -> None:
    """Raise CheckpointError if a tensor holds a NaN or an infinity, from which no later step could recover."""
    if not bool(torch.isfinite(values_N).all()):
        raise CheckpointError(
            f"{path} holds values of {name} that are not finite. Delete {path.parent}, so that the run resumes from an "
            "older checkpoint, or use another run.output."
        )


def _read_whole(engine: DeepSpeedEngine, file: TensorFile) -> None:
    """Copy all weights into the model itself, which computes with its own copy in its own precision.

    Partitioned parameters (stage 3) are skipped: `publish_weights` gathers them from the ranks.
    """
    for name, parameter in named_parameters(engine):
        if not is_partitioned(parameter):
            values_N = file.read(name, 0, parameter.numel())
            parameter.data.copy_(values_N.view(parameter.shape))
