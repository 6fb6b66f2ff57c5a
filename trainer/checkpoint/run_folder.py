"""The folder of a run: which process may write into it, which ranks see the same one, and its files.

A run writes into run.output only if the folder is new, empty or was written by a run, because it replaces files such as
metrics.jsonl there. A folder counts as a run's if it has what only a run leaves: a lock file that names its process, or
a checkpoint with our manifest.

Usually all ranks share one folder. Without a shared file system, and with a URL as run.output, each machine has a
separate folder: the first of its ranks claims it and is its leader, and checkpoints are whole only at the URL.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from filelock import BaseFileLock

from schemas import storage, vocabulary
from schemas.errors import UsageError
from schemas.folder_kinds import BEFORE_RUNS
from trainer.checkpoint.format import CHECKPOINTS_FOLDER, MANIFEST, write_errors_of
from trainer.checkpoint.run_lock import LOCK_FILES, RUN_LOCK_FILE, hold
from trainer.checkpoint.text_facts import TEXT_FACTS_FILE, keep_text_facts
from trainer.checkpoint.write import remove_partial
from trainer.config.record import HISTORY, RECIPE, dump_recipe
from trainer.config.schema import Recipe
from trainer.data.counts import UNIGRAM_FILE
from trainer.data.folder import PairFolder
from trainer.distributed.collectives import nodes_of_ranks, run_on_all_ranks, run_on_rank_0
from trainer.logs import LOG_FILE
from trainer.metrics.monitors import TENSORBOARD_FOLDER
from trainer.metrics.starts import STARTS_FILE

APPENDED = (STARTS_FILE, LOG_FILE)
"""Files to which every start appends."""

NEEDED = (
    RECIPE,
    HISTORY,
    "micro_batches.json",
    UNIGRAM_FILE,
    TEXT_FACTS_FILE,
    "run_id",
    "metrics.jsonl",
    *APPENDED,
)
"""Files that another machine needs to resume or export a run, besides a checkpoint and the vocabulary."""

FILES = (*NEEDED, "ranks.json", "report.html")
"""All files of a run, besides its lock and what is in folders."""

SHARED_FOLDERS = (vocabulary.VOCABULARY_FOLDER, TENSORBOARD_FOLDER)
"""Folders of a run that are copied to its URL, besides its checkpoints."""


def claim(run: str) -> BaseFileLock:
    """Lock the run's folder until the result is released or the process ends. One rank per folder calls this.

    Raises UsageError if the folder holds other files than a run's, before anything is changed there. Otherwise raises
    as `hold`.
    """
    names = _names(run)
    if names and not _is_of_a_run(run, names):
        raise UsageError(
            f"run.output {run} holds files of something else ({', '.join(sorted(names)[:3])}). Choose a new or empty "
            "folder, or that of a run."
        )
    lock = hold(run, "run.output")
    checkpoints = Path(run, CHECKPOINTS_FOLDER)
    with write_errors_of(checkpoints):
        checkpoints.mkdir(exist_ok=True)
    remove_partial(run)
    return lock


def _names(run: str) -> set[str]:
    """Return what is in a folder, which may not exist, without what may be there before a run begins."""
    names = storage.names(run) if Path(run).is_dir() else []
    return {name for name in names if not BEFORE_RUNS.fullmatch(name)}


def remove_beginnings(run: str) -> None:
    """Remove what a run wrote into an unused folder, if it was refused or ended before training began.

    The process must still hold the folder, because the lock file is removed, too. Another process that is about to lock
    that file notices this and tries again.
    """
    # The recipe is written when training begins, or downloaded from the run's URL. On a node with a separate folder,
    # other folders may show that training began.
    beginnings = {*FILES, *LOCK_FILES, CHECKPOINTS_FOLDER} - {RECIPE}
    if not _names(run) <= beginnings:
        return

    with contextlib.suppress(OSError):
        # This fails if there are checkpoints, and then nothing else is removed.
        Path(run, CHECKPOINTS_FOLDER).rmdir()
        for name in (*FILES, RUN_LOCK_FILE):  # the lock removes other files of it itself
            Path(run, name).unlink(missing_ok=True)


def remove_empty(run: str) -> None:
    """Remove the run's folder if it is empty."""
    with contextlib.suppress(OSError):
        Path(run).rmdir()


