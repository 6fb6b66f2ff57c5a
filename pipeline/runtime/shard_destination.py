"""Where the finished shards of a job go until all are complete: into the output folder directly, or into staging.

    OUTPUT/_unfinished-owner.json    {"job", "generation", "is_direct"}, on object stores while a job is unfinished

On a disk shards are staged, because a rename costs nothing. A store has no rename: a staged shard is copied when it is
published. So if the output folder holds no finished result, shards are uploaded under their final names at once, and
only their reports are in staging. A finished result must stay intact until its replacement is complete, so shards are
staged then.

Two jobs, one after the other, may leave shards with the same names in one folder. A job that takes over a folder from
another one begins a new generation, under its lease. A shard in the output folder counts only if its report names the
current generation: no other job wrote there between two attempts with the same generation.

On an engine, a worker may outlive its launcher and its lease. So it checks the owner before and after an upload:
before, so that it writes nothing once another job has taken over; after, in case that happened during the upload. Then
it removes the shard that it may have overwritten, and the other job finds that the shard is missing.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import asdict, dataclass

from schemas import manifest as manifests
from schemas import storage
from schemas.errors import DataError, StorageError

OWNER = "_unfinished-owner.json"


@dataclass(frozen=True)
class ShardDestination:
    """Who puts shards into a folder, and how.

    job: the key of the job's options and inputs.
    generation: identifies the period in which no other job wrote there.
    is_direct: shards are uploaded under their final names at once.
    """

    job: str
    generation: str = ""
    is_direct: bool = False


def decide(output: str, job: str) -> None:
    """Decide where a job's shards go, and record it for the workers. The caller holds the folder's lease.

    A job that resumes its own work keeps its decision, unless it uploads directly and a result was finished there
    since.
    """
    if storage.is_local(output):
        return

    owner = _read(output)
    has_result = storage.exists(storage.join(output, manifests.NAME))
    if owner is not None and owner.job == job and not (owner.is_direct and has_result):
        return

    new = ShardDestination(job, generation=uuid.uuid4().hex, is_direct=not has_result)
    storage.publish(storage.join(output, OWNER), json.dumps(asdict(new)).encode())


def current(output: str, job: str, token: str) -> ShardDestination:
    """Return where the shards of a running job go. One request to a store; none to a disk.

    Raises StorageError if another job has taken over the folder. A job without a lease (an empty token) stages all
    shards.
    """
    if token == "" or storage.is_local(output):
        return ShardDestination(job)

    owner = _read(output)
    if owner is None or owner.job != job:
        raise StorageError(
            f"{output} is no longer held by this job: it was finished or stopped, or another job took over. Run the "
            "same command again once no other job works there; finished pieces are reused."
        )
    return owner


def upload(destination: ShardDestination, output: str, name: str, data: bytes) -> None:
    """Write a shard under its final name. Raises StorageError if another job took over meanwhile."""
    url = storage.join(output, name)
    storage.publish(url, data)

    owner = _read(output)
    if owner == destination:
        return

    # Without an owner the result is finished, perhaps by another attempt of this job with the same bytes, so the shard
    # stays.
    if owner is not None:
        storage.remove(url)
    raise StorageError(f"{output} was taken over by another job while {name} was written. Run the same command again.")


def _read(output: str) -> ShardDestination | None:
    """Return who owns the shards in a folder; None if no job does, or if the file is not one of ours."""
    with contextlib.suppress(DataError, ValueError, TypeError):
        return ShardDestination(**json.loads(storage.read(storage.join(output, OWNER))))
    return None
