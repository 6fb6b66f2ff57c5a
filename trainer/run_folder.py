"""The folder of a run: who may write into it, and what lies there besides metrics and checkpoints."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import IO

from schemas import storage
from schemas.errors import UsageError
from schemas.vocabulary import FOLDER
from trainer import checkpoints, watchdog
from trainer.recipe_sections import Recipe
from trainer.recipe_text import dump_recipe
from trainer.stream.reading import PairFolder

LOCK = "lock"  # stays in the folder; what counts is who holds it


def claim(run: str) -> IO[str]:
    """An open file that keeps others out until it is closed, or its process ends in whatever way.

    Raises UsageError when a live run holds the folder, or when nothing can be written there.
    """
    try:
        Path(run, "checkpoints").mkdir(parents=True, exist_ok=True)
        file = Path(run, LOCK).open("a+")  # noqa: SIM115 (open for as long as the run lasts)
    except OSError as error:
        raise UsageError(f"run.output {run} cannot be written: {error.strerror}. Give another folder.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        told = f"{run} is in use by a live run ({holder})"
        raise UsageError(f"{told}. End that one first, or give another run.output.") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    checkpoints.remove_partial(run)
    shutil.rmtree(Path(run, watchdog.FOLDER), ignore_errors=True)  # what ranks of a killed run last told
    return file


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
