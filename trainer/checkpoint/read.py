"""Finds the newest checkpoint that verifies, and loads it: each rank reads the elements that it holds.

Files are hashed when a run looks for its newest checkpoint, each rank some of them. If any byte is wrong, the run
resumes from an older checkpoint.

Suffixes: N float32 elements.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas.errors import CheckpointError
from trainer.checkpoint.format import (
    checkpoint_path,
    fault_of_checkpoint,
    none_verifies,
    read_state,
    steps_saved,
    unsealed,
)
from trainer.checkpoint.rank_files import WEIGHTS, RankFiles
from trainer.checkpoint.remote import RunUrl
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.snapshot import shapes_of
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.deepspeed_internals import is_partitioned, set_loss_scaler_state
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    ParameterSlice,
    named_parameters,
    parameter_slices,
    publish_weights,
    set_updates_made,
)


def find_checkpoint(run: str, folders: NodeFolders, url: RunUrl | None = None) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if there is no checkpoint. A collective call.

    run: the local folder. url: the run's URL, from which the checkpoint is brought to each machine. All ranks take the
    same checkpoint. Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    steps = run_on_rank_0(lambda: _known_steps(run, folders, url))
    faults: list[str] = []
    for step in reversed(steps):
        fault = _fault_of(run, step, folders, url)
        if fault is None:
            state = run_on_rank_0(lambda step=step: read_state(checkpoint_path(run, step)))
            faults = [*run_on_rank_0(lambda step=step: unsealed(run, newer_than=step)), *faults]
            # Machines may have their folders at different paths, so each rank builds its own path.
            return FoundCheckpoint(checkpoint_path(run, step), state, faults)
        faults.append(fault)

    faults += run_on_rank_0(lambda: unsealed(run))
    if faults:
        error = none_verifies(run if url is None else url.url, faults)
        error.everywhere = True
        raise error
    return None


def _known_steps(run: str, folders: NodeFolders, url: RunUrl | None) -> list[int]:
    """Return the steps of the local folder, if all ranks share it, and of the URL."""
    local = [] if folders.several else steps_saved(run)
    return sorted({*local, *(steps_saved(url.url) if url is not None else [])})


def _fault_of(run: str, step: int, folders: NodeFolders, url: RunUrl | None) -> str | None:
    """Return what is wrong with a checkpoint on any machine, or None. A collective call."""
    rank = dist.get_rank()
    if url is not None:
        # What is brought is hashed there.
        found = run_on_all_ranks(lambda: url.bring(step) if folders.leads(rank) else None)
    else:
        share = (rank, dist.get_world_size())
        found = run_on_all_ranks(lambda: fault_of_checkpoint(checkpoint_path(run, step), share))
    return next((fault for fault in found if fault is not None), None)


# Loading


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
    files = RankFiles(path)
    if files.shapes != shapes_of(engine):
        raise CheckpointError(f"{path} holds other tensors than this model. Use another run.output.")

    # The targets are views of the optimizer's own tensors, so copying into them loads the optimizer.
    for part in slices:
        for kind, target_N in {WEIGHTS: part.weights, **part.moments}.items():
            values_N = files.read(part.name, part.start, target_N.numel(), kind)
            _check_finite(path, f"{kind} of {part.name}", values_N)
            target_N.copy_(values_N)
            progress()

    # The model computes with its own copy of the weights in its own precision, except in fp32 at stage 0. Partitioned
    # parameters (stage 3) are skipped: `publish_weights` gathers them from the ranks.
    for name, parameter in named_parameters(engine):
        if not is_partitioned(parameter):
            values_N = files.read(name, 0, parameter.numel())
            parameter.data.copy_(values_N.view(parameter.shape))


def _check_finite(path: Path, name: str, values_N: Tensor) -> None:
    """Raise CheckpointError if a tensor holds a NaN or an infinity, from which no later step could recover."""
    if not bool(torch.isfinite(values_N).all()):
        raise CheckpointError(
            f"{path} holds {name} that are not finite. Delete that folder, so that the run resumes from an older "
            "checkpoint, or use another run.output."
        )
