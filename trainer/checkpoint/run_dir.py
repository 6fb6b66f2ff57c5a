"""The folder of a run: who may write into it, and what lies there besides metrics and checkpoints."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from pathlib import Path

from schemas import storage
from schemas.errors import StorageError, UsageError
from schemas.vocabulary import FOLDER
from trainer.checkpoint import layout as checkpoints
from trainer.checkpoint.run_lock import LOCK, OWNER, Held, hold
from trainer.config.schema import Recipe
from trainer.config.text import dump_recipe
from trainer.data.dataset import PairFolder
from trainer.metrics import tensorboard as mirror

FILES = ("recipe.toml", "recipe_history.jsonl", "metrics.jsonl", "report.html", "run_id", LOCK, OWNER)
FOLDERS = (checkpoints.FOLDER, mirror.FOLDER, FOLDER)
_HARMLESS = re.compile(r"\..*|lost\+found|.*\.(log|out|err)")
"""What schedulers, shells and file systems put into a folder before a run begins; a run never touches it."""


def claim(run: str) -> Held:
    """Keep others out of the folder until the result is closed, or its process ends in whatever way.

    Raises UsageError when a live run holds the folder, when it holds something else than a run, or when a path in it
    is of the wrong kind, all before anything is changed, and StorageError when nothing can be written there.
    """
    check_folder(run)
    try:
        Path(run, checkpoints.FOLDER).mkdir(parents=True, exist_ok=True)
        lock = hold(run)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise UsageError(f"run.output {run} cannot be a folder: {error.strerror}. Give another one.") from error
    except OSError as error:
        raise StorageError(
            f"run.output {run} cannot be written: {error.strerror}. Check the disk and your rights, or give another "
            "folder."
        ) from error

    checkpoints.remove_partial(run)
    return lock


def check_folder(run: str) -> None:
    """Raise UsageError for a folder that is not a run's, or in which a path is of the wrong kind."""
    if not Path(run).is_dir():
        return
    names = [name for name in storage.names(run) if not _HARMLESS.fullmatch(name)]
    if names and not _is_ours(run, names):
        raise UsageError(
            f"run.output {run} holds files of something else ({', '.join(names[:3])}). Give a new or empty folder, or "
            "that of a run."
        )

    for name in names:
        path = Path(run, name)
        if name in FILES and path.is_dir():
            raise UsageError(f"{path} is a folder; a run keeps a file there. Move it away, or give another run.output.")
        if name in FOLDERS and not path.is_dir():
            raise UsageError(f"{path} is a file; a run keeps a folder there. Move it away, or give another run.output.")


def _is_ours(run: str, names: list[str]) -> bool:
    """Whether a run has left its mark: a lock that names its process, or a checkpoint with our manifest."""
    with contextlib.suppress(OSError, ValueError):
        lock = Path(run, LOCK)
        text = lock.read_text() if lock.exists() else ""
        if re.match(r"process \d+ on ", text):
            return True
        # A run that was killed between its first two calls leaves an empty lock and an empty folder.
        if (
            set(names) <= {LOCK, checkpoints.FOLDER}
            and not text
            and not storage.names(str(Path(run, checkpoints.FOLDER)))
        ):
            return True

    for manifest in Path(run, checkpoints.FOLDER).glob(f"step-*/{checkpoints.MANIFEST}"):
        with contextlib.suppress(OSError, ValueError):
            if {"format_version", "files"} <= set(json.loads(manifest.read_text())):
                return True
    return False


def check_shared(run: str, rank: int) -> None:
    """Raises UsageError on a rank that does not see the folder that rank 0 holds."""
    if not Path(run, LOCK).exists():
        raise UsageError(
            f"Rank {rank} on {socket.gethostname()} does not see {run} of rank 0. All ranks write into one folder: "
            "give one that all machines share as run.output, or as run.local when run.output is a URL."
        )


def describe_run(recipe: Recipe, folder: PairFolder) -> None:
    """The recipe as resolved, and a copy of the vocabulary: what an export needs besides a checkpoint."""
    run = Path(recipe.run.folder)
    storage.publish(str(run / "recipe.toml"), dump_recipe(recipe).encode())
    source = storage.join(folder.folder, FOLDER)
    for name in storage.names(source):
        storage.publish(str(run / FOLDER / name), storage.read(storage.join(source, name)))
