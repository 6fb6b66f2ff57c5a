"""Which process holds a run's folder.

flock is the rule: the system releases it with the process, however that ends. Some file systems have none (Lustre
mounted without -o flock, several FUSE mounts). There the holder keeps a file that only one process can create and
rewrites it every few seconds; a process that finds such a file waits to see whether it still changes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import sys
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import IO, Protocol

from schemas.errors import UsageError

LOCK = "lock"  # stays in the folder; what counts is who holds it
OWNER = "lock.owner"
BEAT = 4.0  # seconds between two signs of life in OWNER
PATIENCE = 5  # beats without a change after which the holder is gone
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


class Held(Protocol):
    """A lock that is held until it is closed."""

    def close(self) -> None: ...


def hold(run: str) -> Held:
    """Hold a run's folder. Raises UsageError when a live run holds it, and OSError when it cannot be written."""
    file = Path(run, LOCK).open("a+")  # noqa: SIM115 (open for as long as the run lasts)
    owner: _Owner | None = None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise in_use(run, holder) from None
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            file.close()
            raise
        print(
            f"clozeline: the file system of {run} has no flock ({error.strerror}). The run is held by {OWNER} there, "
            "which is rewritten every few seconds.",
            file=sys.stderr,
            flush=True,
        )
        owner = _Owner(run)

    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return _Both(file, owner)


def in_use(run: str, holder: str) -> UsageError:
    return UsageError(f"{run} is in use by a live run ({holder}). End that one first, or give another run.output.")


class _Both:
    """The lock file and, without flock, the owner's file."""

    def __init__(self, file: IO[str], owner: _Owner | None):
        self._file = file
        self._owner = owner

    def close(self) -> None:
        if self._owner is not None:
            self._owner.close()
        self._file.close()


class _Owner:
    """RUN/lock.owner: created by one process only, and rewritten by a thread as long as that process lives."""

    def __init__(self, run: str):
        self._path = Path(run, OWNER)
        self._beats = 0
        self._name = f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(4)}"
        self._create(run)
        self._closed = Event()
        self._thread = Thread(target=self._work, name="run lock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_mine(_text_of(self._path) or ""):
                self._path.unlink()

    def _create(self, run: str) -> None:
        """Raises UsageError when the file's owner lives."""
        while True:
            try:
                with self._path.open("x") as file:
                    file.write(self._text())
                return
            except FileExistsError:
                stale = self._wait_for_change(run)
                if stale is not None:
                    self._take_away(stale)
                continue

            # A process that found the former file stale may have taken this one for it.
            sleep(BEAT)
            now = _text_of(self._path)
            if now is not None and self._is_mine(now):
                return
            raise in_use(run, _name_in(now))

    def _wait_for_change(self, run: str) -> str | None:
        """The text of a file that nobody rewrites, or None when it is gone. Raises UsageError when its owner lives."""
        before = _text_of(self._path)
        for _ in range(PATIENCE):
            sleep(BEAT)
            now = _text_of(self._path)
            if now is None:
                return None
            if now != before:
                raise in_use(run, _name_in(now))
        return before

    def _take_away(self, stale: str) -> None:
        """Remove the file if it still is the stale one.

        Renamed first, so that of several processes only one takes it away, and compared then: another process may have
        put its own file in its place since the last look. That one gets its name back, unless there is a third by now.
        """
        aside = self._path.with_name(f"{OWNER}.{secrets.token_hex(4)}.partial")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
            if _text_of(aside) != stale:
                with contextlib.suppress(FileExistsError):
                    _rename_if_free(aside, self._path)
            aside.unlink(missing_ok=True)

    def _work(self) -> None:
        """Rewrite the file. End the process when it is another's: two runs in one folder would destroy it."""
        while not self._closed.wait(BEAT):
            now = _text_of(self._path)
            if now and not self._is_mine(now):
                self._end(now)
                return
            self._beats += 1
            with contextlib.suppress(OSError):
                self._path.write_text(self._text())

    def _is_mine(self, text: str) -> bool:
        return _name_in(text) == self._name

    def _end(self, text: str) -> None:
        print(
            f"clozeline: {self._path} now names another run ({_name_in(text)}), so this one ends before both write "
            "there. The checkpoints are as they were; start one run only.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(UsageError.exit_code)

    def _text(self) -> str:
        return f"{self._name}\nbeat {self._beats}\n"


def _name_in(text: str | None) -> str:
    """The owner that a file names. One that is empty was created a moment ago."""
    return text.splitlines()[0] if text else "starting"


def _rename_if_free(source: Path, target: Path) -> None:
    """Raises FileExistsError when the target exists; a rename would replace it."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        if target.exists():
            raise FileExistsError(target) from None
        source.rename(target)


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
