"""Decoded shards that the ranks of a node share: each is decoded once, by whichever rank comes to it first.

    /dev/shm/clozeline-shards-<user>-<hash>/              mode 0700
    /dev/shm/clozeline-shards-<user>-<hash>/ranks.use     locked by all ranks that use the folder, as readers lock

There is a folder for each run and folder of pairs, named after both. It is a NodeCache of files of plain arrays, which
every rank maps read-only, bounded by the number of shards that all ranks may need at the moment. The last rank to leave
removes it. A killed run leaves it behind; the next start of any run of the same user removes every folder that is not
in use.

Ranks neither send messages nor divide the work in advance. Rank i of a node begins with shard i of a block and wraps
around; shards that another rank is decoding are left for the end. If that rank dies, its lock becomes free, and the
next rank decodes the shard. If it fails with an error, the next rank decodes the shard and meets the same error.

The rows that a rank gets depend on the shards alone. Which rank decoded them only affects when they arrive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.host_limits import ranks_on_this_machine
from trainer.data.node_cache import PAUSE, NodeCache
from trainer.data.rows import PairRows, ShardRows, StoredMasks
from trainer.logs import EVERY_RANK, logger

SHARED_MEMORY: str = "/dev/shm"
"""A file system in memory, on Linux. Containers get 64 MB of it by default."""

FREE_SHARE = 4
FREE_BYTES = 4 * 10**9
"""1 / FREE_SHARE of shared memory stays free, or FREE_BYTES if that is less, because NCCL and gloo use it, too."""

PREFIX = "clozeline-shards-"
USE = "ranks.use"

TOO_LITTLE_MEMORY = (
    "Give the container more shared memory (docker: --shm-size; Kubernetes: an emptyDir with medium Memory at "
    f"{SHARED_MEMORY})."
)
ENTRANCE_SECONDS = 30

TOO_MANY_FILES = "Raise the limit of open files (ulimit -n; docker: --ulimit nofile=65536)."
ADVICE = {
    errno.EMFILE: TOO_MANY_FILES,
    errno.ENFILE: TOO_MANY_FILES,
    errno.EWOULDBLOCK: "A process of an earlier run that was stopped (SIGSTOP) may hold it: end that one.",
}
"""What to do about an error, by its number. Others are taken for too little memory."""

Decode = Callable[[int], ShardRows]
"""Returns the rows of one shard of a block, by its place in the block. Raises DataError."""


class SharedShards:
    """The decoded shards of one folder of pairs that the ranks of a node share in a run.

    Several threads may use it at the same time.
    """

    def __init__(self, name: str, local_rank: int, root: str = SHARED_MEMORY):
        """Enter the folder of `name`, which may be any text, in the file system `root`.

        Removes what killed runs left. Raises OSError if `root` does not exist or does not support locks, or if other
        users can access the folder.
        """
        self._local_rank = local_rank
        self._root = root
        self._closing = threading.Event()

        self.kept_blocks = 5
        """The most blocks that all ranks together may need at the moment: see `PairFolder.expect_blocks`."""

        self._kept_shards = 1
        self.is_shared = True
        """Whether this rank still shares shards. After the first failure it decodes all further ones for itself."""

        name_of_user = os.path.join(root, f"{PREFIX}{os.getuid()}")
        self.folder = f"{name_of_user}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        os.stat(root)  # `_enter` takes a folder that is missing for one that was just removed
        for path in glob.glob(f"{name_of_user}-*"):
            _remove_unused(path)
        self._use = _enter(self.folder)
        self._cache = NodeCache(self.folder, 0, self._pause)

    def read(self, keys: list[str], decode: Decode) -> list[ShardRows]:
        """Return the shards of a block, each decoded by this rank or by another one. keys: the shards' sha256.

        Waits for other ranks where necessary. Raises what `decode` raises, and RuntimeError after `stop_waiting`.
        """
        self._kept_shards = max(self._kept_shards, self.kept_blocks * len(keys))
        shards: dict[int, ShardRows] = {}
        left = [(place + self._local_rank) % len(keys) for place in range(len(keys))]
        while left:
            busy = []
            for place in left:
                shard = self._try_shard(keys[place], place, decode)
                if shard is None:
                    busy.append(place)
                else:
                    shards[place] = shard

            # Other ranks are decoding all that is left.
            if busy == left:
                self._pause(PAUSE)
            left = busy
        return [shards[place] for place in range(len(keys))]

    def stop_waiting(self) -> None:
        """Wake threads that wait for shards which other ranks are decoding. They raise a RuntimeError."""
        self._closing.set()

    def close(self) -> None:
        """Leave the folder, and remove it if no other process uses it. Arrays that were mapped stay valid."""
        fcntl.flock(self._use, fcntl.LOCK_UN)
        os.close(self._use)
        _remove_unused(self.folder)

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise RuntimeError("the shared shards were closed while a thread was waiting for one")

    def _try_shard(self, key: str, place: int, decode: Decode) -> ShardRows | None:
        """Return a shard, decoded earlier or now by this rank; None while another rank is decoding it."""
        if self.is_shared:
            try:
                shard = self._mapped(key)
                if shard is not None:
                    return shard
                with self._cache.lock(key, wait=False) as is_locked:
                    if not is_locked:
                        return None
                    # Another rank may have added it before we had the lock.
                    return self._mapped(key) or self._add(key, decode(place))
            except OSError as error:
                self._give_up(error)
        return decode(place)

    def _mapped(self, key: str) -> ShardRows | None:
        path = self._cache.find(key)
        if path is None:
            return None

        # Python's mmap keeps a file descriptor open for each map, Arrow's does not. Hundreds of shards may be in
        # memory, and the usual limit is 1,024 descriptors per process.
        with contextlib.suppress(FileNotFoundError), pa.memory_map(path, "r") as file:
            return from_buffer(file.read_buffer())
        return None

    def _add(self, key: str, shard: ShardRows) -> ShardRows:
        """Add a shard, whose lock is held, and return it mapped from the folder. Raises OSError."""
        data = to_buffer(shard)
        self._check_room(data.size)
        bound = max(self._cache.max_bytes, self._kept_shards * data.size)
        self._cache.max_bytes = self._cache.window_bytes = bound
        self._cache.add(key, memoryview(data))
        return self._mapped(key) or shard

    def _check_room(self, needed: int) -> None:
        """Raise OSError if `needed` bytes do not fit, or would leave too little shared memory free."""
        space = os.statvfs(self._root)
        free = space.f_bavail * space.f_frsize
        total = space.f_blocks * space.f_frsize
        if free - needed < min(total // FREE_SHARE, FREE_BYTES):
            room = f"{self._root} has {free / 1e6:,.0f} MB free of {total / 1e6:,.0f} MB"
            raise OSError(errno.ENOSPC, room)

    def _give_up(self, reason: OSError) -> None:
        """Stop sharing on this rank, and log the reason: for a lack of memory, which all ranks meet, the first one."""
        was_shared, self.is_shared = self.is_shared, False
        is_own = reason.errno in (errno.EMFILE, errno.ENFILE)
        if was_shared and (is_own or self._local_rank == 0):
            log_not_shared(reason)


def open_shared(name: str) -> SharedShards | None:
    """Return the shards that the ranks of this node share under a name, which is the same on all of them.

    Returns None if the node has one rank, or no memory that its ranks can share, which is logged once per node.
    """
    if ranks_on_this_machine() < 2:
        return None

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        return SharedShards(name, local_rank, SHARED_MEMORY)
    except OSError as error:
        if local_rank == 0:
            log_not_shared(error)
        return None


def log_not_shared(reason: OSError) -> None:
    path = f"{reason.filename}: " if reason.filename else ""
    logger.info(
        "Ranks of this node cannot share decoded shards: %s. Each rank reads all shards itself, which takes more CPU "
        "time and memory. %s",
        f"{path}{reason.strerror or reason}",
        ADVICE.get(reason.errno or 0, TOO_LITTLE_MEMORY),
        extra=EVERY_RANK,
    )


# The folder


def _enter(folder: str) -> int:
    """Create a folder if needed, and return the descriptor of its file USE, locked. Raises OSError."""
    while True:
        # Another process may remove the folder until it is locked.
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            _check_private(folder)
            use = os.open(os.path.join(folder, USE), os.O_RDWR | os.O_CREAT, 0o600)
            _lock_as_reader(use)
            if os.fstat(use).st_nlink > 0:
                return use
            os.close(use)


def _lock_as_reader(use: int) -> None:
    """Wait for one who holds the file alone, for a moment as a rule. Raises BlockingIOError after ENTRANCE_SECONDS."""
    ends_at = time.monotonic() + ENTRANCE_SECONDS
    while True:
        try:
            return fcntl.flock(use, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > ends_at:
                raise
        time.sleep(PAUSE)


def _remove_unused(path: str) -> None:
    """Remove a folder of this user if it can be removed and no process uses it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        _check_private(path)  # other users can create such names, too
        use = os.open(os.path.join(path, USE), os.O_RDWR | os.O_CREAT, 0o600)
        stack.callback(os.close, use)
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(use).st_nlink > 0:  # else others have removed that folder and made this one
            shutil.rmtree(path)


