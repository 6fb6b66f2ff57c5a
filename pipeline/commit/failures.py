"""How errors reach the launcher: as the text of an exception (`carried`), or permanent ones of engines as data (below).

Engines do not know permanent errors: they retry any step that raises, even ten times for a missing file. So a step that
hits a permanent error writes it to staging and ends as if it had nothing to emit. Other steps check for errors before
they begin and do nothing if there is one, so nothing is published. The launcher checks while it follows the job, then
cancels the job and raises the error.

    OUTPUT/_unfinished-<job>/failed-<token>.json    the last error of any step

After Ctrl-C the launcher writes an error itself, because Flink continues, or even starts, a job that its job server
calls canceled. With nothing left to do, the job soon reaches its last step, which ends it and releases the folder.

The token is unique to an attempt, so an attempt sees neither the errors of earlier ones nor those of their leftover
workers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

from pipeline.commit import leases
from pipeline.commit.staging import Staging
from schemas import errors, storage
from schemas.errors import ClozelineError, DataError, StorageError

_MARK = "clozeline-error"

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
"""Errors that another attempt would get again: no permission, or no such file."""

_REFUSALS = (PermissionError, FileNotFoundError)  # as clients of object stores raise them, without an errno

_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError")
"""Names of exceptions of botocore and google.auth, which may not be installed."""


@dataclass(frozen=True)
class Failures:
    """The errors of one attempt at a job. Cheap to send to workers."""

    staging: Staging

    def report(self, error: ClozelineError) -> bool:
        """Write an error for the launcher, and return whether that was possible.

        Nothing is written once the job's lease is gone: the job is then done or was taken over, and the error comes
        from a step that an engine runs again.
        """
        content = json.dumps([type(error).__name__, str(error)]).encode()
        try:
            if leases.read(self.staging.output, self.staging.token) is None:
                return False
            self.staging.put(self._name, content)
        except ClozelineError:
            return False
        return True

    def error(self) -> ClozelineError | None:
        """Return the error to raise in the launcher, None if there is none. Takes one request to an object store.

        Raises StorageError when staging cannot be read.
        """
        try:
            name, message = json.loads(storage.read(self.staging.url(self._name)))
        except DataError:  # it does not exist
            return None
        return getattr(errors, name, ClozelineError)(message)

    def end_job_left_alone(self) -> ClozelineError | None:
        """Called by the last step after a failure. Return the error that ends the job; None if a launcher waits for it.

        Removes the lease, so that the next command can use the folder. If the engine repeats the step, the lease is
        already gone.
        """
        output = self.staging.output
        token = self.staging.token
        if leases.launcher_waits(output, token, self.staging.url(self._name)):
            return None

        leases.remove(output, token)
        return self.error()

    def end_job(self, error: ClozelineError) -> None:
        """Called by the launcher: make a job end itself if its engine does not cancel it. Marks it as left alone."""
        output = self.staging.output
        owner = leases.read(output, self.staging.token)
        if owner is not None:
            leases.write(output, self.staging.token, replace(owner, left=True))
        self.report(error)

    def has_ended_job(self) -> bool:
        """Whether the last step has ended the job after `end_job`, and removed the lease. False if unknown."""
        with contextlib.suppress(ClozelineError):
            return leases.read(self.staging.output, self.staging.token) is None
        return False

    def remove(self) -> None:
        storage.remove(self.staging.url(self._name))

    @property
    def _name(self) -> str:
        return f"failed-{self.staging.token}.json"


# Beam passes on an exception as the text of its traceback, so errors that a user can act on travel in it as JSON.


def carried(error: ClozelineError) -> RuntimeError:
    """Return what to raise in a worker, so that `carried_error` can restore the error in the launcher."""
    known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
    content = json.dumps([known, str(error)])
    return RuntimeError(f"<{_MARK}>{content}</{_MARK}>")


def is_carried(text: str) -> bool:
    return f"<{_MARK}>" in text


def carried_error(text: str) -> ClozelineError | None:
    """Return the error that `carried` put into a traceback's text, or None when there is none."""
    match = re.search(rf"<{_MARK}>(.*?)</{_MARK}>", text, re.DOTALL)
    if match is None:
        return None

    name, message = json.loads(match[1])
    return getattr(errors, name)(message)


class Stopped:
    """What a step that must emit one element emits after a failure. Steps that receive it do nothing."""


def is_permanent(error: ClozelineError) -> bool:
    """Whether another attempt would end in the same error.

    Only a StorageError can be temporary: the next machine may have space on its disk, and a store may answer a minute
    later. A StorageError that was not caused by an exception of a disk or store reports what our own checks found, so
    it is permanent.
    """
    cause = error.__cause__
    if not isinstance(error, StorageError) or cause is None:
        return True

    if type(cause).__name__ in _NO_CREDENTIALS:
        return True
    return isinstance(cause, OSError) and (cause.errno in _REFUSED or isinstance(cause, _REFUSALS))


_collected: ContextVar[Failures | None] = ContextVar("failures", default=None)


@contextlib.contextmanager
def collected(failures: Failures | None) -> Iterator[None]:
    """Make steps that are wired in the block report permanent errors to `failures`; with None they raise all errors."""
    token = _collected.set(failures)
    try:
        yield
    finally:
        _collected.reset(token)


def wired() -> Failures | None:
    """Return where the steps being wired report permanent errors; None on local runners, where all are raised."""
    return _collected.get()
