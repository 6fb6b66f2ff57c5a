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
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.commit.staging import Staging
from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError, UsageError

RENEW_EVERY = 15.0  # seconds; each renewal is two requests to an object store
EXPIRES_AFTER = 120.0  # seconds without renewal: eight renewals may fail
KEPT_FOR = 7 * 86_400.0  # seconds that a kept lease lasts: no process renews it, and an engine may work for days
LOOK_AGAIN = 0.2  # seconds between looks at another job that is claiming the folder too

_PREFIX = "_lease-"
_NAME = re.compile(rf"{_PREFIX}(\w+)\.json")


@dataclass(frozen=True)
class Owner:
    """The content of a lease: a process, identified such that a reused process id is not mistaken for it, and flags.

    machine: the boot id and process namespace in which `process` is valid; empty if the system has neither.
    process: the process id.
    started: when the process began, in clock ticks since boot.
    holds: the folder is held; before that it is only claimed.
    kept: the job may still run elsewhere, even if the process is gone.
    left: no launcher waits for the job any longer.
    published: the job's result is in place.
    """

    host: str
    machine: str
    process: int
    started: str
    holds: bool = False
    kept: bool = False
    left: bool = False
    published: bool = False

    def has_ended(self) -> bool:
        """Whether the process has ended. False if that cannot be determined on this machine."""
        here = this_process()
        same_machine = here.machine != "" and (self.host, self.machine) == (here.host, here.machine)
        return same_machine and _start_of(self.process) != self.started

    def is_over(self, age: float) -> bool:
        """Whether a lease that was renewed `age` seconds ago has ended."""
        if self.kept:
            return age >= KEPT_FOR
        return age >= EXPIRES_AFTER or self.has_ended()


def this_process() -> Owner:
    """Return the owner that stands for the calling process, which claims a folder but does not hold it yet."""
    process = os.getpid()
    return Owner(socket.gethostname(), _machine(), process, _start_of(process))


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(process: int) -> str:
    """Return when a process began, in clock ticks since boot. Empty if it does not exist or is a zombie."""
    try:
        # "PID (NAME) STATE ...": the name may hold spaces and parentheses, so fields are counted from its end.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""

    is_dead = fields[0] in "ZX"  # a zombie, or being removed
    return "" if is_dead else fields[19]


# The files, and what workers read from them.


def lease_url(output: str, token: str) -> str:
    return storage.join(output, f"{_PREFIX}{token}.json")


def is_lease(name: str) -> bool:
    """Whether a name in an output folder is a lease, or a lease that is being written."""
    return name.lstrip(".").startswith(_PREFIX)


def write(output: str, token: str, owner: Owner) -> None:
    """Write a lease. Writing it again renews it."""
    storage.publish(lease_url(output, token), json.dumps(asdict(owner)).encode(), durable=False)


def read(output: str, token: str) -> Owner | None:
    """Return the owner of a lease, or None when there is none. A damaged lease holds until it expires."""
    try:
        return Owner(**json.loads(storage.read(lease_url(output, token))))
    except DataError:
        return None
    except (ValueError, TypeError):
        return Owner("an unknown machine", "", 0, "", holds=True)


def remove(output: str, token: str) -> None:
    storage.remove(lease_url(output, token))


def launcher_waits(output: str, token: str, just_written: str) -> bool:
    """Whether the launcher of the job with that token still waits for the job, as far as this machine can tell.

    just_written: a file next to the lease that was just written. Its modification time is the current time by the clock
    of the disk or store.
    """
    owner = read(output, token)
    renewed = storage.modified(lease_url(output, token))
    now = storage.modified(just_written)
    if owner is None or renewed is None or now is None:
        return False
    return not owner.left and not owner.has_ended() and now - renewed < EXPIRES_AFTER


def note_published(output: str, token: str) -> None:
    """Record in the lease that its job has published. If it was kept, it now ends with its launcher, like any other."""
    owner = read(output, token)
    if owner is not None and not owner.published:
        write(output, token, replace(owner, kept=False, published=True))


def may_publish(output: str, token: str) -> bool:
    """Whether the lease exists and its job has not published yet."""
    owner = read(output, token)
    return owner is not None and not owner.published


