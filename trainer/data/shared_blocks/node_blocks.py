"""Blocks that the ranks of a node decode together: each shard once, by whichever rank comes to it first.

    not_shared/          some rank has logged that it cannot share
    <block>/users        every rank that uses the block holds a shared lock on it; the last to leave removes the block
    <block>/3.lock       locked by the rank that decodes shard number 3 of the block
    <block>/3.partial    the file that this rank is writing
    <block>/3.arrays     the decoded shard, complete

Ranks neither send messages nor divide the work in advance. Rank i of a node begins with shard i of a block and wraps
around; shards that another rank is decoding are left for the end. If that rank dies, its lock becomes free, and the
next rank decodes the shard. If it fails with an error, the next rank decodes the shard and meets the same error.

The rows that a rank gets depend on the shards alone. Which rank decoded them only affects when they arrive.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trainer.data.file_locks import release_lock, take_lock
from trainer.data.pair_rows import PairRows, ShardRows, StoredMasks
from trainer.data.shared_blocks.array_file import Arrays, file_size, map_arrays, write_arrays
from trainer.data.shared_blocks.node_folder import SHARED_MEMORY, NodeFolder, enter, leave
from trainer.logs import EVERY_RANK, logger

SHORTEST_PAUSE = 0.005
LONGEST_PAUSE = 0.04
"""Seconds between two checks for shards that other ranks are decoding. Decoding one takes 0.02 seconds or more."""

SAID = "not_shared"

TOO_LITTLE_MEMORY = (
    "Give the container more shared memory (docker: --shm-size; Kubernetes: an emptyDir with medium Memory at "
    f"{SHARED_MEMORY})."
)
TOO_MANY_FILES = "Raise the limit of open files (ulimit -n; docker: --ulimit nofile=65536)."

Decode = Callable[[int], ShardRows]
"""Returns the rows of one shard of a block, by its place in the block. Raises DataError."""


@dataclass(frozen=True)
class Lease:
    """One rank's use of a block in shared memory, until `release`."""

    path: str
    handle: int

    def release(self) -> None:
        """Stop using the block. Arrays that were mapped stay valid; the last rank to leave removes the files."""
        with contextlib.suppress(OSError):
            leave(self.path, self.handle)


@dataclass(frozen=True)
class SharedShards:
    """The decoded shards of a block, in order. lease: None if this process decoded all of them for itself."""

    shards: list[ShardRows]
    lease: Lease | None


