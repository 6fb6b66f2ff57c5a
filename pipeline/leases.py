"""One job at a time in an output folder, on disks and on object stores alike.

    OUTPUT/_lease-<token>.json    who works there; written again every RENEW_EVERY seconds while the job lives

Object stores have no locks and not all of them can create a file on a condition, but all list a file once it is
written. So a job first writes its own claim and then lists the others. Of two claims that meet, the later writer sees
the earlier one: it gives way to a job that holds the folder, and among jobs that only claim it, the smallest token
wins.

A lease ends when its owner removes it, when its owner's process is gone (seen on the owner's machine alone), or when it
has not been renewed for EXPIRES_AFTER seconds. Its age is measured against the reader's own lease, by the clock of the
disk or store that both lie on, so clocks of machines need not agree. Nothing of a lease reaches an output.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from schemas import storage
from schemas.errors import ClozelineError, DataError, StorageError, UsageError

RENEW_EVERY = 15.0  # seconds; a request to an object store each time
EXPIRES_AFTER = 120.0  # seconds without renewal: eight renewals may fail
LOOK_AGAIN = 0.2  # seconds between looks at another job that is claiming the folder too

_PREFIX = "_lease-"
_NAME = re.compile(rf"{_PREFIX}(\w+)\.json")


@dataclass(frozen=True)
class Owner:
    """A process, distinct from any other that has or had its number.

    machine: the boot and the process namespace in which `process` means something; empty where the system has neither.
    started: when the process began, in the system's ticks.
    holds: the folder is held; before that it is only claimed.
    """

    host: str
    machine: str
    process: int
    started: str
    holds: bool = False

    def is_gone(self) -> bool:
        """Whether the process has ended. False when that cannot be known from here."""
        here = this_process()
        if not here.machine or (self.host, self.machine) != (here.host, here.machine):
            return False
        return start_of(self.process) != self.started


@dataclass
class Lease:
    """A folder that this process holds. With `keep` the lease outlives the block, until it expires."""

    output: str
    token: str
    keep: bool = False


def this_process() -> Owner:
    return Owner(socket.gethostname(), _machine(), os.getpid(), start_of(os.getpid()))


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(process: int) -> str:
    """When a process began, in ticks since boot. Empty when there is none, or only its exit status is left."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else started


def lease_url(output: str, token: str) -> str:
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
        if not lease.keep:
            with contextlib.suppress(ClozelineError):  # a lease that cannot be removed expires
                storage.remove(lease_url(output, token))
        if is_new:
            _remove_if_empty(output)


def check_held(output: str, token: str) -> None:
    """Raises StorageError when the lease of that token is gone, for the folder may be another job's by now."""
    if not storage.exists(lease_url(output, token)):
        raise StorageError(
            f"{output} is no longer held by this job: it was stopped, or could not renew its lease for "
            f"{EXPIRES_AFTER:.0f} s and another job took over. This job published nothing. Run the same command again "
            "once no other job works there; finished pieces are reused."
        )


def _claim(output: str, token: str) -> None:
    me = this_process()
    while True:
        _write(output, token, me)
        others = _live_others(output, token)
        for other, owner in others:
            if owner.holds or other < token:
                raise _in_use(output, other, owner)
        if not others:
            break
        time.sleep(LOOK_AGAIN)  # those with larger tokens give way, or turn out to hold the folder

    _write(output, token, replace(me, holds=True))
    _remove_ended(output, token)


@contextlib.contextmanager
def _renewed(output: str, token: str) -> Iterator[None]:
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(output, token, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()


def _renew(output: str, token: str, ended: threading.Event) -> None:
    """Write the lease again until `ended`; one that another job removed stays removed, and `check_held` notices."""
    owner = replace(this_process(), holds=True)
    while not ended.wait(RENEW_EVERY):
        with contextlib.suppress(ClozelineError):  # tried again at the next renewal
            if not storage.exists(lease_url(output, token)):
                return
            _write(output, token, owner)


def _live_others(output: str, token: str) -> list[tuple[str, Owner]]:
    """(token, owner) of the other leases that have not ended. Needs this job's own claim, just written."""
    now = storage.modified(lease_url(output, token))
    live = []
    for other in _tokens(output):
        owner = _read(output, other)
        written = storage.modified(lease_url(output, other))
        if other == token or owner is None or written is None or now is None:
            continue  # its own, or removed meanwhile
        if not owner.is_gone() and now - written < EXPIRES_AFTER:
            live.append((other, owner))
    return live


def _remove_ended(output: str, token: str) -> None:
    live = {other for other, _ in _live_others(output, token)}
    for other in _tokens(output):
        if other != token and other not in live:
            storage.remove(lease_url(output, other))


def _tokens(output: str) -> list[str]:
    found = [_NAME.fullmatch(name) for name in storage.names(output)]
    return [name[1] for name in found if name]


def _write(output: str, token: str, owner: Owner) -> None:
    storage.publish(lease_url(output, token), json.dumps(asdict(owner)).encode(), durable=False)


def _read(output: str, token: str) -> Owner | None:
    """The owner of a lease, or None when it was removed meanwhile. One that is damaged holds until it expires."""
    try:
        return Owner(**json.loads(storage.read(lease_url(output, token))))
    except DataError:
        return None
    except (ValueError, TypeError):
        return Owner("an unknown machine", "", 0, "", holds=True)


def _in_use(output: str, token: str, owner: Owner) -> UsageError:
    return UsageError(
        f"{output} is in use by another job (process {owner.process} on {owner.host}). Wait until it ends, or give "
        f"another --output. A job that was killed on another machine gives the folder free {EXPIRES_AFTER:.0f} s after "
        f"its last sign of life in {lease_url(output, token)}."
    )


def _remove_if_empty(output: str) -> None:
    if storage.is_local(output):
        with contextlib.suppress(OSError):
            os.rmdir(storage.filesystem(output)[1])
