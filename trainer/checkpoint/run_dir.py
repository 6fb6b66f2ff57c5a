"""The folder of a run: which process may write into it, and its files besides metrics and checkpoints.

A run writes into run.output only if the folder is new, empty or was written by a run, because it replaces files such as
metrics.jsonl there. A folder counts as a run's if it has what only a run leaves: a lock file that names its process, or
a checkpoint with our manifest.
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
from trainer.config.record import dump_recipe
from trainer.config.schema import Recipe
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
WRITTEN_FOLDERS = (tensorboard.FOLDER, vocabulary.VOCABULARY_FOLDER, PARTS_FOLDER, "profile")
"""Folders that training creates, and `claim` does not."""
FOLDERS = (layout.CHECKPOINTS_FOLDER, *WRITTEN_FOLDERS)

_HARMLESS = re.compile(r"\..*|lost\+found|.*\.(log|out|err)")
"""Names that schedulers, shells and file systems may put into a folder before a run begins. A run leaves them alone."""


def claim(run: str) -> RunLock:
    """Lock the run's folder until the result is closed or the process ends. One rank per folder calls this.

    Raises UsageError if a live run holds the folder, if it holds other files than a run's, or if a path in it is of the
    wrong kind, in each case before anything is changed. Raises StorageError if the folder cannot be written.
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
    """Return whether a folder does not exist, or holds only files that may be there before a run begins."""
    if not Path(run).is_dir():
        return True
    return not any(not _HARMLESS.fullmatch(name) for name in storage.names(run))


def remove_beginnings(run: str) -> None:
    """Remove what a run wrote into an unused folder, if it was refused or ended before training began.

    The process must still hold the folder, because the lock file is removed, too. Another process that is about to lock
    that file notices this and tries again (run_lock.py).
    """
    # The recipe is written when training begins, or downloaded from the run's URL. On a node with a separate folder,
    # other folders may show that training began.
    if Path(run, RECIPE).exists() or any(Path(run, name).exists() for name in WRITTEN_FOLDERS):
        return

    with contextlib.suppress(OSError):
        # This fails if there are checkpoints, and then nothing else is removed.
        Path(run, layout.CHECKPOINTS_FOLDER).rmdir()
        for name in FILES:
            if name != OWNER:  # the lock removes this file itself
                Path(run, name).unlink(missing_ok=True)


def remove_empty(run: str) -> None:
    """Remove the run's folder if it is empty."""
    with contextlib.suppress(OSError):
        Path(run).rmdir()


def check_run_folder(run: str) -> None:
    """Raise UsageError if a folder holds other files than a run's, or if a path in it is of the wrong kind."""
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
    """Return whether a folder that holds these names was written by a run."""
    # A file that cannot be read, or is not text or JSON, is no evidence of a run.
    with contextlib.suppress(OSError, ValueError):
        lock = Path(run, RUN_LOCK_FILE)
        text = lock.read_text(encoding="utf-8") if lock.exists() else ""
        if re.match(r"process \d+ on ", text):
            return True
        if not text and _is_of_a_run_killed_at_once(run, names):
            return True

    for manifest in Path(run, layout.CHECKPOINTS_FOLDER).glob(f"step-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            if {"format_version", "files"} <= set(json.loads(manifest.read_text(encoding="utf-8"))):
                return True
    return False


def _is_of_a_run_killed_at_once(run: str, names: list[str]) -> bool:
    """Return whether a folder holds only what `claim` creates first: an empty lock file and an empty folder."""
    if not set(names) <= {RUN_LOCK_FILE, layout.CHECKPOINTS_FOLDER}:
        return False
    return not storage.names(str(Path(run, layout.CHECKPOINTS_FOLDER)))


def describe_run(recipe: Recipe, folder: PairFolder) -> None:
    """Write what an export needs besides a checkpoint: the resolved recipe and a copy of the pairs' vocabulary.

    Raises StorageError.
    """
    run = Path(recipe.run.folder)
    storage.publish(str(run / RECIPE), dump_recipe(recipe).encode())

    source = storage.join(folder.folder, vocabulary.VOCABULARY_FOLDER)
    for name in storage.names(source):
        content = storage.read(storage.join(source, name))
        storage.publish(str(run / vocabulary.VOCABULARY_FOLDER / name), content)
