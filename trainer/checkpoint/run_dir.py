"""The folder of a run: who may write into it, and what lies there besides metrics and checkpoints.

A run writes into run.output only if the folder is new, empty or a run's own, because it replaces files such as
metrics.jsonl there. A folder counts as a run's own by marks that only a run leaves: a lock file that names its process,
or a checkpoint with our manifest.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from schemas import storage, vocabulary
from schemas.errors import StorageError, UsageError
from trainer.checkpoint import layout, publication
from trainer.checkpoint.manifest import MANIFEST
from trainer.checkpoint.parts import PARTS_FOLDER
from trainer.checkpoint.run_lock import OWNER, RUN_LOCK_FILE, RunLock, hold
from trainer.config.schema import Recipe
from trainer.config.text import dump_recipe
from trainer.data.dataset import PairFolder
from trainer.metrics import tensorboard
from trainer.metrics.unigram import UNIGRAM_FILE

RECIPE = "recipe.toml"

FILES = (
    RECIPE,
    "recipe_history.jsonl",
    "micro_batches.json",
    UNIGRAM_FILE,
    "metrics.jsonl",
    "ranks.json",
    "report.html",
    "run_id",
    RUN_LOCK_FILE,
    OWNER,
)
FOLDERS = (layout.CHECKPOINTS_FOLDER, tensorboard.FOLDER, vocabulary.VOCABULARY_FOLDER, PARTS_FOLDER, "profile")

_HARMLESS = re.compile(r"\..*|lost\+found|.*\.(log|out|err)")
"""What schedulers, shells and file systems may put into a folder before a run begins. A run never touches it."""


def claim(run: str) -> RunLock:
    """Lock the run's folder until the result is closed, or the process ends in any way. One rank per folder calls this.

    Raises UsageError if a live run holds the folder, if it belongs to something else, or if a path in it is of the
    wrong kind, all before anything is changed. Raises StorageError if nothing can be written there.
    """
    check_run_folder(run)
    try:
        Path(run, layout.CHECKPOINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        lock = hold(run)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"run.output {run} cannot be a folder: {error.strerror}. Choose another path.") from error
    except OSError as error:
        raise StorageError(
            f"run.output {run} cannot be written: {error.strerror}. Check the disk and your permissions, or choose "
            "another folder."
        ) from error

    publication.remove_partial(run)
    return lock


def is_unused(run: str) -> bool:
    """Return whether nothing of a run, or of anything else that is not harmless, lies in a folder yet."""
    if not Path(run).is_dir():
        return True
    return not any(not _HARMLESS.fullmatch(name) for name in storage.names(run))


def remove_beginnings(run: str) -> None:
    """Remove what a start wrote into an unused folder, if it was refused, or ended, before training began.

    The process must still hold the folder: its lock file is removed as well, and another process that is about to lock
    it looks again (run_lock.py).
    """
    # Written when training begins, or brought from the run's URL.
    if Path(run, RECIPE).exists():
        return

    with contextlib.suppress(OSError):
        # This fails if there are checkpoints, and then nothing else is removed.
        Path(run, layout.CHECKPOINTS_FOLDER).rmdir()
        for name in FILES:
            if name != OWNER:  # which the lock removes itself
                Path(run, name).unlink(missing_ok=True)


def remove_empty(run: str) -> None:
    """Remove the run's folder if nothing is in it."""
    with contextlib.suppress(OSError):
        Path(run).rmdir()


def check_run_folder(run: str) -> None:
    """Raise UsageError if a folder is not a run's, or if a path in it is of the wrong kind."""
    if not Path(run).is_dir():
        return

    names = [name for name in storage.names(run) if not _HARMLESS.fullmatch(name)]
    if names and not _is_of_a_run(run, names):
        raise UsageError(
            f"run.output {run} holds files of something else ({', '.join(names[:3])}). Choose a new or empty folder, "
            "or that of a run."
        )

    for name in names:
        path = Path(run, name)
        if name in FILES and path.is_dir():
            raise UsageError(
                f"{path} is a folder, but a run keeps a file there. Move it away, or choose another run.output."
            )
        if name in FOLDERS and not path.is_dir():
            raise UsageError(
                f"{path} is a file, but a run keeps a folder there. Move it away, or choose another run.output."
            )


def _is_of_a_run(run: str, names: list[str]) -> bool:
    """Return whether a run has left its mark in a folder that holds these names."""
    # A file that cannot be read, or is not text or JSON, is no mark.
    with contextlib.suppress(OSError, ValueError):
        lock = Path(run, RUN_LOCK_FILE)
        text = lock.read_text() if lock.exists() else ""
        if re.match(r"process \d+ on ", text):
            return True
        if not text and _is_of_a_run_killed_at_once(run, names):
            return True

    for manifest in Path(run, layout.CHECKPOINTS_FOLDER).glob(f"step-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            if {"format_version", "files"} <= set(json.loads(manifest.read_text())):
                return True
    return False


def _is_of_a_run_killed_at_once(run: str, names: list[str]) -> bool:
    """Return whether nothing is there but what `claim` creates first: an empty lock and an empty folder."""
    if not set(names) <= {RUN_LOCK_FILE, layout.CHECKPOINTS_FOLDER}:
        return False
    return not storage.names(str(Path(run, layout.CHECKPOINTS_FOLDER)))


def describe_run(recipe: Recipe, folder: PairFolder) -> None:
    """Write what an export needs besides a checkpoint: the resolved recipe and a copy of the vocabulary.

    Raises StorageError.
    """
    run = Path(recipe.run.folder)
    storage.publish(str(run / RECIPE), dump_recipe(recipe).encode())

    source = storage.join(folder.folder, vocabulary.VOCABULARY_FOLDER)
    for name in storage.names(source):
        content = storage.read(storage.join(source, name))
        storage.publish(str(run / vocabulary.VOCABULARY_FOLDER / name), content)
