"""Blocks that the ranks of a node decode together: each shard once, by whichever rank comes to it first.

    not_shared/          some rank has logged that it cannot share
    <block>/users        locked, shared, by every rank that uses the block; whoever leaves last removes the block
    <block>/3.lock       locked by the rank that decodes shard number 3 of the block
    <block>/3.partial    what that rank writes
    <block>/3.arrays     the decoded shard, complete

Ranks neither send messages nor divide the work beforehand. Rank i of a node begins with shard i of a block and goes
round; shards that another rank is decoding are left for the end. If that rank dies or fails, its lock is free, and the
next one decodes the shard itself, and meets the same error.

What a rank gets depends on the shards alone: where they were decoded changes when it gets them, and nothing else.
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
"""Seconds between two looks at shards that other ranks decode. Decoding one takes 0.02 seconds or more."""

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
        """Give the block up. Arrays that were mapped stay as they are; the last one to leave removes the files."""
        with contextlib.suppress(OSError):
            leave(self.path, self.handle)


@dataclass(frozen=True)
class SharedShards:
    """The decoded shards of a block, in order. lease: None if they are this process's own."""

    shards: list[ShardRows]
    lease: Lease | None


class NodeBlocks:
    """The blocks that the ranks of one node share in a folder in shared memory.

    Threads may use it at once, each for other blocks.
    """

    def __init__(self, folder: NodeFolder, local_rank: int):
        self._folder = folder
        self._local_rank = local_rank
        self._closing = threading.Event()

        # Set when shared memory cannot be used any more; this rank then decodes all shards for itself.
        self._gave_up = threading.Event()

    @property
    def is_shared(self) -> bool:
        """Whether blocks are still shared. Once this rank could not, all that it reads is its own."""
        return not self._gave_up.is_set()

    def read(self, block: str, count: int, decode: Decode) -> SharedShards:
        """Return the `count` shards of the block called `block`, each decoded by this rank or by another.

        Waits for other ranks where need be. Raises what `decode` raises.
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
        """End the waiting of other threads for shards that other ranks decode. They get a RuntimeError."""
        self._closing.set()

    def close(self) -> None:
        """Leave the folder. The blocks that were read are given up one by one, before."""
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

            # Others are decoding all that is left. A blocking flock would not end when the blocks are closed.
            if busy and len(busy) == len(left):
                if self._closing.wait(pause):
                    raise RuntimeError("the blocks were closed while a thread was waiting for one")
                pause = min(2 * pause, LONGEST_PAUSE)
            left = busy
        return [shards[place] for place in range(count)]

    def _try_shard(self, path: str, place: int, decode: Decode) -> ShardRows | None:
        """Return a shard that is there or that this rank can decode; None while another rank is decoding it."""
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
        """Return a shard that is there; None if it is not, or if this process can map no more."""
        try:
            return from_arrays(map_arrays(f"{path}.arrays"))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None

    def _publish(self, path: str, shard: ShardRows) -> ShardRows:
        """Put a shard into shared memory. Returns it from there, or as it is if there is no room."""
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
        """Decode all further shards in this process alone, and say so if no other rank of the node has."""
        if self.is_shared and is_first_to_say(self._folder.path, self._local_rank):
            log_not_shared(reason)
        self._gave_up.set()


def is_first_to_say(folder: str, local_rank: int) -> bool:
    """Return whether this rank should log that blocks are not shared: the first one of the node that asks."""
    try:
        # A folder and not a file, because making one needs no descriptor, and these may be what is missing.
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
    """Return a shard's rows and masks as plain arrays."""
    arrays = {**vars(shard.rows)}
    if shard.stored is not None:
        arrays["mask_positions"] = shard.stored.positions
        arrays["mask_tokens"] = shard.stored.tokens
        arrays["mask_offsets"] = shard.stored.offsets
    return arrays


def from_arrays(arrays: Arrays) -> ShardRows:
    """Do the opposite of `to_arrays`."""
    of_rows = {name: array for name, array in arrays.items() if not name.startswith("mask_")}
    rows = PairRows(**of_rows)
    if "mask_offsets" not in arrays:
        return ShardRows(rows)

    offsets = arrays["mask_offsets"]
    variants = (len(offsets) - 1) // max(len(rows.labels_B), 1)
    return ShardRows(rows, StoredMasks(variants, arrays["mask_positions"], arrays["mask_tokens"], offsets))
