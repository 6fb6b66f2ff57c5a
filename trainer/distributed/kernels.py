"""Builds and loads DeepSpeed's CPU communication kernels: C++ that is compiled at the first start on a machine.

All processes of a user on one machine share the build folder, and three files in it show who is building:

    lock             torch's: created before a build and removed after it. A process that is killed in between leaves
                     it behind, and torch would wait for its removal forever and without a message.
    clozeline.lock   ours: one of our processes holds its flock while it builds, and the kernel releases it when that
                     process ends, however it ends. Its text is "building: process N" during a build and empty after.
    *.so             the kernels, once they have been built

Each of our processes first takes the flock, waiting at most `timeout` seconds. If clozeline.lock then contains text,
our last builder was killed, so a `lock` is stale. If it is empty, a `lock` belongs to another program, and is stale
only if it is 15 minutes old. A stale `lock` is removed; for any other one, the process waits until the deadline.

The ranks of a run on one machine compete for the flock. The only other thread is a timer that announces a slow rebuild.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from time import monotonic, sleep, time
from typing import IO

import deepspeed
import torch

from schemas.errors import StorageError, UsageError
from trainer.distributed.deepspeed_internals import build_communication_kernels, communication_kernels_name
from trainer.distributed.torch_internals import extension_build_folder
from trainer.logs import EVERY_RANK, logger

TORCH_LOCK = "lock"
OWN_LOCK = "clozeline.lock"
BUILDING = "building: "
ANNOUNCED = 5.0
"""Seconds after which a wait or a rebuild is announced."""
STALE_LOCK_SECONDS = 900.0
"""Seconds after which torch's lock counts as left behind; a build takes up to a few minutes."""
POLL_SECONDS = 0.1


def load_communication_kernels(timeout: float) -> None:
    """Build or load the kernels before the process group does, which then finds them built. Only for CPUs.

    Raises StorageError after waiting `timeout` seconds for another build or for a lock that another program may hold,
    and UsageError if the kernels cannot be compiled.
    """
    _prefer_own_ninja()
    _use_own_build_folder()
    folder = _build_folder()
    if folder is None:
        return

    deadline = monotonic() + timeout
    with _turn_to_build(folder, deadline) as own_lock:
        _wait_for_torch_lock(folder, own_lock, deadline)
        if not _are_built(folder):
            logger.info(
                "Building DeepSpeed's CPU communication kernels in %s: this takes up to a few minutes, once.",
                folder,
                extra=EVERY_RANK,
            )
        with _rebuild_announced(folder):
            _build(folder)


def _are_built(folder: Path) -> bool:
    return any(folder.glob("*.so"))


def _build(folder: Path) -> None:
    try:
        # DeepSpeed prints "built successfully" here.
        with contextlib.redirect_stdout(io.StringIO()):
            build_communication_kernels()
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        raise _build_error(folder, error) from error