# Taking a folder, and keeping it.


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
        self.renew(kept=True)

    def leave(self) -> None:
        """Record that no launcher waits for the job, which cleans up after itself.

        Until the lease is kept, it still ends with this process.
        """
        self.left = True
        self.renew(left=True)

    def renew(self, **changes: bool) -> bool:
        """Write the lease again with `changes`. Returns False, and writes nothing, if another job has removed it.

        Other flags stay as in the file, where `note_published` sets some.
        """
        with self._writing:
            owner = read(self.output, self.token)
            if owner is None:
                return False

            flags: dict[str, Any] = {"kept": owner.kept, "left": owner.left, "published": owner.published} | changes
            write(self.output, self.token, replace(this_process(), holds=True, **flags))
            return True

    def end(self) -> None:
        """Remove the lease; or, with `keep`, record in it that the job may continue without this process.

        A job that has published needs no lease. A job that no launcher waits for removes its lease itself, after its
        unfinished files.
        """
        if self.keep and may_publish(self.output, self.token):
            self.renew(kept=True, left=True)
        elif not (self.keep and self.left):
            remove(self.output, self.token)


@contextlib.contextmanager
def all_held(stagings: Sequence[Staging]) -> Iterator[list[Lease]]:
    """Hold the output folders of all stagings while the block runs. If `held` raises, none stays held.

    stagings: in the order of publication, as the leases are. The last folder is taken first: two jobs that want the
    same folders meet at the one that the user named.
    """
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(held(staging.output, staging.token)) for staging in reversed(stagings)]
        yield taken[::-1]


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
        if is_new and storage.is_local(output):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(storage.filesystem(output)[1])


@contextlib.contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """Renew the lease in a thread while the block runs, unless another job removes it: `check_held` reports that."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEW_EVERY):
            with contextlib.suppress(ClozelineError):  # tried again at the next renewal
                if not lease.renew():
                    return

    renewal = threading.Thread(target=renew, daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()


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
    return others is not None and not any(owner.holds for owner in others[0].values())


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
        write(output, token, claim)
        others = _list_others(output, token)
        if others is not None:
            _give_way(output, {other: owner for other, owner in others[0].items() if owner.holds or other < token})
        if others is None or others[0]:
            time.sleep(LOOK_AGAIN)  # those with larger tokens give way, or turn out to hold the folder
            continue

        # Steps 3 and 4.
        write(output, token, replace(claim, holds=True))
        others = _list_others(output, token)
        if others is None:
            time.sleep(LOOK_AGAIN)
            continue
        live, ended = others
        _give_way(output, {other: owner for other, owner in live.items() if owner.holds})

        # Step 5.
        for other in ended:
            remove(output, other)
        return


def _list_others(output: str, token: str) -> tuple[dict[str, Owner], list[str]] | None:
    """List the other leases once. Return the owners of those that live by token, and the tokens of those that ended.

    None if this job's own lease, just written, is gone.
    """
    matches = [_NAME.fullmatch(name) for name in storage.names(output, _PREFIX)]
    tokens = [match[1] for match in matches if match]
    now = storage.modified(lease_url(output, token))
    if now is None or token not in tokens:
        return None

    live: dict[str, Owner] = {}
    ended: list[str] = []
    for other in tokens:
        if other == token:
            continue

        owner = read(output, other)
        written = storage.modified(lease_url(output, other))
        if owner is None or written is None:
            continue  # removed since the listing

        if owner.is_over(age=now - written):
            ended.append(other)
        else:
            live[other] = owner
    return live, ended


def _give_way(output: str, owners: dict[str, Owner]) -> None:
    for token, owner in owners.items():
        url = lease_url(output, token)
        if owner.kept:
            raise UsageError(
                f"{output} is in use by a job that was submitted from {owner.host} and may still run on its engine. "
                f"Wait until it ends, or give another --output. If the job has failed or was canceled, delete {url}."
            )
        raise UsageError(
            f"{output} is in use by another job (process {owner.process} on {owner.host}). Wait until it ends, or give "
            f"another --output. The lease of a job that was killed on another machine expires {EXPIRES_AFTER:.0f} s "
            f"after it was last renewed, in {url}."
        )
