"""Keeps a run's URL up to date when nodes do not share a file system, so that the URL is all they have in common.

Each node's leader, the first of its ranks, has a RemotePartOfRun, whose thread uploads the node's parts of each
checkpoint (parts.py). Rank 0's thread also copies the other files and publishes: it checks every few seconds whether
all parts of a checkpoint are at the URL in their full sizes, and then writes the manifest. Uploads need no message
between ranks, so training continues during them.

Nothing is resumed from a node's own parts. When a run begins, enters its next phase or rolls back, all nodes first
finish their uploads, and then each leader downloads the newest checkpoint from the URL, whose step rank 0 chooses.
When a run begins, it also uploads what an earlier run could not (left_parts.py).

In the next run, any node may have rank 0 or train alone, and only rank 0 keeps a run's metrics. So a node downloads a
checkpoint only together with the metrics up to it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import torch.distributed as dist

from schemas import storage
from schemas.errors import StorageError
from trainer.checkpoint import publication
from trainer.checkpoint.layout import checkpoint_path, location, steps_saved
from trainer.checkpoint.manifest import MANIFEST, fault_of_checkpoint
from trainer.checkpoint.parts import (
    PartsManifest,
    gather,
    is_of_node,
    manifest_in_parts,
    saved_parts,
    step_of_parts,
)
from trainer.checkpoint.remote_sync import RemoteRun
from trainer.checkpoint.run_dir import RUN_LOCK_FILE
from trainer.checkpoint.url_checkpoints import (
    bring_checkpoint,
    bring_run,
    is_same,
    newest_local_step,
    prune_url,
    upload_checkpoint,
    upload_file,
)
from trainer.distributed.collectives import run_on_all_ranks, run_on_rank_0
from trainer.logs import EVERY_RANK, logger

LOOK_EVERY = 2.0
"""Seconds between two checks of the URL while parts of other nodes are missing there."""


class RemotePartOfRun(RemoteRun):
    """The URL of a run and the folder of one node."""

    def __init__(self, url: str, folder: str, keep: int, timeout: float, number: int):
        """number: of the node's folder; 0 is rank 0's. For the other arguments, see RemoteRun."""
        super().__init__(url, folder, keep, timeout)
        self.url = url
        self.folder = folder
        self.number = number
        self._sent: set[str] = set()  # folders whose parts from this node are at the URL
        self._damaged: set[str] = set()  # folders that no longer hold what was written
        self._begun = False
        self._has_other_files = False

    def fetch(self) -> None:
        """Check that this node can write to the URL, and start the thread.

        Without this check, a run with a node that lacks credentials would train but never publish a checkpoint.
        """
        with storage.storage_errors_of(self._url):
            if self.number == 0:
                upload_file(Path(self._folder, RUN_LOCK_FILE), storage.join(self._url, RUN_LOCK_FILE))
            else:
                probe = storage.join(self._url, f"node-{self.number}")
                upload_file(Path(self._folder, RUN_LOCK_FILE), probe)
                storage.remove(probe)
        self._thread.start()

    def settle(self) -> None:
        """See RemoteRun. The first call, when a run begins, does nothing: metrics at the URL may be newer than here."""
        if self._begun:
            super().settle()
        self._begun = True

    def upload_all(self) -> None:
        """Wait until everything in the folder is at the URL, as RemoteRun.settle does. Raises StorageError."""
        super().settle()

    def close(self) -> None:
        """See RemoteRun. Also logs which checkpoints could not be published."""
        was_open = not self._closing
        super().close()
        if was_open and self.unpublished():
            logger.warning("%s", self.unpublished(), extra=EVERY_RANK)

    def check_published(self) -> None:
        """Raise StorageError if a checkpoint is still unpublished. Call this after all nodes have uploaded."""
        if self.unpublished():
            raise StorageError(f"{self.unpublished()} {self._advice()}")

    def unpublished(self) -> str:
        """Return a sentence about the checkpoints that are not published, or an empty string if there are none."""
        names = [folder.name.split(".")[0] for folder in saved_parts(self._folder)]
        if not names:
            return ""
        return f"{self._url} does not hold all parts of {', '.join(names)} in their full sizes, as nodes wrote them."

    def choose_step(self) -> int:
        """Download the newest checkpoint to rank 0's folder and return its step, or -1 if there is none.

        A newer one in that folder, which an earlier run could not upload, is uploaded, so that all nodes find it.
        Raises StorageError, and CheckpointError if there are checkpoints at the URL but none verifies.
        """
        with storage.storage_errors_of(self._url):
            newest_at_url = max(steps_saved(self._url), default=-1)
            step = newest_local_step(self._folder)
            if newest_at_url > step:
                # After the first call, this folder's metrics are the newest, and must not be overwritten.
                bring = bring_checkpoint if self._has_other_files else bring_run
                for fault in bring(self._url, self._folder, None):
                    logger.info("Passed over a checkpoint: %s.", fault)
                step = newest_local_step(self._folder)
                logger.info("Brought step %d of %s to %s.", step, self._url, self._folder)

            self._pass_over_after(step)
            if step >= 0:
                upload_checkpoint(self._folder, self._url, step, self._transfers)
        self._has_other_files = True
        if step >= 0:
            publication.prune(self._folder, self._keep, step)
        return step

    def bring(self, step: int) -> None:
        """Download the checkpoint that rank 0 chose, unless this node's folder holds the same one and it verifies.

        Raises StorageError, and CheckpointError if the downloaded checkpoint does not verify.
        """
        path = checkpoint_path(self._folder, step)
        with storage.storage_errors_of(self._url):
            is_here = (path / MANIFEST).exists() and is_same(self._url, self._folder, step)
            if is_here and fault_of_checkpoint(path) is None:
                return
            publication.discard(path)
            bring_run(self._url, self._folder, step)
        publication.prune(self._folder, self._keep, step)

    def _advice(self) -> str:
        return (
            "The same command resumes from the newest checkpoint there; on the same machines it first sends what is "
            "missing."
        )

    # In the thread

    def _look_again_after(self) -> float | None:
        waits_for_others = self.number == 0 and bool(self._sent) and not self._failure
        return LOOK_EVERY if waits_for_others else None

    def _update_url(self) -> None:
        folders = saved_parts(self._folder)
        self._sent &= {folder.name for folder in folders}
        self._damaged &= {folder.name for folder in folders}
        if self.number == 0:
            self._send_other_files()
            self._send_checkpoints()

        for folder in folders:
            # While this thread begins to read a folder, a save may remove it (`prune_parts`).
            with contextlib.suppress(FileNotFoundError):
                self._send_parts(folder)
        if self.number == 0:
            self._publish_complete()

    def _send_parts(self, folder: Path) -> None:
        """Upload this node's parts of a checkpoint, unless they are at the URL or damaged.

        A damaged checkpoint is skipped, and later ones are published. On rank 0 its folder stays until a later one is
        published, so that a run whose last checkpoint is damaged ends with an error.
        """
        if folder.name not in self._sent | self._damaged:
            manifest, target = self.read_parts(folder)
            if self.number == 0:
                # A damaged checkpoint of the same step must not look published while its files are replaced.
                storage.remove(storage.join(target, MANIFEST))
                for whole in manifest.files:
                    upload_file(folder / whole.path, storage.join(target, whole.path), self._transfers)
            fault = self._send_own_parts(folder, manifest, target)
            if fault is None:
                self._sent.add(folder.name)
            else:
                self._damaged.add(folder.name)
                logger.warning("%s. This checkpoint is left out; check the disk.", fault, extra=EVERY_RANK)

        if self.number > 0:
            shutil.rmtree(folder)

    def _publish_complete(self) -> None:
        """Publish the checkpoints whose parts are all at the URL.

        Nodes upload the oldest first. So if a checkpoint is still incomplete when checked after a newer one was found
        complete, a node has skipped it, and it never becomes complete. Pruning removes what the URL holds of it.
        """
        complete: list[Path] = []
        for folder in reversed(saved_parts(self._folder)):
            with contextlib.suppress(FileNotFoundError):
                if folder.name in self._sent and _is_complete(*self.read_parts(folder)):
                    complete.append(folder)
                elif complete:
                    shutil.rmtree(folder)

        for folder in reversed(complete):
            with contextlib.suppress(FileNotFoundError):
                text = (folder / MANIFEST).read_bytes()
                _, target = self.read_parts(folder)
                storage.publish(storage.join(target, MANIFEST), text)
                self._passed_over.discard(step_of_parts(folder))
                shutil.rmtree(folder)
        if complete:
            prune_url(self._url, self._keep, self._passed_over, spare_newer=True)

    def read_parts(self, folder: Path) -> tuple[PartsManifest, str]:
        """Return the manifest of a checkpoint that is waiting in `folder`, and its folder at the URL."""
        manifest = manifest_in_parts((folder / MANIFEST).read_bytes(), str(folder))
        assert manifest is not None  # this run has written it
        return manifest, location(self._url, step_of_parts(folder))

    def _send_own_parts(self, folder: Path, manifest: PartsManifest, target: str) -> str | None:
        """Upload this node's parts. Returns what is wrong with one, or None.

        A damaged part of full size would look complete at the URL, and older checkpoints would be pruned.
        """
        for file in manifest.assembled:
            for part in file.parts:
                if is_of_node(part, self.number):
                    gathered = folder / part.path
                    fault = gather(folder / file.path, part, gathered)
                    if fault is not None:
                        return fault
                    upload_file(gathered, storage.join(target, part.path), self._transfers)
                    gathered.unlink()
        return None


def _is_complete(manifest: PartsManifest, target: str) -> bool:
    """Return whether all parts of a checkpoint are at the URL. A part that is being uploaded is absent or too short."""
    sizes = storage.sizes(target)
    return all(sizes.get(part.path) == part.bytes for file in manifest.assembled for part in file.parts)


def bring_newest(remote: RemotePartOfRun | None) -> None:
    """Finish all uploads, and download the newest checkpoint to every node's folder. A collective call.

    remote: None on ranks that do not lead in their folder.
    """
    rank = dist.get_rank()
    others = remote if rank > 0 else None

    # Rank 0 comes last, because it publishes what the others have uploaded.
    run_on_all_ranks(lambda: others.settle() if others is not None else None)
    step = run_on_rank_0(lambda: _settled_step(remote))
    if step >= 0:
        run_on_all_ranks(lambda: others.bring(step) if others is not None else None)


def _settled_step(remote: RemotePartOfRun | None) -> int:
    assert remote is not None  # rank 0 leads in its folder
    remote.settle()
    remote.check_published()
    return remote.choose_step()
