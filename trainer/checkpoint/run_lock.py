"""Locks a run's folder, so that no two runs write into it.

With flock (the usual case), RUN/lock is locked: the system releases the lock when the process ends, however it ends.
The file itself stays and names the last holder.

Some file systems have no flock (Lustre mounted without -o flock, several FUSE mounts). There, a second file
RUN/lock.owner takes the place of the lock, and a heartbeat shows whether its owner is alive:

    1. A process creates lock.owner with its name, which only one process can do (O_EXCL).
    2. If the file exists, the process watches it for some heartbeats. If the text changes, the owner is alive:
       UsageError. If not, the owner is gone: the process renames the file away and tries again.
    3. After creating the file, the process waits for one heartbeat and checks the file again, because another process
       that found the previous file stale may have removed the new one by mistake.
    4. A thread rewrites the file at every heartbeat. If the file names another owner, the thread ends the process.

Known limit: if a file system delays what other machines see, or a process was frozen for longer than step 2 takes, two
runs may hold the folder until the next heartbeat of one of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import IO

from schemas.errors import UsageError
from trainer.logs import logger

RUN_LOCK_FILE = "lock"
OWNER = "lock.owner"

LOCK_FILES = frozenset({RUN_LOCK_FILE, OWNER})
"""What a lock may leave in a folder."""

HEARTBEAT = 4.0  # seconds between two rewrites of OWNER
STALE_AFTER = 5  # heartbeats without a change after which the owner counts as gone

_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)


def hold(run: str, flag: str = "run.output") -> RunLock:
    """Lock a run's folder. flag: names the option that chooses the folder, for the message.

    Raises UsageError if a live run holds the folder, and OSError if it cannot be written.
    """
    file = Path(run, RUN_LOCK_FILE).open("a+", encoding="utf-8")  # noqa: SIM115 (open for as long as the run lasts)
    owner: _Owner | None = None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        file.close()
        raise in_use(run, holder, flag) from None
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            file.close()
            raise

        # Logged as an error so that it reaches stderr: the folder is protected less well than usual.
        logger.error(
            "the file system of %s has no flock (%s). The run holds its folder by %s instead, which it rewrites every "
            "few seconds.",
            run,
            error.strerror,
            OWNER,
        )
        owner = _Owner(run)

    if owner is None and not _is_in_place(file, Path(run, RUN_LOCK_FILE)):
        # A run that was refused has removed the file since we opened it, so our lock on it protects nothing.
        file.close()
        return hold(run, flag)

    file.truncate(0)
    file.write(f"{_process_name()}\n")
    file.flush()
    return RunLock(file, owner)


def _is_in_place(file: IO[str], path: Path) -> bool:
    """Return whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def in_use(run: str, holder: str, flag: str = "run.output") -> UsageError:
    return UsageError(f"{run} is in use by a live run ({holder}). Stop that run first, or choose another {flag}.")


def _process_name() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


class RunLock:
    """A held lock: the open lock file and, without flock, the owner's file."""

    def __init__(self, file: IO[str], owner: _Owner | None):
        self._file = file
        self._owner = owner

    def close(self) -> None:
        """Release the folder."""
        if self._owner is not None:
            self._owner.close()
        self._file.close()


class _Owner:
    """RUN/lock.owner, created by this process and rewritten by a thread for as long as the process lives."""

    def __init__(self, run: str):
        """Create the file. Takes one heartbeat, or several if the file exists.

        Raises UsageError if the owner of an existing file is alive.
        """
        self._path = Path(run, OWNER)
        self._heartbeats = 0
        # The random part distinguishes runs with the same process id in two containers of the same host name.
        self._name = f"{_process_name()}, {secrets.token_hex(4)}"
        self._create(run)

        self._closed = Event()
        self._thread = Thread(target=self._work, name="run lock", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the heartbeat, and remove the file if it still names this process."""
        self._closed.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if self._is_mine(_text_of(self._path) or ""):
                self._path.unlink()

    # Taking the file

    def _create(self, run: str) -> None:
        """Create the file, after removing a stale one. Raises UsageError if the owner of an existing file is alive."""
        while not self._try_to_create():
            stale_text = self._wait_for_change(run)
            if stale_text is not None:
                self._remove_stale(stale_text)

        # Another process that found the previous file stale may have removed this one by mistake.
        sleep(HEARTBEAT)
        text = _text_of(self._path)
        if text is None or not self._is_mine(text):
            raise in_use(run, _name_in(text))

    def _try_to_create(self) -> bool:
        """Create the file and return True, or return False if it exists."""
        try:
            with self._path.open("x", encoding="utf-8") as file:
                file.write(self._text())
        except FileExistsError:
            return False
        return True

    def _wait_for_change(self, run: str) -> str | None:
        """Watch an existing file and return its text if no process rewrites it, or None once it is gone.

        Raises UsageError if its text changes.
        """
        before = _text_of(self._path)
        for _ in range(STALE_AFTER):
            sleep(HEARTBEAT)
            now = _text_of(self._path)
            if now is None:
                return None
            if now != before:
                raise in_use(run, _name_in(now))
        return before

    def _remove_stale(self, stale_text: str) -> None:
        """Remove the file if it is still the stale one.

        It is renamed first, because only one of several processes can do that, and compared afterwards, because another
        process may have replaced it in the meantime. In that case the file gets its name back, unless a third process
        has created one by then.
        """
        aside = self._path.with_name(f"{OWNER}.{secrets.token_hex(4)}.partial")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
            if _text_of(aside) != stale_text:
                with contextlib.suppress(FileExistsError):
                    _rename_if_free(aside, self._path)
            aside.unlink(missing_ok=True)

    # Keeping the file

    def _work(self) -> None:
        """Rewrite the file at each heartbeat. End the process if the file names another owner."""
        while not self._closed.wait(HEARTBEAT):
            text = _text_of(self._path)
            if text and not self._is_mine(text):
                self._end_process(text)
                return

            self._heartbeats += 1
            with contextlib.suppress(OSError):  # the next heartbeat tries again
                self._rewrite()

    def _rewrite(self) -> None:
        """Overwrite the text in place, so that the file is never empty. The new text is at least as long as the old."""
        try:
            with self._path.open("r+", encoding="utf-8") as file:
                file.write(self._text())
        except FileNotFoundError:
            self._path.write_text(self._text(), encoding="utf-8")

    def _end_process(self, text: str) -> None:
        """End the process at once: two runs that write into one folder would corrupt it."""
        logger.error(
            "%s now names another run (%s), so this run ends before both write there. The checkpoints are intact. "
            "Start one run only.",
            self._path,
            _name_in(text),
        )
        os._exit(UsageError.exit_code)

    def _is_mine(self, text: str) -> bool:
        return _name_in(text) == self._name

    def _text(self) -> str:
        """Return what the file holds: the name, and a count that changes at each heartbeat."""
        return f"{self._name}\nbeat {self._heartbeats}\n"


def _name_in(text: str | None) -> str:
    """Return the owner that the file names, or "starting" for a file without text, which was only just created."""
    return text.splitlines()[0] if text else "starting"


def _text_of(path: Path) -> str | None:
    """Return a file's text, or None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _rename_if_free(source: Path, target: Path) -> None:
    """Give a file a second name, or rename it if the file system has no hard links.

    Raises FileExistsError if the target exists. A plain rename would replace it.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        if target.exists():
            raise FileExistsError(target) from None
        source.rename(target)
