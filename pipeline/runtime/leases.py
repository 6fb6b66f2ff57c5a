"""Limits an output folder to one job at a time, on disks and on object stores alike.

    OUTPUT/_lease-<token>.json    who works there; written again every RENEW_EVERY seconds while the job lives

Object stores have no locks, and not all of them can create a file only if it does not exist, but all of them list a
file once it is written. So a job first writes its own claim and then lists the others. If two jobs claim the folder at
once, the later writer sees the earlier claim. It gives way to a job that holds the folder; among jobs that only claim
it, the smallest token wins.

A lease ends when its owner removes it, when its owner's process is gone (visible only on the owner's machine), or when
it has not been renewed for EXPIRES_AFTER seconds. Its age is measured against the reader's own lease, by the clock of
the disk or store that holds both, so the clocks of machines need not agree. Leases leave no trace in an output.

A job on an engine may outlive its launcher, which can be killed at any moment. So as soon as the engine has the job,
the lease is kept: it lasts until the job publishes, a user deletes it, or KEPT_FOR seconds are over.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pipeline.runtime import lease_files
from pipeline.runtime.lease_files import lease_url
from pipeline.runtime.lease_owner import EXPIRES_AFTER, Owner, this_process
from schemas import storage
from schemas.errors import ClozelineError, StorageError, UsageError

RENEW_EVERY = 15.0  # seconds; each renewal is two requests to an object store
LOOK_AGAIN = 0.2  # seconds between looks at another job that is claiming the folder too


@dataclass
class Lease:
    """A folder that this process holds. With `keep` the lease outlives the block and the process."""

    output: str
    token: str
    keep: bool = False
    left: bool = False
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def keep_if_killed(self) -> None:
        """Make the lease outlive this process if it is killed from now on, because the job continues without it."""
        self._write_again(kept=True)

    def leave(self) -> None:
        """Record that no launcher waits for the job, which cleans up after itself.

        Until the lease is kept, it still ends with this process.
        """
        self.left = True
        self._write_again(left=True)

    def renew(self) -> bool:
        """Write the lease again. Returns False, and writes nothing, if another job has removed it."""
        return self._write_again()

    def end(self) -> None:
        """Remove the lease; or, with `keep`, record in it that the job may continue without this process.

        A job that has published needs no lease. A job that no launcher waits for removes its lease itself, after its
        unfinished files.
        """
        if self.keep and lease_files.may_publish(self.output, self.token):
            self._write_again(kept=True, left=True)
        elif not (self.keep and self.left):
            lease_files.remove(self.output, self.token)

    def _write_again(self, **changes: bool) -> bool:
        """Write the lease again with `changes`. Other flags stay as in the file, where `note_published` sets some."""
        with self._writing:
            owner = lease_files.read(self.output, self.token)
            if owner is None:
                return False

            flags = {"holds": True, "kept": owner.kept, "left": owner.left, "published": owner.published} | changes
            lease_files.write(self.output, self.token, replace(this_process(), **flags))
            return True


@contextlib.contextmanager
def held(output: str, token: str) -> Iterator[Lease]:
    """Hold the folder while the block runs. `token` names this job among all that may claim the folder.

    Raises UsageError when another job works there and StorageError when nothing can be written there.
    """
    is_new = not storage.exists(output)
    lease = Lease(output, token)
    try:
        _claim(output, token)
        with _renewed(lease):
            yield lease
    finally:
        with contextlib.suppress(ClozelineError):  # a lease that can be neither removed nor kept expires
            lease.end()
        if is_new:
            _remove_if_empty(output)


def check_held(output: str, token: str) -> None:
    """Raise StorageError if the lease of that token is gone, or if another job holds the folder as well.

    The latter can happen to a job that was suspended until its lease expired, and that renewed the lease while another
    job removed it. Then neither of the two publishes.
    """
    if not is_held(output, token):
        raise StorageError(
            f"{output} is no longer held by this job: it was stopped, or could not renew its lease for "
            f"{EXPIRES_AFTER:.0f} s and another job took over. This job published nothing. Run the same command again "
            "once no other job works there; finished pieces are reused."
        )


def is_held(output: str, token: str) -> bool:
    """Whether the job of that token holds the folder, and no other job's live lease claims to hold it."""
    others = _list_others(output, token)
    return others is not None and not any(owner.holds for _, owner in others.live)


