"""Finds the checkpoint to export, in a local run folder or at a URL, and reads its weights.

It is the newest, the best or that of a step, or for `export --average K` the mean of the last K of them. The mean of
late checkpoints is closer to the center of the loss valley that a run moves in, so it often scores better than the last
of them, especially before the learning rate has decayed (Izmailov et al., arXiv:1803.05407). NeoBERT was evaluated with
such means.
"""

from __future__ import annotations

import contextlib
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from torch import Tensor

from schemas import storage
from schemas.errors import CheckpointError, UsageError
from schemas.vocabulary import Vocabulary
from trainer.checkpoint.format import (
    best_step,
    checkpoint_path,
    fault_of_checkpoint,
    newest_sound_checkpoint,
    read_state,
    steps_saved,
)
from trainer.checkpoint.rank_files import RankFiles
from trainer.checkpoint.remote import bring_run
from trainer.checkpoint.state import check_identity
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


def last_steps(run: str, step: int | None, count: int) -> list[int]:
    """Return the steps of a run's last `count` checkpoints up to `step`, oldest first. step: None for the newest.

    run: a folder or a URL. Raises UsageError if the run keeps fewer.
    """
    with storage.storage_errors_of(run):
        saved = steps_saved(run)
        keep = _kept_by(run)

    # An older checkpoint was kept only because it is the best, and may be from much earlier.
    recent = saved[-keep:]
    steps = [one for one in recent if step is None or one <= step]
    if len(steps) < count:
        until = "" if step is None else f" up to step {step}"
        held = ", ".join(map(str, steps)) or "none"
        others = ""
        if keep < count:
            others = f", or train with checkpoint.keep of at least {count}"
        elif len(recent) >= count:
            others = ", or give a later --step"
        raise UsageError(
            f"--average {count}: {run} keeps {len(steps)} recent checkpoints{until} ({held}), and its checkpoint.keep "
            f"is {keep}. Average fewer{others}."
        )
    return steps[-count:]


def _kept_by(run: str) -> int:
    """Return checkpoint.keep of the run's recipe."""
    recipe = tomllib.loads(storage.read(storage.join(run, "recipe.toml")).decode())
    return recipe["checkpoint"]["keep"]


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
                bring_run(run, folder, other)
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
    newest = newest_sound_checkpoint(run)
    assert newest is not None  # check_saved has found a checkpoint

    all_faults = [*faults, *newest.faults]
    if all_faults:
        raise CheckpointError(
            f"The newest checkpoint does not verify: {'; '.join(all_faults)}. "
            f"To export the newest one that does, add --step {newest.state.step}."
        )
    return newest.path


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


def read_weights(checkpoints: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the float32 weights of a checkpoint, or the mean of several, by name.

    shapes: of the model's parameters. A mean is summed in float64 and rounded once.
    Raises CheckpointError if a checkpoint is malformed or holds other tensors.
    """
    files = [RankFiles(path) for path in checkpoints]
    for one in files:
        if one.shapes != shapes:
            raise CheckpointError(f"{one.folder} holds other tensors than a model of the run's recipe.")
    return {
        name: _mean([one.read(name, 0, prod(shape)) for one in files]).view(shape) for name, shape in shapes.items()
    }


def _mean(tensors: list[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]

    total = tensors[0].double()
    for tensor in tensors[1:]:
        total += tensor
    return (total / len(tensors)).float()
