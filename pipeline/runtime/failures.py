"""Errors that no retry can cure, on jobs that run on an engine: they travel as data and not as exceptions.

An engine knows no permanent errors: it retries any step that raises, even ten times over a missing file. So a step
that meets such an error writes it to staging instead and ends as if it had nothing to emit. Other steps look there
before they begin and do nothing once it exists, so nothing is published. The launcher looks there while it follows the
job, cancels the job and raises the error.

    OUTPUT/_unfinished-<job>/failed-<token>/failed.json    exists as soon as any step has failed
    OUTPUT/_unfinished-<job>/failed-<token>/<hash>.json    one for each different error

After Ctrl-C the launcher writes there itself: Flink goes on with a job that its job server calls canceled, and even
begins one. With nothing left to do it comes to its last step soon, which ends it and gives the folder free.

The token is the attempt's, so an attempt meets neither the errors of earlier ones nor those of their last workers.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

from pipeline.runtime import lease_files
from pipeline.runtime.staging import Staging
from schemas import errors, storage
from schemas.errors import ClozelineError, DataError, StorageError
from schemas.randomness import key

_FLAG = "failed.json"

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
"""What another attempt would meet again: no permission, or no such file."""

_REFUSALS = (PermissionError, FileNotFoundError)  # as the packages of object stores raise them, without a number

_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError")
"""Names of exceptions of botocore and google.auth, which may not be installed."""


@dataclass(frozen=True)
class Failures:
    """The errors of one attempt at a job. Cheap to send to workers."""

    staging: Staging

    def report(self, error: ClozelineError) -> bool:
        """Write an error for the launcher, and return whether that was possible.

        Nothing is written once the job's lease is gone: then the job is done or was taken over, and this comes from a
        step that an engine runs again.
        """
        name = type(error).__name__
        message = str(error)
        content = json.dumps({"type": name, "message": message}).encode()

        try:
            if self.staging.token and lease_files.read(self.staging.output, self.staging.token) is None:
                return False
            self.staging.put(self._name(f"{key(name, message):016x}.json"), content)
            self.staging.put(self._name(_FLAG), content)
        except ClozelineError:
            return False
        return True

    def exist(self) -> bool:
        """Whether any step has failed. Takes one request to an object store."""
        try:
            storage.read(self.staging.url(self._name(_FLAG)))
        except DataError:  # it does not exist
            return False
        return True

    def first(self) -> ClozelineError | None:
        """Return the error to raise in the launcher: of several, the first by type and message. None if there is none.

        Raises StorageError when staging cannot be read.
        """
        if not self.exist():
            return None

        folder = self.staging.url(self._name(""))
        names = [name for name in storage.names(folder) if not storage.is_partial(name)]
        contents = [json.loads(storage.read(storage.join(folder, name))) for name in names]
        first = min(contents, key=lambda content: (content["type"], content["message"]))
        return getattr(errors, first["type"], ClozelineError)(first["message"])

    def end_job_left_alone(self) -> ClozelineError | None:
        """Called by the last step after a failure. Return the error that ends the job, if no launcher waits for it.

        The lease goes, so that the next command can use the folder. A repetition of the step finds none any more.
        """
        output = self.staging.output
        token = self.staging.token
        if lease_files.launcher_waits(output, token, self.staging.url(self._name(_FLAG))):
            return None

        lease_files.remove(output, token)
        return self.first()

    def end_job(self, error: ClozelineError) -> None:
        """Called by the launcher: have a job that its engine does not cancel end itself. Nobody waits for it now."""
        output = self.staging.output
        owner = lease_files.read(output, self.staging.token)
        if owner is not None:
            lease_files.write(output, self.staging.token, replace(owner, left=True))
        self.report(error)

    def has_ended_job(self) -> bool:
        """Whether the last step has ended the job after `end_job`: it has removed the lease. False if not known."""
        with contextlib.suppress(ClozelineError):
            return lease_files.read(self.staging.output, self.staging.token) is None
        return False

    def remove(self) -> None:
        """Remove what was reported."""
        storage.remove(self.staging.url(self._name("")).rstrip("/"))

    def _name(self, file: str) -> str:
        return f"failed-{self.staging.token}/{file}"


class Stopped:
    """What a step that always emits one element emits after a failure. Steps that are given one do nothing."""


def is_permanent(error: ClozelineError) -> bool:
    """Whether another attempt would end in the same error.

    Only a StorageError may be otherwise: a disk that is full or a store that is out of reach may not be so on the next
    machine or a minute later. One that no exception of a disk or a store caused is about what the job itself found.
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
    """Have the steps that are wired inside the block report their permanent errors; None has them raise all errors."""
    token = _collected.set(failures)
    try:
        yield
    finally:
        _collected.reset(token)


def wired() -> Failures | None:
    """Return where the steps that are being wired report to; None on local runners, where every error is raised."""
    return _collected.get()
