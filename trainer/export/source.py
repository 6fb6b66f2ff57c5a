"""Finds the checkpoint to export: the newest, the best or a given step, in a local run folder or at a URL."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from schemas import storage
from schemas.errors import CheckpointError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.checkpoint.identity import check_identity
from trainer.checkpoint.layout import (
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    newest_sound_checkpoint,
    read_state,
    steps_saved,
)
from trainer.checkpoint.url_checkpoints import bring_checkpoint, bring_run
from trainer.config.record import flatten
from trainer.config.schema import Recipe
from trainer.config.sections import START_KEYS


def check_saved(run: str, step: int | None) -> None:
    """Raise UsageError if a run, which may be a URL, has no checkpoint, or none of this step."""
    with storage.storage_errors_of(run):
        steps = steps_saved(run)

    if not steps:
        raise UsageError(f"{run} holds no checkpoint. Give the run.output of a recipe that has been trained.")
    if step is not None and step not in steps:
        raise UsageError(f"{run} holds no checkpoint of step {step}. It holds {', '.join(map(str, steps))}.")


def step_with_lowest_loss(run: str) -> int:
    """Return the step with the lowest loss on held-out pairs. Raises UsageError if no checkpoint was evaluated."""
    with storage.storage_errors_of(run):
        step = best_step(run)
    if step is None:
        raise UsageError(
            f"--best: no checkpoint of {run} was evaluated. Train with evaluation.pairs, or choose one with --step."
        )
    return step


@contextlib.contextmanager
def local_copy(run: str, step: int | None, others: Sequence[int] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield a local folder with the run, and what was wrong with newer checkpoints that were passed over.

    A local run's own folder is used. For a run at a URL, it is a temporary copy of what an export needs: the checkpoint
    of `step`, or the newest that verifies, and those of the steps `others`. Raises CheckpointError and StorageError.
    """
    if storage.is_local(run):
        yield run, []
        return

    with tempfile.TemporaryDirectory() as folder:
        with storage.storage_errors_of(run):
            for other in others:
                bring_checkpoint(run, folder, other)
            faults = bring_run(run, folder, step)
        yield folder, faults


def choose_checkpoint(run: str, step: int | None, faults: list[str]) -> Path:
    """Return the checkpoint to export from a local folder.

    faults: what `local_copy` found wrong with newer checkpoints. Raises CheckpointError if the checkpoint of `step`
    does not verify, or without a step, if the newest does not: an older one is exported only if its step is given.
    """
    if step is None:
        return _newest_checkpoint(run, faults)

    path = checkpoint_path(run, step)
    fault = fault_of_checkpoint(path)
    if fault is not None:
        raise CheckpointError(f"{path} does not verify: {fault}. Export another step.")
    return path


def _newest_checkpoint(run: str, faults: list[str]) -> Path:
    newest_sound = newest_sound_checkpoint(run)
    assert newest_sound is not None  # check_saved has found a checkpoint
    path, damaged = newest_sound

    all_faults = [*faults, *damaged]
    if all_faults:
        raise CheckpointError(
            f"The newest checkpoint does not verify: {'; '.join(all_faults)}. "
            f"To export the newest one that does, add --step {read_state(path).step}."
        )
    return path


def check_belongs(path: Path, recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Raise CheckpointError unless a checkpoint was trained with the run folder's [model] and vocabulary."""
    saved_identity = read_state(path).identity
    current = {
        "model": recipe.model.model_dump(exclude_none=True, exclude={*START_KEYS, "vocab_size"}),
        "vocabulary": vocabulary.fingerprint,
    }

    # An export depends only on these two entries of the checkpoint's identity.
    saved = {name: saved_identity.get(name) for name in current}
    check_identity(path, flatten(saved), flatten(current))
