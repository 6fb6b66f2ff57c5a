"""Checkpoints as a run leaves them, of a few bytes that no engine has written."""

from __future__ import annotations

from pathlib import Path

from schemas import storage
from tests.trainer.one_rank import group_of_one
from trainer.checkpoint.format import (
    EVALUATION,
    MANIFEST,
    STATE,
    FoundCheckpoint,
    add_evaluation,
    checkpoint_path,
    describe,
    manifest_of,
)
from trainer.checkpoint.rank_files import rank_file
from trainer.checkpoint.resume import find_checkpoint
from trainer.checkpoint.run_folder import NodeFolders
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.write import partial_path, publish

WEIGHTS_FILE = rank_file(0)


def seal(folder: Path) -> None:
    """Write a manifest that vouches for what lies there."""
    files = sorted(path for path in folder.iterdir() if path.name not in (MANIFEST, EVALUATION))
    storage.publish(str(folder / MANIFEST), manifest_of([describe(file) for file in files]))


def written(run: Path, step: int, weights: bytes = b"weights", loss: float | None = None) -> Path:
    """A checkpoint's files as they are before it is published, without a manifest."""
    partial = partial_path(checkpoint_path(str(run), step))
    partial.mkdir(parents=True)
    (partial / WEIGHTS_FILE).write_bytes(weights * 100)
    (partial / STATE).write_text(TrainingState(step=step, tokens=1, seconds=0.5, identity={}).model_dump_json())
    if loss is not None:
        add_evaluation(partial, {"eval_mlm_loss": loss})
    return partial


def saved(run: Path, step: int, weights: bytes = b"weights", loss: float | None = None) -> Path:
    """A published checkpoint."""
    partial = written(run, step, weights, loss)
    seal(partial)
    publish(partial, checkpoint_path(str(run), step))
    return checkpoint_path(str(run), step)


def found_in(run: Path) -> FoundCheckpoint | None:
    """The checkpoint from which a run of one rank resumes."""
    with group_of_one():
        return find_checkpoint(str(run), NodeFolders([0]))
