"""What a run continues with, what may not have changed under it, and what has."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from pydantic import ValidationError

from schemas import storage
from schemas.errors import CheckpointError
from trainer.anomaly import AnomalyHistory
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint import sharded as saving
from trainer.checkpoint.layout import TrainingState
from trainer.config.changes import RecipeChange, changes_between, flatten, shown
from trainer.config.phases import Phase
from trainer.config.public import changes_without_secrets, without_secret_keys
from trainer.config.schema import Recipe
from trainer.data.dataset import PairFolder
from trainer.distributed.collectives import run_on_rank_0

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
        "steps_before": phase.steps_before,
    }


def resume(
    engine: DeepSpeedEngine, recipe: Recipe, phase: Phase, folders: list[PairFolder], found: Found | None
) -> TrainingState:
    """Return the state to go on from in this phase, its weights loaded; a fresh state when there is no checkpoint.

    Raises CheckpointError when the data, or a key that must stay, is not what the run began with.
    """
    now = identity(recipe, phase, folders)
    values = recorded(recipe.model_dump(exclude_none=True))
    names = [folder.folder for folder in folders]
    if found is None:
        return TrainingState(step=0, tokens=0, seconds=0.0, identity=now, recipe=values, folders=names)

    path, state, _ = found
    begins = state.step == phase.steps_before
    check_unchanged(path, state, now, names, WHOLE_RUN if begins else tuple({*state.identity, *now}))
    saving.load_checkpoint(engine, path, state)

    before = state.recipe or run_on_rank_0(lambda: unrecorded_recipe(recipe.run.folder))
    changes = changes_between(without_secret_keys(before), values, state.step) if before else []
    update: dict[str, Any] = {
        "recipe": values,
        "folders": names,
        "changes": [*state.changes, *changes],
        "resumed_at": [*state.resumed_at, *([state.step] if state.step else [])],
    }
    if begins:
        update |= {"identity": now, "skipped_batches": 0, "anomaly": AnomalyHistory()}
    return state.model_copy(update=update)


def recorded(content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's values by their full names, as checkpoints hold them: without secrets."""
    return without_secret_keys(flatten(content))


def unrecorded_recipe(run: str) -> dict[str, Any]:
    """Return the values that a run had when its checkpoint was saved, for a checkpoint that holds none.

    RUN/recipe.toml has them until the first resume writes the new ones there. From then on they are what is left when
    the changes in RUN/recipe_history.jsonl are taken back. Returns nothing, and says so, when the file cannot be read.
    """
    path = Path(run) / "recipe.toml"
    try:
        values = recorded(with_former_defaults(tomllib.loads(path.read_text())))
        history = [RecipeChange.model_validate_json(line) for line in _lines(Path(run) / HISTORY)]
    except (OSError, ValueError) as error:
        print(f"{path} cannot be read ({error}), so what changed in the recipe is not known.", flush=True)
        return {}

    for change in reversed(history):
        if change.before is None:
            values.pop(change.key, None)
        else:
            values[change.key] = change.before
    return values


def with_former_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with what it left to defaults, as they were when it could not name them.

    schedule.decay_from is the key that recipes got later, and without it every schedule decayed from the end of
    warm-up. That is its default today, too, but today's BERT, ALBERT and LAMB recipes set it to "start".
    """
    try:
        return Recipe.model_validate(content).model_dump(exclude_none=True)
    except ValidationError:
        schedule = {"decay_from": "warmup"} | content.get("schedule", {})
        return content | {"schedule": schedule}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


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
    place = (state.step - phase.steps_before + state.skipped_batches) * phase.recipe.batch.size
    print(f"Resuming from {path}: step {state.step}, {unit} {place:,}.", flush=True)

    for change in changes_without_secrets(new_changes(state, found)):
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
