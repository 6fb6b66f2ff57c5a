"""Which phase a run resumes in if its evaluation between two phases was interrupted, and how a rerun is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from schemas.errors import StorageError
from schemas.manifest import read_manifest
from tests.trainer.one_rank import group_of_one, small_recipe
from trainer.checkpoint.layout import add_evaluation, checkpoint_path, read_evaluation
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.config.phases import phases_of
from trainer.config.schema import PhaseSection, Recipe
from trainer.evaluation_rerun import phase_to_resume, record_rerun
from trainer.metrics.log import MetricsLog

FIGURES = {"eval_mlm_loss": 2.0}


@pytest.fixture
def recipe(tmp_path: Path, pairs: Path) -> Recipe:
    evaluation = ("evaluation.pairs=/held_out", "evaluation.every=4", "checkpoint.every=4")
    recipe = small_recipe(
        f"run.output={tmp_path}", f"data.pairs={pairs}", *evaluation, "run.max_steps=30", "schedule.warmup_steps=4"
    )
    return recipe.model_copy(update={"phases": [PhaseSection(steps=10) for _ in range(3)]})


def found(recipe: Recipe, step: int, evaluation_pairs: str | None = "/held_out") -> FoundCheckpoint:
    path = checkpoint_path(recipe.run.folder, step)
    path.mkdir(parents=True, exist_ok=True)
    recorded: dict[str, Any] = {} if evaluation_pairs is None else {"evaluation.pairs": evaluation_pairs}
    (folder,) = recipe.data.folders
    identity = {"data": [read_manifest(folder, "pairs").fingerprint]}
    state = TrainingState(step=step, tokens=1, seconds=1.0, identity=identity, recipe=recorded)
    return FoundCheckpoint(path, state, [])


def test_a_phase_returns_only_for_an_evaluation_that_was_due(recipe: Recipe) -> None:
    phases = phases_of(recipe)

    def resumed(checkpoint: FoundCheckpoint | None) -> int:
        return phases.index(phase_to_resume(recipe, phases, checkpoint))

    with group_of_one():
        assert resumed(None) == 0
        assert [resumed(found(recipe, step)) for step in (8, 12, 30)] == [0, 1, 2], "not between phases"
        assert resumed(found(recipe, 10)) == 0 and resumed(found(recipe, 20)) == 1
        assert resumed(found(recipe, 10, evaluation_pairs=None)) == 1, "none was due"

        of_other_rows = found(recipe, 10)
        of_other_rows.state.identity["data"] = ["of pairs that are gone"]
        assert resumed(of_other_rows) == 1

        checkpoint = found(recipe, 10)
        add_evaluation(checkpoint.path, FIGURES)
        assert resumed(checkpoint) == 1


def test_a_rerun_whose_line_cannot_be_written_is_repeated(recipe: Recipe) -> None:
    class Amended:
        def __init__(self, error: Exception | None = None):
            self.error = error
            self.figures: dict[str, Any] = {}

        def amend(self, step: int, figures: dict[str, Any]) -> None:
            if self.error is not None:
                raise self.error
            self.figures = figures

    path = found(recipe, 8).path
    with pytest.raises(StorageError):
        record_rerun(recipe.run.folder, 8, FIGURES, {}, cast(MetricsLog, Amended(StorageError("full"))))
    assert read_evaluation(str(path)) == {}

    metrics = Amended()
    record_rerun(recipe.run.folder, 8, FIGURES, {"loss_doctor": "copying"}, cast(MetricsLog, metrics))
    assert metrics.figures == FIGURES | {"loss_doctor": "copying"}
    assert read_evaluation(str(path)) == FIGURES