@contextlib.contextmanager
def _rebuild_announced(folder: Path) -> Iterator[None]:
    """Print a line if loading existing kernels takes long, because torch then compiles them again after an upgrade."""
    stdout = sys.stdout

    def announce() -> None:
        # Not the logger: it writes to sys.stdout, which is redirected in this process during a build.
        line = f"Building DeepSpeed's CPU communication kernels in {folder} again, which takes up to a few minutes."
        with contextlib.suppress(OSError, ValueError):
            print(line, file=stdout, flush=True)

    timer = Timer(ANNOUNCED, announce)
    timer.daemon = True
    if _are_built(folder):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _build_error(folder: Path, error: Exception) -> UsageError:
    """Return the error for a failed build, with the line of the compiler's output that states the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        lines = [type(error).__name__]
    reason = next((line for line in lines if "error:" in line or "not found" in line), lines[0])

    build_error = UsageError(
        f"DeepSpeed's CPU communication kernels cannot be built in {folder}: {reason.rstrip('.')}. Install a C++ "
        "compiler (g++), ninja and Python's headers (Python.h, as in python3-dev), and start again."
    )
    # An error that is `everywhere` is only reported by rank 0, so this makes the first rank of each machine report it.
    build_error.everywhere = os.environ.get("LOCAL_RANK", "0") != "0"
    return build_error


# ---- Where and with what torch builds ----


def _prefer_own_ninja() -> None:
    """Make the build use the ninja that is installed next to this Python, whatever PATH the process was started with.

    Different versions of ninja do not read each other's logs. If runs alternated between the environment's ninja and
    the system's, every start would compile the kernels again.
    """
    programs = Path(sys.executable).parent
    if (programs / "ninja").exists():
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ.get('PATH', '')}"


def _use_own_build_folder() -> None:
    """Give each Python environment its own build folder, unless TORCH_EXTENSIONS_DIR names one.

    All environments of a user share torch's default folder. The compiler command contains the environment's paths, so
    if runs alternated between two environments, every start would compile the kernels again.
    """
    from torch.utils import cpp_extension  # imports setuptools, which takes a while

    environment = f"{deepspeed.__file__} {torch.__file__} {torch.__version__} {sys.version}"
    digest = hashlib.sha256(environment.encode()).hexdigest()[:12]
    folder = Path(cpp_extension.get_default_build_root()) / f"clozeline-{digest}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(folder))


def _build_folder() -> Path | None:
    """Return the folder in which torch builds the kernels; None if DeepSpeed does not use them."""
    name = communication_kernels_name()
    if name is None:
        return None
    return extension_build_folder(name)


# ---- Taking turns ----


@contextlib.contextmanager
def _turn_to_build(folder: Path, deadline: float) -> Iterator[IO[str] | None]:
    """Hold clozeline.lock, and empty it after a build without an error.

    Yields the open file, or None if the file system has no flock. After an error the text stays, as after a kill.
    """
    with (folder / OWN_LOCK).open("a+") as file:
        try:
            _take_flock(file, folder, deadline)
        except OSError:
            yield None
            return

        yield file
        file.truncate(0)


def _take_flock(file: IO[str], folder: Path, deadline: float) -> None:
    """Wait for the flock of clozeline.lock.

    Raises StorageError after the deadline, and OSError if the file system does not support flock.
    """
    announce_at = monotonic() + ANNOUNCED
    announced = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass  # another process holds it

        if monotonic() > deadline:
            raise StorageError(
                f"Another process has been building kernels in {folder} for longer than engine.timeout_seconds. "
                "End it, or raise engine.timeout_seconds."
            )
        if monotonic() > announce_at and not announced:
            announced = True
            logger.info(
                "Waiting for %s, which builds DeepSpeed's kernels in %s.", _builder(file), folder, extra=EVERY_RANK
            )
        sleep(POLL_SECONDS)


def _builder(file: IO[str]) -> str:
    """Return the name of the process of ours that is building, as written in clozeline.lock."""
    file.seek(0)
    return file.read().strip().removeprefix(BUILDING) or "another process"


def _wait_for_torch_lock(folder: Path, own_lock: IO[str] | None, deadline: float) -> None:
    """Return once torch's lock is gone, removing it if its owner was killed.

    Raises StorageError if the lock is still there after the deadline and its owner may be alive.
    """
    last_builder_was_killed = own_lock is not None and _claim_build(own_lock)

    lock = folder / TORCH_LOCK
    announce_at = monotonic() + ANNOUNCED
    announced = False
    while lock.exists():
        if _removed_stale_lock(lock, last_builder_was_killed):
            return

        if monotonic() > deadline:
            raise StorageError(
                f"{lock} says that another program builds there, for longer than engine.timeout_seconds. Delete it if "
                "none does; a program that was killed leaves it behind."
            )
        if monotonic() > announce_at and not announced:
            announced = True
            logger.info(
                "Waiting for the program that holds %s, which builds DeepSpeed's kernels.", lock, extra=EVERY_RANK
            )
        sleep(POLL_SECONDS)


def _claim_build(own_lock: IO[str]) -> bool:
    """Write into clozeline.lock that this process is building. Returns whether the last builder was killed."""
    own_lock.seek(0)
    last_builder_was_killed = own_lock.read() != ""

    # The text of a killed builder may stay, because only its presence matters.
    if not last_builder_was_killed:
        own_lock.write(f"{BUILDING}process {os.getpid()}\n")
        own_lock.flush()
    return last_builder_was_killed


def _removed_stale_lock(lock: Path, last_builder_was_killed: bool) -> bool:
    """Remove torch's lock if its owner was killed, and return whether it did."""
    try:
        age = time() - lock.stat().st_mtime
        if not last_builder_was_killed and age <= STALE_LOCK_SECONDS:
            return False
        logger.info("Removing %s, which a process that was killed left %.0f s ago.", lock, age, extra=EVERY_RANK)
        lock.unlink()
    except FileNotFoundError:
        return False  # its owner has just removed it
    return True
