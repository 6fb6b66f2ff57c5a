"""Finds the newest checkpoint that verifies, loads it, and checks and records what has changed since it was saved.

Files are hashed when a run looks for its newest checkpoint, each rank some of them. If any byte is wrong, the run
resumes from an older checkpoint. Each rank then reads the elements that it holds.

A recipe's values fall into two kinds. Those in the run's identity determine rows, masks or weights, and a run that
resumes with another value is refused (state.py). All others may change at a resume; each change is logged and kept in
the checkpoints, the report and RUN/recipe_history.jsonl.

Suffixes: N float32 elements.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, DataError, StorageError
from trainer.checkpoint.format import (
    FoundCheckpoint,
    checkpoint_path,
    fault_of_checkpoint,
    newest_sound,
    steps_named,
    steps_saved,
)
from trainer.checkpoint.rank_files import WEIGHTS, RankFiles
from trainer.checkpoint.remote import RunUrl
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.snapshot import shapes_of
from trainer.checkpoint.state import (
    IDENTITY_OF_RUN,
    AnomalyHistory,
    TrainingState,
    check_unchanged,
    identity,
    read_state,
)
from trainer.config.phases import Phase
from trainer.config.record import HISTORY, RecipeChange, changes_between, flatten, shown_value
from trainer.config.schema import Recipe
from trainer.config.sections import START_KEYS
from trainer.data.counts import identity_of_counts
from trainer.data.folder import PairFolder
from trainer.data.share import places_before
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.distributed.deepspeed_internals import is_partitioned, publish_weights, set_loss_scaler_state
from trainer.distributed.watchdog import progress
from trainer.distributed.zero import (
    ParameterSlice,
    named_parameters,
    parameter_slices,
    set_updates_made,
)
from trainer.logs import logger

WITHOUT_EFFECT = frozenset({*(f"model.{name}" for name in START_KEYS), "data.statistics"})
"""Keys that only the first weights depend on. They may change, because what they name may be gone by then."""


# Finding


def find_checkpoint(run: str, folders: NodeFolders, url: RunUrl | None = None) -> FoundCheckpoint | None:
    """Return the newest checkpoint that verifies, or None if there is no checkpoint. A collective call.

    run: the local folder. url: the run's URL, from which the checkpoint is brought to each machine. All ranks take the
    same checkpoint. Raises CheckpointError on every rank if there are checkpoints but none verifies.
    """
    steps = run_on_rank_0(lambda: _known_steps(run, folders, url))
    if not steps:
        return None
    try:
        name = run if url is None else url.url
        step, faults = newest_sound(name, steps, lambda step: _fault_of(run, step, folders, url))
    except CheckpointError as error:
        error.everywhere = True
        raise

    # Machines may have their folders at different paths, so each rank builds its own path.
    path = checkpoint_path(run, step)
    return FoundCheckpoint(path, run_on_rank_0(lambda: read_state(path)), faults)


def _known_steps(run: str, folders: NodeFolders, url: RunUrl | None) -> list[int]:
    """Return the steps of the local folder, if all ranks share it, and of the URL."""
    local = [] if folders.several else steps_named(run)
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


# Resuming


def resume(
    engine: DeepSpeedEngine, recipe: Recipe, phase: Phase, folders: list[PairFolder], found: FoundCheckpoint | None
) -> TrainingState:
    """Load a checkpoint into the engine and return the state that training starts from. A collective call.

    found: the checkpoint; None returns the state of a new run. folders: of the phase's pairs. Raises CheckpointError if
    the data or a key that must not change differs from what the run began with, or if the checkpoint cannot be loaded.
    """
    now = identity(recipe, phase, folders)
    counts = run_on_rank_0(lambda: identity_of_known_counts(recipe, found))
    if counts is not None:
        now["statistics"] = counts

    recipe_values = flatten(recipe.model_dump(exclude_none=True))
    folder_names = [folder.folder for folder in folders]
    if found is None:
        return TrainingState(step=0, tokens=0, seconds=0.0, identity=now, recipe=recipe_values, folders=folder_names)

    state = found.state
    phase_begins = state.step == phase.steps_before
    compared = IDENTITY_OF_RUN if phase_begins else tuple(sorted({*state.identity, *now}))
    check_unchanged(found.path, state, now, folder_names, compared)
    load_checkpoint(engine, found.path, state)

    new_changes = changes_between(state.recipe, recipe_values, state.step)
    update: dict[str, Any] = {
        "recipe": recipe_values,
        "folders": folder_names,
        "changes": [*state.changes, *new_changes],
    }
    if state.step > 0:
        update["resumed_at"] = [*state.resumed_at, state.step]
    if phase_begins and state.step > 0:
        update["earlier_data"] = list(dict.fromkeys([*state.earlier_data, *state.identity["data"]]))
    if phase_begins:
        update |= {"identity": now, "skipped_batches": 0, "anomaly": AnomalyHistory()}
    return state.model_copy(update=update)


def identity_of_known_counts(recipe: Recipe, found: FoundCheckpoint | None) -> str | None:
    """Return the identity of the counts that a run's starting weights come from, or None if there are no counts.

    A run that resumes does not need the counts, because only its first weights were computed from them. So if they
    cannot be read, or are no longer in the recipe, they are assumed to be those that the run began with.
    """
    if found is None:
        return identity_of_counts(recipe)

    # None in a run that began without counts.
    recorded = found.state.identity.get("statistics")
    if recorded is None or recipe.data.statistics is None:
        return recorded

    try:
        return identity_of_counts(recipe)
    except (DataError, StorageError) as error:
        logger.info("%s The run resumes without them: only its beginning needed them.", error)
        return recorded


def write_history(run: str, changes: list[RecipeChange]) -> None:
    """Write RUN/recipe_history.jsonl, unless the recipe has never changed. Raises StorageError."""
    path = Path(run) / HISTORY
    if changes or path.exists():
        lines = [json.dumps(change.model_dump()) + "\n" for change in changes]
        storage.publish(str(path), "".join(lines).encode())


# The log


def announce(phase: Phase, state: TrainingState, found: FoundCheckpoint, resumes: bool) -> None:
    """Log which checkpoints were passed over, where the run resumes, and what changed in its recipe.

    resumes: False when one phase follows another in the same process; the position is then not logged.
    """
    for fault in found.faults:
        logger.info("Passed over a checkpoint: %s.", fault)

    if resumes:
        unit = "row" if phase.recipe.batch.global_tokens is None else "token"
        batches_read = state.step - phase.steps_before + state.skipped_batches
        position = places_before(phase.recipe.batch, batches_read)
        logger.info("Resuming from %s: step %d, %s %s.", found.path, state.step, unit, f"{position:,}")

    for change in state.changes[len(found.state.changes) :]:
        effect = f" from step {state.step + 1} on."
        if change.key in WITHOUT_EFFECT:
            effect = ". This has no effect on a run that has begun: its first weights were made with the former value."
        before, now = shown_value(change.before), shown_value(change.now)
        logger.info("The recipe changed: %s was %s, is %s%s", change.key, before, now, effect)
