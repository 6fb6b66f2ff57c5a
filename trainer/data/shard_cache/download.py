"""Downloads one remote shard, checks its bytes as they arrive, and tells temporary errors from permanent ones."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from schemas.manifest import Shard

STORE_TIMEOUT = 60.0
"""Seconds that a store may take to open a file or to return the next piece; after that, the attempt has failed."""

PIECE_BYTES = 4 << 20

TEMPORARY_KINDS = (
    "Timeout",
    "Connection",
    "Disconnected",
    "HTTPClientError",
    "Payload",
    "Incomplete",
    "Streaming",
    "Checksum",
)
"""Substrings of the class names of temporary errors in botocore, aiohttp and others."""

REQUEST_TIMEOUT = 408
TOO_MANY_REQUESTS = 429


class FailedTryError(Exception):
    """An attempt to fetch a shard failed. may_pass: whether another attempt may succeed."""

    def __init__(self, message: str, may_pass: bool = True):
        super().__init__(message)
        self.may_pass = may_pass


class WrongBytesError(FailedTryError):
    """The bytes that were downloaded do not match the manifest."""


def pieces(store: Any, path: str, shard: Shard) -> Iterator[bytes]:
    """Yield the bytes of a remote shard, and check its hash after the last piece. Raises FailedTryError.

    The size is checked on the way: no more bytes are yielded than the manifest states.
    """
    remote = _call_in_time(lambda: store.open(path, "rb", block_size=PIECE_BYTES))
    digest = hashlib.sha256()
    size = 0

    while True:
        piece = _call_in_time(lambda: remote.read(PIECE_BYTES))
        if not piece:
            break

        size += len(piece)
        if size > shard.bytes:
            raise WrongBytesError(f"has more bytes than the {shard.bytes:,} that its manifest says")
        digest.update(piece)
        yield piece

    _call_in_time(remote.close)
    if size < shard.bytes:
        raise WrongBytesError(f"has {size:,} bytes, but its manifest says {shard.bytes:,}")
    if digest.hexdigest() != shard.sha256:
        raise WrongBytesError(f"has sha256 {digest.hexdigest()[:12]}..., but its manifest says {shard.sha256[:12]}...")


def _call_in_time(call: Callable[[], Any]) -> Any:
    """Return what a call to a store returns. Raises FailedTryError if it fails or takes longer than STORE_TIMEOUT.

    A call that hangs cannot be stopped. It is left behind in a daemon thread, which does not delay the process's exit.
    """
    answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=answer, daemon=True).start()
    try:
        result, error = answers.get(timeout=STORE_TIMEOUT)
    except Empty:
        raise FailedTryError(f"no answer for {STORE_TIMEOUT:g} seconds") from None

    if error is not None:
        raise FailedTryError(f"{type(error).__name__}: {error}", _is_temporary(error)) from error
    return result


def _is_temporary(error: BaseException) -> bool:
    """Return whether another attempt may succeed after this error of a store.

    The errors of a store's package are recognized by their attributes and class names, because the package may not be
    installed.
    """
    if isinstance(error, TimeoutError):
        return True
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return False

    status = _http_status(error)
    if status is not None:
        return status >= 500 or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)
    if str(error).startswith("Forbidden"):  # how gcsfs reports status 403, in a bare OSError
        return False

    if isinstance(error, OSError):
        return True
    class_names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if any(part in class_names for part in TEMPORARY_KINDS):
        return True

    # A package may wrap the original error.
    return error.__context__ is not None and _is_temporary(error.__context__)


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status, 400 to 599, of an error or of one of its causes; None if there is none."""
    current: BaseException | None = error
    while current is not None:
        # aiohttp has `status`, gcsfs `code`, requests `status_code`; botocore a nested dictionary.
        candidates = [getattr(current, name, None) for name in ("status", "code", "status_code")]
        response = getattr(current, "response", None)
        if isinstance(response, dict):
            candidates.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))

        for candidate in candidates:
            if str(candidate).isdigit() and 400 <= int(str(candidate)) < 600:
                return int(str(candidate))
        current = current.__cause__
    return None
