"""Finds an evaluation that a stop interrupted, and records its rerun as if it had never been interrupted.

A stop ends an evaluation between two batches. The checkpoint and the line of metrics of that step are then written
without its figures. A run that resumes from the checkpoint first evaluates its weights, examines the loss if that is
due, and adds the results to both. This takes the phase that the step belongs to, because the kind of masks and the word
frequencies may be others in the next phase.
"""

from __future__ import annotations

from schemas.errors import ClozelineError
from schemas.manifest import read_manifest
from trainer.checkpoint.format import add_evaluation, checkpoint_path, location, read_evaluation
from trainer.checkpoint.state import FoundCheckpoint, TrainingState
from trainer.config.phases import Phase, phase_after
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.due import evaluation_is_due
from trainer.metrics.log import Figures, MetricsLog


def evaluation_is_missing(run_recipe: Recipe, phase: Phase, step: int) -> bool:
    """Return whether the checkpoint of `step` lacks the evaluation that is due after it. A collective call."""
    if not evaluation_is_due(run_recipe, phase, step):
        return False
    return run_on_rank_0(lambda: not read_evaluation(location(run_recipe.run.folder, step)))


def phase_to_resume(run_recipe: Recipe, phases: list[Phase], checkpoint: FoundCheckpoint | None) -> Phase:
    """Return the phase in which a run resumes: that of the next step, or the one before it to rerun its evaluation.

    A phase that returns for its evaluation takes no further step. A collective call.
    """
    if checkpoint is None:
        return phases[0]

    state = checkpoint.state
    phase = phase_after(phases, state.step)
    if state.step != phase.steps_before or state.step == 0:
        return phase

    # A run that got its held-out pairs only now has no evaluation here, either. It is made in the next phase.
    was_due = state.recipe.get("evaluation.pairs") is not None
    if not was_due or not evaluation_is_missing(run_recipe, phase, state.step):
        return phase

    # So is one whose rows are gone, because a phase that has ended does not need them any more.
    ended = phases[phases.index(phase) - 1]
    return ended if run_on_rank_0(lambda: rows_are_there(ended, state)) else phase


def rows_are_there(phase: Phase, state: TrainingState) -> bool:
    """Return whether the pairs of a phase can be read, and are those that the checkpoint was trained on."""
    try:
        found = [read_manifest(folder, "pairs").fingerprint for folder in phase.recipe.data.folders]
    except ClozelineError:
        return False
    return found == state.identity.get("data")


def record_rerun(run: str, step: int, evaluation: Figures, cause: Figures, metrics: MetricsLog | None) -> None:
    """Add a rerun's figures to the line of metrics and to the checkpoint. Only rank 0 calls this. Raises StorageError.

    cause: what `LossExaminer` returned for them.
    """
    # The checkpoint comes last: as long as it lacks the figures, the next resume repeats all of this.
    if metrics is not None:
        metrics.amend(step, evaluation | cause)
    add_evaluation(checkpoint_path(run, step), evaluation)
