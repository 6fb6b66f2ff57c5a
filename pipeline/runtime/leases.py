"""One job at a time in an output folder, on disks and on object stores alike.

    OUTPUT/_lease-<token>.json    who works there; written again every RENEW_EVERY seconds while the job lives

Object stores have no locks, and not all of them can create a file only if it does not exist, but all of them list a
file once it is written. So a job first writes its own claim and then lists the others. Of two claims that meet, the
later writer sees the earlier one. It gives way to a job that holds the folder; among jobs that only claim it, the
smallest token wins.

A lease ends when its owner removes it, when its owner's process is gone (visible on the owner's machine alone), or
when it has not been renewed for EXPIRES_AFTER seconds. Its age is measured against the reader's own lease, by the
clock of the disk or store that both lie on, so the clocks of machines need not agree. Leases leave no trace in an
output.

A job that may still run on an engine after its launcher has ended keeps the folder: its lease says so, and it lasts
until the job publishes, a user deletes it, or KEPT_FOR seconds are over.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from pipeline.runtime.lease_owner import EXPIRES_AFTER, Owner, this_process
from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError, UsageError

RENEW_EVERY = 15.0  # seconds; each renewal is a request to an object store
LOOK_AGAIN = 0.2  # seconds between looks at another job that is claiming the folder too

_PREFIX = "_lease-"
_NAME = re.compile(rf"{_PREFIX}(\w+)\.json")


@dataclass
class Lease:
    """A folder that this process holds. With `keep` the lease outlives the block and the process."""

    output: str
    token: str
    keep: bool = False


def lease_url(output: str, token: str) -> str:
    """The file of the lease that `token` names."""
    return storage.join(output, f"{_PREFIX}{token}.json")


def is_lease(name: str) -> bool:
    """Whether a name in an output folder is a lease, or a lease that is being written."""
    return name.lstrip(".").startswith(_PREFIX)


@contextlib.contextmanager
def held(output: str, token: str) -> Iterator[Lease]:
    """Hold the folder while the block runs. `token` names this job among all that may claim the folder.

    Raises UsageError when another job works there and StorageError when nothing can be written there.
    """
    is_new = not storage.exists(output)
    lease = Lease(output, token)
    try:
        _claim(output, token)
        with _renewed(output, token):
            yield lease
    finally:
        with contextlib.suppress(ClozelineError):  # a lease that can be neither removed nor kept expires
            _end(lease)
        if is_new:
            _remove_if_empty(output)


def _end(lease: Lease) -> None:
    """Remove the lease, or mark it as kept for a job that may still run."""
    url = lease_url(lease.output, lease.token)
    if not lease.keep:
        storage.remove(url)
        return

    # A lease that is gone was removed by another job, which may have the folder by now.
    if storage.exists(url):
        _write(lease.output, lease.token, replace(this_process(), holds=True, kept=True))


def check_held(output: str, token: str) -> None:
    """Raises StorageError when the lease of that token is gone, or another job holds the folder as well.

    The second can happen to a job that slept until its lease expired, and renewed it while another job removed it. Then
    neither of the two publishes.
    """
    others = _list_others(output, token)
    if others is None or any(owner.holds for _, owner in others.live):
        raise StorageError(
            f"{output} is no longer held by this job: it was stopped, or could not renew its lease for "
            f"{EXPIRES_AFTER:.0f} s and another job took over. This job published nothing. Run the same command again "
            "once no other job works there; finished pieces are reused."
        )


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
        _write(output, token, claim)
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
        _write(output, token, replace(claim, holds=True))
        others = _list_others(output, token)
        if others is None:
            time.sleep(LOOK_AGAIN)
            continue

        for other, owner in others.live:
            if owner.holds:
                raise _in_use(output, other, owner)

        # Step 5.
        for other in others.ended:
            storage.remove(lease_url(output, other))
        return


@contextlib.contextmanager
def _renewed(output: str, token: str) -> Iterator[None]:
    """Renew the lease in a thread while the block runs."""
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(output, token, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()


def _renew(output: str, token: str, ended: threading.Event) -> None:
    """Write the lease again until `ended`. One that another job removed stays removed, and `check_held` notices."""
    owner = replace(this_process(), holds=True)
    while not ended.wait(RENEW_EVERY):
        with contextlib.suppress(ClozelineError):  # tried again at the next renewal
            if not storage.exists(lease_url(output, token)):
                return
            _write(output, token, owner)


@dataclass(frozen=True)
class _Others:
    """The other leases of one listing: (token, owner) of those that live, and the tokens of those that have ended."""

    live: list[tuple[str, Owner]]
    ended: list[str]


def _list_others(output: str, token: str) -> _Others | None:
    """List the other leases, once. None when this job's own lease, just written, is gone."""
    tokens = _tokens(output)
    now = storage.modified(lease_url(output, token))
    if now is None or token not in tokens:
        return None

    live: list[tuple[str, Owner]] = []
    ended: list[str] = []
    for other in tokens:
        if other == token:
            continue

        owner = _read(output, other)
        written = storage.modified(lease_url(output, other))
        if owner is None or written is None:
            continue  # removed since the listing

        has_expired = now - written >= owner.lasts()
        if has_expired or owner.is_gone():
            ended.append(other)
        else:
            live.append((other, owner))
    return _Others(live, ended)


def _tokens(output: str) -> list[str]:
    """The tokens of all leases in a folder."""
    matches = [_NAME.fullmatch(name) for name in storage.names(output, _PREFIX)]
    return [match[1] for match in matches if match]


def _write(output: str, token: str, owner: Owner) -> None:
    storage.publish(lease_url(output, token), json.dumps(asdict(owner)).encode(), durable=False)


def _read(output: str, token: str) -> Owner | None:
    """The owner of a lease, or None when it has just been removed. A damaged lease holds until it expires."""
    try:
        return Owner(**json.loads(storage.read(lease_url(output, token))))
    except DataError:
        return None
    except (ValueError, TypeError):
        return Owner("an unknown machine", "", 0, "", holds=True)


def release_kept(output: str, token: str) -> None:
    """Remove a lease that was kept for the job of that token, which has just published."""
    owner = _read(output, token)
    if owner is not None and owner.kept:
        storage.remove(lease_url(output, token))


def _in_use(output: str, token: str, owner: Owner) -> UsageError:
    url = lease_url(output, token)
    if owner.kept:
        return UsageError(
            f"{output} is in use by a job that was submitted from {owner.host} and may still run on its engine. Wait "
            f"until it ends, or give another --output. Once the job is canceled, delete {url}."
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