def _is_of_a_run(run: str, names: set[str]) -> bool:
    # A file that cannot be read, or is not text or JSON, is no evidence of a run.
    with contextlib.suppress(OSError, ValueError):
        lock = Path(run, RUN_LOCK_FILE)
        text = lock.read_text(encoding="utf-8") if lock.exists() else ""
        if re.match(r"process \d+ on ", text):
            return True

        # A run that was killed at once leaves an empty lock file and an empty folder.
        was_killed_at_once = not text and names <= {RUN_LOCK_FILE, CHECKPOINTS_FOLDER}
        if was_killed_at_once and not storage.names(str(Path(run, CHECKPOINTS_FOLDER))):
            return True

    for manifest in Path(run, CHECKPOINTS_FOLDER).glob(f"step-*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if {"format_version", "files"} <= set(json.loads(manifest.read_text(encoding="utf-8"))):
                return True
    return False


def write_recipe(recipe: Recipe) -> None:
    """Write RUN/recipe.toml. Raises StorageError."""
    storage.publish(str(Path(recipe.run.folder, RECIPE)), dump_recipe(recipe).encode())


def describe_run(recipe: Recipe, folders: list[PairFolder]) -> None:
    """Write what an export needs besides a checkpoint: the resolved recipe, where the pairs are from, their vocabulary.

    Raises StorageError.
    """
    write_recipe(recipe)
    keep_text_facts(recipe.run.folder, [folder.manifest for folder in folders])
    run = Path(recipe.run.folder)
    source = storage.join(folders[0].folder, vocabulary.VOCABULARY_FOLDER)
    for name in storage.names(source):
        content = storage.read(storage.join(source, name))
        storage.publish(str(run / vocabulary.VOCABULARY_FOLDER / name), content)


# Which ranks see the same folder


@dataclass(frozen=True)
class NodeFolders:
    """Which ranks see the same run folder.

    of_ranks: the number of the folder that each rank sees. Rank 0 sees folder 0.
    """

    of_ranks: list[int]

    @property
    def several(self) -> bool:
        """Whether nodes have separate folders."""
        return max(self.of_ranks) > 0

    def leader(self, rank: int) -> int:
        """Return the leader of the folder that a rank sees: the lowest rank that sees it."""
        return self.of_ranks.index(self.of_ranks[rank])

    def leads(self, rank: int) -> bool:
        return self.leader(rank) == rank


def claim_folders(run: str, is_remote: bool, resources: contextlib.ExitStack) -> NodeFolders:
    """Lock the run's folder on every node until `resources` is closed. A collective call.

    is_remote: run.output is a URL, so nodes may have separate folders.

    Raises UsageError on every rank if a rank does not see the folder that it must share, and what `claim` raises.
    """
    rank = dist.get_rank()

    def claim_until_closed(mark_name: str) -> None:
        is_new = not Path(run).exists()
        was_unused = not _names(run)
        lock = claim(run)

        # Callbacks run in reverse order: if the start is refused, they leave the folder as it was.
        if is_new:
            resources.callback(remove_empty, run)
        resources.callback(lock.release)
        if was_unused:
            resources.callback(remove_beginnings, run)

        mark = Path(run, mark_name)
        with write_errors_of(mark):
            mark.touch()
        resources.callback(mark.unlink, missing_ok=True)

    # Rank 0 creates a mark, and ranks that see it share rank 0's folder. Its name is random, because a folder that is
    # not shared may hold the mark of an earlier run. The dot keeps it from being mistaken for a user's file.
    mark_name = run_on_rank_0(lambda: f".seen-{secrets.token_hex(8)}")
    run_on_rank_0(lambda: claim_until_closed(mark_name))
    sees_rank_0 = run_on_all_ranks(lambda: Path(run, mark_name).exists())

    numbers = [0 if sees else 1 + node for sees, node in zip(sees_rank_0, nodes_of_ranks(), strict=True)]
    folders = NodeFolders(numbers)
    if folders.several and is_remote:
        run_on_all_ranks(lambda: claim_until_closed(mark_name) if rank > 0 and folders.leads(rank) else None)
    run_on_all_ranks(lambda: _check_shared(run, mark_name, rank, folders.leader(rank) if is_remote else 0))

    run_on_all_ranks(lambda: Path(run, mark_name).unlink(missing_ok=True) if folders.leads(rank) else None)
    return folders


def _check_shared(run: str, mark_name: str, rank: int, leader: int) -> None:
    if not Path(run, mark_name).exists():
        raise UsageError(
            f"Rank {rank} on {socket.gethostname()} does not see {run} of rank {leader}. Ranks write into one folder: "
            "give one that all machines share as run.output, or a URL, with which each machine may have a separate "
            "folder (run.local)."
        )
