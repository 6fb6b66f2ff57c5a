"""The lease files in an output folder: their names, their owners, and what workers read from them.

leases.py describes how a job takes a folder.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

from pipeline.runtime.lease_owner import EXPIRES_AFTER, Owner
from schemas import storage
from schemas.errors import DataError

_PREFIX = "_lease-"
_NAME = re.compile(rf"{_PREFIX}(\w+)\.json")


def lease_url(output: str, token: str) -> str:
    """Return the URL of the lease that belongs to `token`."""
    return storage.join(output, f"{_PREFIX}{token}.json")


def is_lease(name: str) -> bool:
    """Whether a name in an output folder is a lease, or a lease that is being written."""
    return name.lstrip(".").startswith(_PREFIX)


def tokens(output: str) -> list[str]:
    """Return the tokens of all leases in a folder."""
    matches = [_NAME.fullmatch(name) for name in storage.names(output, _PREFIX)]
    return [match[1] for match in matches if match]


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
    """Remove a lease. Does nothing when there is none."""
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