class NodeBlocks:
    """The blocks that the ranks of one node share in a folder in shared memory.

    Several threads may use it at the same time, each for different blocks.
    """

    def __init__(self, folder: NodeFolder, local_rank: int):
        self._folder = folder
        self._local_rank = local_rank
        self._closing = threading.Event()

        # Set once shared memory cannot be used; from then on, this rank decodes all shards for itself.
        self._gave_up = threading.Event()

    @property
    def is_shared(self) -> bool:
        """Whether this rank still shares blocks. After the first failure it decodes all further shards for itself."""
        return not self._gave_up.is_set()

    def read(self, block: str, count: int, decode: Decode) -> SharedShards:
        """Return the `count` shards of the block called `block`, each decoded by this rank or by another one.

        Waits for other ranks where necessary. Raises what `decode` raises, and RuntimeError after `stop_waiting`.
        """
        lease = self._enter(block) if self.is_shared else None
        if lease is None:
            return SharedShards([decode(place) for place in range(count)], None)

        try:
            return SharedShards(self._read_together(lease.path, count, decode), lease)
        except BaseException:
            lease.release()
            raise

    def stop_waiting(self) -> None:
        """Wake threads that wait for shards which other ranks are decoding. They raise a RuntimeError."""
        self._closing.set()

    def close(self) -> None:
        """Leave the folder. Release all leases before this."""
        with contextlib.suppress(OSError):
            self._folder.close()

    def _enter(self, block: str) -> Lease | None:
        path = os.path.join(self._folder.path, block)
        try:
            return Lease(path, enter(path))
        except OSError as error:
            self._give_up(error)
            return None

    def _read_together(self, path: str, count: int, decode: Decode) -> list[ShardRows]:
        shards: dict[int, ShardRows] = {}
        left = [(place + self._local_rank) % count for place in range(count)]
        pause = SHORTEST_PAUSE

        while left:
            busy = []
            for place in left:
                shard = self._try_shard(os.path.join(path, str(place)), place, decode)
                if shard is None:
                    busy.append(place)
                else:
                    shards[place] = shard

            # Other ranks are decoding all that is left. Poll, because close() could not interrupt a blocking flock.
            if busy and len(busy) == len(left):
                if self._closing.wait(pause):
                    raise RuntimeError("the blocks were closed while a thread was waiting for one")
                pause = min(2 * pause, LONGEST_PAUSE)
            left = busy
        return [shards[place] for place in range(count)]

    def _try_shard(self, path: str, place: int, decode: Decode) -> ShardRows | None:
        """Return a shard, decoded earlier or now by this rank; None while another rank is decoding it."""
        shard = self._mapped(path)
        if shard is not None:
            return shard
        if not self.is_shared:
            return decode(place)

        try:
            lock = take_lock(f"{path}.lock")
        except OSError as error:
            self._give_up(error)
            return decode(place)

        if lock is None:
            return None
        try:
            # Another rank may have published it before we had the lock.
            shard = self._mapped(path)
            return self._publish(path, decode(place)) if shard is None else shard
        finally:
            release_lock(lock)

    def _mapped(self, path: str) -> ShardRows | None:
        """Return a shard that has been published; None if it has not, or if this process cannot map it."""
        try:
            return from_arrays(map_arrays(f"{path}.arrays"))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None

    def _publish(self, path: str, shard: ShardRows) -> ShardRows:
        """Put a shard into shared memory and return it mapped from there, or unchanged if there is no room."""
        arrays = to_arrays(shard)
        try:
            if not self._folder.has_room(file_size(arrays)):
                self._give_up(OSError(errno.ENOSPC, self._folder.describe_room()))
                return shard
            write_arrays(f"{path}.partial", arrays)
            os.rename(f"{path}.partial", f"{path}.arrays")
            return from_arrays(map_arrays(f"{path}.arrays"))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.partial")
            self._give_up(error)
            return shard

    def _give_up(self, reason: OSError) -> None:
        """Stop sharing on this rank, and log the reason unless another rank of the node has done so."""
        if self.is_shared and is_first_to_say(self._folder.path, self._local_rank):
            log_not_shared(reason)
        self._gave_up.set()


def is_first_to_say(folder: str, local_rank: int) -> bool:
    """Return whether this rank should log that blocks are not shared, which is the first one of the node that asks."""
    try:
        # A folder rather than a file, because creating one needs no file descriptor, and those may have run out.
        os.mkdir(os.path.join(folder, SAID))
    except FileExistsError:
        return False
    except OSError:
        return local_rank == 0
    return True


def log_not_shared(reason: OSError) -> None:
    """Log on this rank that blocks are not shared, and what to do."""
    path = f"{reason.filename}: " if reason.filename else ""
    is_about_files = reason.errno in (errno.EMFILE, errno.ENFILE)
    logger.info(
        "Ranks of this node cannot share decoded shards: %s. Each rank reads all shards itself, which takes more CPU "
        "time and memory. %s",
        f"{path}{reason.strerror or reason}",
        TOO_MANY_FILES if is_about_files else TOO_LITTLE_MEMORY,
        extra=EVERY_RANK,
    )


def to_arrays(shard: ShardRows) -> Arrays:
    """Return a shard's rows and stored masks as plain arrays, by name."""
    arrays = {**vars(shard.rows)}
    if shard.stored is not None:
        arrays["mask_positions"] = shard.stored.positions
        arrays["mask_tokens"] = shard.stored.tokens
        arrays["mask_offsets"] = shard.stored.offsets
    return arrays


def from_arrays(arrays: Arrays) -> ShardRows:
    """Return the shard that `to_arrays` turned into these arrays."""
    of_rows = {name: array for name, array in arrays.items() if not name.startswith("mask_")}
    rows = PairRows(**of_rows)
    if "mask_offsets" not in arrays:
        return ShardRows(rows)

    offsets = arrays["mask_offsets"]
    variants = (len(offsets) - 1) // max(len(rows.labels_B), 1)
    return ShardRows(rows, StoredMasks(variants, arrays["mask_positions"], arrays["mask_tokens"], offsets))