def _claim(output: str, token: str) -> None:
    """Take the folder, or raise UsageError when another job has it or is about to take it.

    The steps of one job, and why no two jobs can hold the folder together:

        1. write the claim       from here on every job that lists the folder sees it
        2. list                  give way to a holder, and to a claim with a smaller token; wait while larger ones live
        3. write that it holds   only after a listing without any other live lease
        4. list again            give way to a holder: this job slept between 2 and 3 for so long that its claim
                                 expired, and another job took the folder
        5. remove ended leases   only those that listing 4 showed; a claim written since then is not among them, and
                                 its owner finds the holder at its own step 2

    A claim that is gone at 2 or 4 was mistaken for that of a dead process and removed. The job begins again at 1,
    because the others cannot see it without its claim.
    """
    claim = this_process()
    while True:
        # Steps 1 and 2.
        lease_files.write(output, token, claim)
        others = _list_others(output, token)
        if others is None:
            time.sleep(LOOK_AGAIN)
            continue

        for other, owner in others.live:
            if owner.holds or other < token:
                raise _in_use(output, other, owner)
        if others.live:
            time.sleep(LOOK_AGAIN)  # those with larger tokens give way, or turn out to hold the folder
            continue

        # Steps 3 and 4.
        lease_files.write(output, token, replace(claim, holds=True))
        others = _list_others(output, token)
        if others is None:
            time.sleep(LOOK_AGAIN)
            continue

        for other, owner in others.live:
            if owner.holds:
                raise _in_use(output, other, owner)

        # Step 5.
        for other in others.ended:
            lease_files.remove(output, other)
        return


@contextlib.contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """Renew the lease in a thread while the block runs."""
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(lease, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()


def _renew(lease: Lease, ended: threading.Event) -> None:
    """Renew the lease until `ended` is set. Stop if another job has removed it, which `check_held` then reports."""
    while not ended.wait(RENEW_EVERY):
        with contextlib.suppress(ClozelineError):  # tried again at the next renewal
            if not lease.renew():
                return


@dataclass(frozen=True)
class _Others:
    """The other leases of one listing: (token, owner) of those that live, and the tokens of those that have ended."""

    live: list[tuple[str, Owner]]
    ended: list[str]


def _list_others(output: str, token: str) -> _Others | None:
    """List the other leases once. Return None if this job's own lease, just written, is gone."""
    tokens = lease_files.tokens(output)
    now = storage.modified(lease_url(output, token))
    if now is None or token not in tokens:
        return None

    live: list[tuple[str, Owner]] = []
    ended: list[str] = []
    for other in tokens:
        if other == token:
            continue

        owner = lease_files.read(output, other)
        written = storage.modified(lease_url(output, other))
        if owner is None or written is None:
            continue  # removed since the listing

        has_expired = now - written >= owner.lasts()
        if has_expired or owner.is_gone():
            ended.append(other)
        else:
            live.append((other, owner))
    return _Others(live, ended)


def _in_use(output: str, token: str, owner: Owner) -> UsageError:
    url = lease_url(output, token)
    if owner.kept:
        return UsageError(
            f"{output} is in use by a job that was submitted from {owner.host} and may still run on its engine. Wait "
            f"until it ends, or give another --output. If the job has failed or was canceled, delete {url}."
        )
    return UsageError(
        f"{output} is in use by another job (process {owner.process} on {owner.host}). Wait until it ends, or give "
        f"another --output. The lease of a job that was killed on another machine expires {EXPIRES_AFTER:.0f} s after "
        f"it was last renewed, in {url}."
    )


def _remove_if_empty(output: str) -> None:
    """Remove a local folder that this job made and left empty."""
    if storage.is_local(output):
        with contextlib.suppress(OSError):
            os.rmdir(storage.filesystem(output)[1])
