"""Shards of a remote folder: downloaded once a node, and kept in a cache folder on a local disk.

A copy is named by its sha256 (node_cache.py), so runs, ranks and folders share copies, and a rebuilt shard is a
different file. Every copy is checked each time it is read.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

from schemas import storage
from schemas.errors import DataError, StorageError, UsageError
from schemas.manifest import Shard
from trainer.data.node_cache import NodeCache
from trainer.logs import logger

WAITS = (0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts to download a shard; there is one more attempt than there are waits."""

STORE_TIMEOUT = 60.0
"""Seconds that a store may take to open a file or to return the next piece; after that, the attempt has failed."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a disk without room."""

PIECE_BYTES = 4 << 20
CLOSE_POLL_SECONDS = 0.1

WINDOW_SHARDS = 32
"""The cache's window, in shards of the largest size: four blocks that are being read, or just were."""


class ClosedError(RuntimeError):
    """The shards were closed while a thread was still downloading or waiting."""


class WrongBytesError(Exception):
    """The bytes that were downloaded do not match the manifest."""


class RemoteShards:
    """The shards of a remote folder, through a cache folder that all processes of the node share.

    Create it in the process that uses it, because a connection to a store does not survive a fork.
    """

    def __init__(self, folder: str, shards: list[Shard], cache: str, max_bytes: int):
        """Use the local folder `cache`, whose copies may take `max_bytes` in all, for the shards of `folder`.

        Raises UsageError if the cache cannot be used or a shard does not fit.
        """
        if not storage.is_local(cache):
            raise UsageError(f"The cache folder {cache} is not local. Give a folder on a disk of this machine.")

        self._folder = folder
        self._store, self._root = storage.filesystem(folder)
        self._closing = threading.Event()
        self._is_told = False  # that the disk is full
        _, self._cache_folder = storage.filesystem(cache)
        self._max_bytes = max_bytes
        with self._cache_errors():
            self._cache = NodeCache(self._cache_folder, max_bytes, self._pause)

        for shard in shards:
            self._check(shard)
        largest = max((shard.bytes for shard in shards), default=0)
        self._cache.window_bytes = min(max_bytes, WINDOW_SHARDS * largest)
        self._cache.expect(shard.sha256 for shard in shards)

    def read(self, shard: Shard) -> bytes:
        """Return a shard's bytes, from its copy or from the store. Raises DataError or StorageError."""
        key = shard.sha256
        with self._cache_errors():
            data = self._read_copy(shard)
            if data is None:
                with self._cache.lock(key):
                    data = self._read_copy(shard)  # another one may have fetched it while we waited
                    if data is None:
                        data = self._download(shard)
                        self._keep(key, data)
        return data

    def _keep(self, key: str, data: bytes) -> None:
        """Add a copy to the cache, if its disk has room. Without it the shard will be downloaded again."""
        try:
            self._cache.add(key, data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._is_told:
                self._is_told = True
                logger.warning(
                    "The disk of the cache folder %s is full: shards are downloaded each time that they are read. Free "
                    "disk space.",
                    self._cache_folder,
                )

    def close(self) -> None:
        """End the downloads that other threads wait for. The copies stay on disk for the next run."""
        self._closing.set()

    def _read_copy(self, shard: Shard) -> bytes | None:
        """Return the bytes of a shard's copy; None if there is none, or not with the manifest's size and sha256."""
        path = self._cache.find(shard.sha256)
        if path is None:
            return None
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            return data if storage.sha256(data) == shard.sha256 else None
        return None

    def _download(self, shard: Shard) -> bytes:
        url = storage.join(self._folder, shard.path)
        what = f"{url}, a shard of {shard.bytes:,} bytes,"
        failure = Exception()
        for wait in (0.0, *WAITS):
            self._pause(wait)
            try:
                return self._try_download(shard)
            except ClosedError:
                raise
            except FileNotFoundError as error:
                raise DataError(
                    f"{url} does not exist, but its manifest names it. Copy it there or rebuild the folder."
                ) from error
            except PermissionError as error:
                raise StorageError(
                    f"{what} cannot be read: {type(error).__name__}: {str(error).rstrip('.')}. Check the address, the "
                    "credentials, and their permission to read it."
                ) from error
            except Exception as error:
                failure = error

        if isinstance(failure, WrongBytesError):
            raise DataError(f"{url} {failure}. Copy it again or rebuild the folder with --overwrite.") from failure
        raise StorageError(
            f"{what} could not be read in {len(WAITS) + 1} tries; the last one failed with "
            f"{type(failure).__name__}: {str(failure).rstrip('.')}. Check the network, the store and the credentials, "
            "then run the same command again."
        ) from failure

    def _try_download(self, shard: Shard) -> bytes:
        """Return a shard's bytes. Raises WrongBytesError, TimeoutError, ClosedError, or any error of the store.

        A store that hangs cannot be stopped. It is left behind in a daemon thread, which delays no exit.
        """
        answers: SimpleQueue[bytes | Exception] = SimpleQueue()
        is_wanted = threading.Event()
        is_wanted.set()
        path = storage.join(self._root, shard.path)
        threading.Thread(target=_read_pieces, args=(self._store, path, answers, is_wanted), daemon=True).start()

        pieces = []
        size = 0
        try:
            while piece := self._next_piece(answers):
                pieces.append(piece)
                size += len(piece)
                if size > shard.bytes:
                    raise WrongBytesError(f"has more bytes than the {shard.bytes:,} that its manifest says")
        finally:
            is_wanted.clear()

        if size < shard.bytes:
            raise WrongBytesError(f"has {size:,} bytes, but its manifest says {shard.bytes:,}")
        data = b"".join(pieces)
        found = storage.sha256(data)
        if found != shard.sha256:
            raise WrongBytesError(f"has sha256 {found[:12]}..., but its manifest says {shard.sha256[:12]}...")
        return data

    def _next_piece(self, answers: SimpleQueue[bytes | Exception]) -> bytes:
        deadline = time.monotonic() + STORE_TIMEOUT
        while time.monotonic() < deadline:
            self._pause(0)
            with contextlib.suppress(Empty):
                answer = answers.get(timeout=CLOSE_POLL_SECONDS)
                if isinstance(answer, Exception):
                    raise answer
                return answer
        raise TimeoutError(f"no answer for {STORE_TIMEOUT:g} seconds")

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ClosedError("the shards were closed")

    def _check(self, shard: Shard) -> None:
        """Raise UsageError if the shard never fits."""
        url = storage.join(self._folder, shard.path)
        if shard.bytes > self._max_bytes:
            raise UsageError(
                f"{url} has {shard.bytes:,} bytes, but the cache {self._cache_folder} may hold "
                f"{self._max_bytes:,}. Increase data.cache_gigabytes, so that several shards fit."
            )

    @contextlib.contextmanager
    def _cache_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind, advice = UsageError, "Give a folder that can be written."
            if error.errno in FULL:
                kind, advice = StorageError, "Free disk space or decrease data.cache_gigabytes."
            raise kind(f"The cache folder {self._cache_folder} cannot be used: {error}. {advice}") from error


def _read_pieces(store: Any, path: str, answers: SimpleQueue[bytes | Exception], is_wanted: threading.Event) -> None:
    """Answer with the pieces of a remote file, then with an empty one; or with an error."""
    try:
        with store.open(path, "rb", block_size=PIECE_BYTES) as remote:
            while is_wanted.is_set():
                piece = remote.read(PIECE_BYTES)
                answers.put(piece)
                if not piece:
                    return
    except Exception as error:
        answers.put(error)
