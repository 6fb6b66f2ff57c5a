"""What a run goes on with, and what may not have changed under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed import DeepSpeedEngine

from trainer import checkpoints, saving
from trainer.checkpoints import TrainingState
from trainer.phases import Phase
from trainer.recipe_sections import Recipe
from trainer.stream.reading import PairFolder
from trainer.trouble import History

Found = tuple[Path, TrainingState, list[str]]
"""A checkpoint that verifies, its state, and what was wrong with newer ones."""
WHOLE_RUN = ("vocabulary", "seed", "model", "optimizer")  # what no phase may change


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
    """The state to go on from in this phase, its weights loaded; a fresh state when the run holds no checkpoint."""
    now = identity(recipe, phase, folders)
    if found is None:
        return TrainingState(step=0, tokens=0, seconds=0.0, identity=now)
    path, state, faults = found
    begins = state.step == phase.before
    kept = WHOLE_RUN if begins else tuple({*state.identity, *now})
    checkpoints.check_identity(
        path, {name: state.identity.get(name) for name in kept}, {name: now.get(name) for name in kept}
    )
    saving.load(engine, path, state)
    if dist.get_rank() == 0:
        unit = "row" if phase.recipe.batch.global_tokens is None else "token"
        place = (state.step - phase.before) * phase.recipe.batch.size
        for fault in faults:
            print(f"Passed over a checkpoint: {fault}.", flush=True)
        print(f"Resuming from {path}: step {state.step}, {unit} {place:,}.", flush=True)
    fresh = {"identity": now, "left_out": 0, "trouble": History()} if begins else {}
    return state.model_copy(update=fresh | {"resumed_at": [*state.resumed_at, state.step]})
