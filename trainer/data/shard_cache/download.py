"""The bytes of one remote shard, checked as they come; what may pass is told from what will not."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

from schemas.manifest import Shard

SILENCE = 60.0
"""Seconds that a store may take to open a file or to give the next BLOCK; then the try has failed."""
BLOCK = 4 << 20
PASSING_KINDS = (
    "Timeout",
    "Connection",
    "Disconnected",
    "HTTPClientError",
    "Payload",
    "Incomplete",
    "Streaming",
    "Checksum",
)
"""Parts of the names of those errors of botocore, aiohttp and others that another try may not meet."""


class FailedTryError(Exception):
    """A try did not bring the shard."""

    def __init__(self, message: str, may_pass: bool = True):
        super().__init__(message)
        self.may_pass = may_pass


class WrongBytesError(FailedTryError):
    """What came is not what the manifest says."""


def pieces(fs: Any, path: str, shard: Shard) -> Iterator[bytes]:
    """The bytes of a remote shard, checked when the last one has come. Raises FailedTryError."""
    remote = _in_time(lambda: fs.open(path, "rb", block_size=BLOCK))
    digest, size = hashlib.sha256(), 0
    while piece := _in_time(lambda: remote.read(BLOCK)):
        size += len(piece)
        if size > shard.bytes:
            raise WrongBytesError(f"has more bytes than the {shard.bytes:,} that its manifest says")
        digest.update(piece)
        yield piece
    _in_time(remote.close)
    if size < shard.bytes:
        raise WrongBytesError(f"has {size:,} bytes, but its manifest says {shard.bytes:,}")
    if digest.hexdigest() != shard.sha256:
        found = digest.hexdigest()[:12]
        raise WrongBytesError(f"has sha256 {found}..., but its manifest says {shard.sha256[:12]}...")


def _in_time(call: Callable[[], Any]) -> Any:
    """What a call to a store returns. Raises FailedTryError when it fails or takes longer than SILENCE.

    A call that hangs cannot be stopped. It stays behind in a thread of its own, which holds up no exit.
    """
    answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=answer, daemon=True).start()
    try:
        result, error = answers.get(timeout=SILENCE)
    except Empty:
        raise FailedTryError(f"no answer for {SILENCE:g} seconds") from None
    if error is not None:
        raise FailedTryError(f"{type(error).__name__}: {error}", _may_pass(error)) from error
    return result


def _may_pass(error: BaseException) -> bool:
    """Whether another try may not meet this error of a store.

    The errors of a store's package are known by what they carry and how they are called: it may not be installed.
    """
    if isinstance(error, TimeoutError):
        return True
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)):
        return False
    if status := _status(error):
        return status >= 500 or status in (408, 429)
    if str(error).startswith("Forbidden"):  # gcsfs says so in a bare OSError
        return False
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, OSError) or any(part in kinds for part in PASSING_KINDS):
        return True
    return error.__context__ is not None and _may_pass(error.__context__)


def _status(error: BaseException | None) -> int:
    """The HTTP status that an error or its cause carries, else 0."""
    while error is not None:
        response = getattr(error, "response", None)
        stated = [getattr(error, name, None) for name in ("status", "code", "status_code")]
        if isinstance(response, dict):
            stated.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        for status in stated:
            if str(status).isdigit() and 400 <= int(str(status)) < 600:
                return int(str(status))
        error = error.__cause__
    return 0