def _check_private(path: str) -> None:
    """Raise PermissionError unless only this user can access the folder, because ranks trust what they find there."""
    found = os.lstat(path)
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if not is_private:
        raise PermissionError(f"{path} belongs to another user, or others can write into it")


# Files


def to_arrays(shard: ShardRows) -> dict[str, NDArray[Any]]:
    arrays = {**vars(shard.rows)}
    if shard.stored is not None:
        arrays["mask_positions"] = shard.stored.positions
        arrays["mask_tokens"] = shard.stored.tokens
        arrays["mask_offsets"] = shard.stored.offsets
    return arrays


def to_buffer(shard: ShardRows) -> pa.Buffer:
    """Return a shard as an Arrow file of one row, in which each array is a list.

    Arrow stores booleans in bits, so they become uint8.
    """
    columns = {}
    for name, array in to_arrays(shard).items():
        values = pa.array(array.view(np.uint8) if array.dtype == np.bool_ else array)
        columns[name] = pa.LargeListArray.from_arrays(pa.array([0, len(values)]), values)

    record = pa.record_batch(columns)
    file = pa.BufferOutputStream()
    with pa.ipc.new_file(file, record.schema) as writer:
        writer.write_batch(record)
    return file.getvalue()


def from_buffer(buffer: pa.Buffer) -> ShardRows:
    """Return the shard that `to_buffer` turned into this file. Its arrays are read-only, and parts of the buffer."""
    with pa.ipc.open_file(buffer) as reader:
        record = reader.get_batch(0)

    arrays = {}
    for name, column in zip(record.schema.names, record.columns, strict=True):
        values = column.values.to_numpy()
        arrays[name] = values.view(np.bool_) if values.dtype == np.uint8 else values

    masks = {name.removeprefix("mask_"): arrays.pop(name) for name in list(arrays) if name.startswith("mask_")}
    rows = PairRows(**arrays)
    if not masks:
        return ShardRows(rows)
    variants = (len(masks["offsets"]) - 1) // max(len(rows.labels_B), 1)
    return ShardRows(rows, StoredMasks(variants, **masks))
