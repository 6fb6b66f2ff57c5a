"""Resumes a run: checks that its identity has not changed, loads the checkpoint, and records what has changed.

A recipe's values fall into two kinds. Those in the run's identity determine rows, masks or weights, and a run that
resumes with another value is refused (identity.py). All others may change at a resume; each change is logged and kept
in the checkpoints, the report and RUN/recipe_history.jsonl.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from deepspeed import DeepSpeedEngine
from pydantic import ValidationError

from schemas import storage
from schemas.errors import DataError, StorageError
from trainer.anomaly import AnomalyHistory
from trainer.checkpoint.identity import IDENTITY_OF_RUN, check_unchanged, identity
from trainer.checkpoint.loading import load_checkpoint
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
from trainer.data.dataset import PairFolder
from trainer.data.ramp import places_before
from trainer.data.statistics import identity_of_counts
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

    new_changes = _changes_since(state, recipe_values, recipe.run.folder)
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

    # None in a run that began without counts, or with a version that did not record them.
    recorded = found.state.identity.get("statistics")
    if recorded is None or recipe.data.statistics is None:
        return recorded

    try:
        return identity_of_counts(recipe)
    except (DataError, StorageError) as error:
        logger.info("%s The run resumes without them: only its beginning needed them.", error)
        return recorded


# What changed


def _changes_since(state: TrainingState, recipe_values: dict[str, Any], run: str) -> list[RecipeChange]:
    """Return how the recipe differs from the one that the checkpoint was saved with. A collective call.

    recipe_values: the recipe's values by full key. run: the run's local folder.
    """
    before = state.recipe
    if not before:
        # Checkpoints of the first version do not hold the recipe. All ranks take this branch together.
        before = run_on_rank_0(lambda: unrecorded_recipe(run))
    if not before:
        return []
    return changes_between(before, recipe_values, state.step)


def unrecorded_recipe(run: str) -> dict[str, Any]:
    """Return the recipe's values by full key at the time when a run saved a checkpoint that does not hold them.

    RUN/recipe.toml has them until the first resume overwrites it. After that, they are recovered by undoing the changes
    listed in RUN/recipe_history.jsonl, the last one first. Logs a warning and returns an empty dict if one of the files
    cannot be read.
    """
    path = Path(run) / "recipe.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        values = flatten(with_former_defaults(content))
        history = _read_history(run)
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s), so what changed in the recipe is not known.", path, error)
        return {}

    for change in reversed(history):
        if change.before is None:
            values.pop(change.key, None)
        else:
            values[change.key] = change.before
    return values


def with_former_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables with the defaults that applied when the recipe was written.

    schedule.decay_from was added later; before, every schedule decayed from the end of warm-up. "warmup" is still its
    default, but the BERT, ALBERT and LAMB recipes now set "start", so the old value must be written out to be compared.
    """
    try:
        return Recipe.model_validate(content).model_dump(exclude_none=True)
    except ValidationError:
        schedule = {"decay_from": "warmup"} | content.get("schedule", {})
        return content | {"schedule": schedule}


def _read_history(run: str) -> list[RecipeChange]:
    """Return all changes, oldest first. Raises OSError or ValueError if the file is damaged."""
    path = Path(run) / HISTORY
    if not path.exists():
        return []
    return [RecipeChange.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]


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
