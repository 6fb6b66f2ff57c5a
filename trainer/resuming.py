"""What a run goes on with, what may not have changed under it, and what has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from schemas import storage
from schemas.errors import CheckpointError
from trainer import checkpoints, saving
from trainer.checkpoints import TrainingState
from trainer.phases import Phase
from trainer.recipe_changes import RecipeChange, changes_between, flatten, shown
from trainer.recipe_sections import Recipe
from trainer.stream.reading import PairFolder
from trainer.trouble import History

Found = tuple[Path, TrainingState, list[str]]
"""A checkpoint that verifies, its state, and what was wrong with newer ones."""
WHOLE_RUN = ("vocabulary", "seed", "model", "optimizer")  # what no phase may change
HISTORY = "recipe_history.jsonl"
"""In a run's folder, one object a line: the step after which a key of the recipe changed, both values."""
KEYS = {
    "weights": "data.weights",
    "vocabulary": "the vocabulary of data.pairs",
    "seed": "run.seed",
    "optimizer": "optimizer.kind",
    "global_batch": "batch.global_batch or batch.global_tokens",
    "steps_before": "the first step of this phase",
}
"""What the recipe calls an entry of an identity; `model` and `masking` are sections of it."""


def identity(recipe: Recipe, phase: Phase, folders: list[PairFolder]) -> dict[str, Any]:
    """What may not change under a run: anything here decides rows, masks or weights."""
    return {
        "data": [folder.manifest.fingerprint for folder in folders],
        "weights": phase.recipe.data.weights,
        "vocabulary": folders[0].vocabulary.fingerprint,
        "seed": recipe.run.seed,
        "model": recipe.model.model_dump(exclude_none=True, exclude={"init_from", "vocabulary"}),
        "optimizer": phase.recipe.optimizer.kind,
        "masking": phase.recipe.masking.model_dump(),
        "global_batch": phase.recipe.batch.size,
        "steps_before": phase.before,
    }


def resume(
    engine: DeepSpeedEngine, recipe: Recipe, phase: Phase, folders: list[PairFolder], found: Found | None
) -> TrainingState:
    """Return the state to go on from in this phase, its weights loaded; a fresh state when there is no checkpoint.

    Raises CheckpointError when the data, or a key that must stay, is not what the run began with.
    """
    now = identity(recipe, phase, folders)
    values = flatten(recipe.model_dump(exclude_none=True))
    names = [folder.folder for folder in folders]
    if found is None:
        return TrainingState(step=0, tokens=0, seconds=0.0, identity=now, recipe=values, folders=names)

    path, state, _ = found
    begins = state.step == phase.before
    check_unchanged(path, state, now, names, WHOLE_RUN if begins else tuple({*state.identity, *now}))
    saving.load(engine, path, state)

    changes = changes_between(state.recipe, values, state.step) if state.recipe else []
    update: dict[str, Any] = {
        "recipe": values,
        "folders": names,
        "changes": [*state.changes, *changes],
        "resumed_at": [*state.resumed_at, *([state.step] if state.step else [])],
    }
    if begins:
        update |= {"identity": now, "left_out": 0, "trouble": History()}
    return state.model_copy(update=update)


def check_unchanged(
    path: Path, state: TrainingState, now: dict[str, Any], folders: list[str], names: tuple[str, ...]
) -> None:
    """Compare the named entries of the run's identity with those of now.

    Raises CheckpointError that names each key with both values, and for data the folders with their fingerprints.
    """
    if "data" in names and state.identity.get("data") != now["data"]:
        before = _data(state.folders, state.identity.get("data") or [])
        raise CheckpointError(
            f"{path} was trained on other data: data.pairs was {before}, is {_data(folders, now['data'])}. "
            "Put the data back, or give another run.output."
        )
    others = [name for name in names if name != "data"]
    checkpoints.check_identity(path, _by_key(state.identity, others), _by_key(now, others))


def _by_key(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return entries of an identity by the recipe's full names for them."""
    return flatten({KEYS.get(name, name): values[name] for name in names if values.get(name) is not None})


def _data(folders: list[str], fingerprints: list[str]) -> str:
    """Example: `out/pairs (fingerprint 53a1...)`; only fingerprints when the folders are not known."""
    if len(folders) != len(fingerprints):
        return f"fingerprint {', '.join(fingerprints) or 'unknown'}"
    pairs = zip(folders, fingerprints, strict=True)
    return ", ".join(f"{folder} (fingerprint {fingerprint})" for folder, fingerprint in pairs)


def announce(phase: Phase, state: TrainingState, found: Found) -> None:
    """Print on rank 0 where the run resumes and what changed in its recipe."""
    if dist.get_rank() != 0:
        return
    path, _, faults = found
    for fault in faults:
        print(f"Passed over a checkpoint: {fault}.", flush=True)

    unit = "row" if phase.recipe.batch.global_tokens is None else "token"
    place = (state.step - phase.before + state.left_out) * phase.recipe.batch.size
    print(f"Resuming from {path}: step {state.step}, {unit} {place:,}.", flush=True)

    for change in new_changes(state, found):
        before, now = shown(change.before), shown(change.now)
        print(f"The recipe changed: {change.key} was {before}, is {now} from step {state.step + 1} on.", flush=True)


def new_changes(state: TrainingState, found: Found) -> list[RecipeChange]:
    """Return the changes that came with this resume."""
    return state.changes[len(found[1].changes) :]


def write_history(run: str, changes: list[RecipeChange]) -> None:
    """Write RUN/recipe_history.jsonl; a run whose recipe never changed has none."""
    path = Path(run) / HISTORY
    if changes or path.exists():
        lines = [json.dumps(change.model_dump()) for change in changes]
        storage.publish(str(path), "".join(line + "\n" for line in lines).encode())
