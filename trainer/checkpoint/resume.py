"""Resumes a run: checks that its identity has not changed, loads the checkpoint, and records what has changed.

A recipe's values fall into two kinds. Those in the run's identity determine rows, masks or weights, and a run that
resumes with another value is refused (identity.py). All others may change at a resume; each change is logged and kept
in the checkpoints, the report and RUN/recipe_history.jsonl.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import DataError, StorageError
from trainer.anomaly import AnomalyHistory
from trainer.checkpoint.identity import IDENTITY_OF_RUN, check_unchanged, identity
from trainer.checkpoint.read import load_checkpoint
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.config.phases import Phase
from trainer.config.record import (
    RecipeChange,
    changes_between,
    flatten,
    shown_value,
)
from trainer.config.schema import Recipe
from trainer.config.sections import START_KEYS
from trainer.data.counts import identity_of_counts
from trainer.data.folder import PairFolder
from trainer.data.share import places_before
from trainer.distributed.collectives import run_on_rank_0
from trainer.logs import logger

HISTORY = "recipe_history.jsonl"
"""A file in a run's folder with one JSON object (a RecipeChange) per line."""

WITHOUT_EFFECT = frozenset({*(f"model.{name}" for name in START_KEYS), "data.statistics"})
"""Keys that only the first weights depend on. They may change, because what they name may be gone by then."""


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
        return TrainingState(
            step=0,
            tokens=0,
            seconds=0.0,
            identity=now,
            recipe=recipe_values,
            folders=folder_names,
        )

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

    new_changes = state.changes[len(found.state.changes) :]
    for change in new_changes:
        _announce_change(change, state.step + 1)


def _announce_change(change: RecipeChange, first_step: int) -> None:
    """Log a change of the recipe. first_step: the first one with the new value."""
    told = f"The recipe changed: {change.key} was {shown_value(change.before)}, is {shown_value(change.now)}"
    if change.key in WITHOUT_EFFECT:
        logger.info(
            "%s. This has no effect on a run that has begun: its first weights were made with the former value.", told
        )
    else:
        logger.info("%s from step %d on.", told, first_step)
